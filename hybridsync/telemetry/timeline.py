"""timeline.json: who did what when, as a Chrome trace that opens in Perfetto (ui.perfetto.dev).

One process row a role, one thread row a category of its spans, microseconds of the run's time. What ended before a
session's first unit is left out: the run's time stands still then.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from absl import logging

from hybridsync.interfaces.reports import Span
from hybridsync.storage.durable import Fence, read_file, unfenced, write_durable
from hybridsync.storage.jsonl import encode
from hybridsync.telemetry.events import Elapsed
from hybridsync.telemetry.timeline_part import PART_FILE, TimelinePart

TIMELINE_FILE = "timeline.json"

FIELDS = {**dict.fromkeys(("ts", "dur", "pid", "tid"), "a number"), **dict.fromkeys(("ph", "cat"), "a text")}
"""Fields of the trace's rows and spans that readers use, and their kinds (see `telemetry.kinds`)."""

_FIRST_PID = {"supervisor": 1, "chief": 2, "server": 1_000, "worker": 10_000}
_SPAN = '{"ph":"X"'


class TimelineSink(Protocol):
    """Takes spans."""

    def add(self, role: str, role_id: int, spans: Iterable[Span], offset: float = 0.0) -> None:
        """Take spans of a role; `offset` is what its monotonic clock lacks to the chief's."""
        ...

    def write(self) -> None:
        """Put everything so far into the file."""
        ...


class _Stretch:
    """The first and the last spans of one role in one phase, so that every switch keeps both sides."""

    def __init__(self, size: int) -> None:
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=size - size // 2)
        self._num_first = size // 2
        self.left_out = 0

    def add(self, line: str) -> None:
        if len(self._first) < self._num_first:
            self._first.append(line)
            return
        self.left_out += len(self._last) == self._last.maxlen
        self._last.append(line)

    def lines(self) -> Iterable[str]:
        yield from self._first
        yield from self._last


class Timeline:
    """Keeps spans and writes timeline.json, whole or not at all; a resume keeps the earlier sessions' spans.

    Until it is written the spans are in timeline.part as well, so that a session that is killed leaves them.

    The lock guards the spans: roles report while the file is being written.

    Args:
        workdir: existing directory.
        elapsed: returns the run's time in seconds, from the event log.
        per_stretch: maximum number of spans of one role in one phase: its first and last halves are kept.
        limit: maximum number of spans in the file; the oldest go first.
        compact_above: number of lines of timeline.part above which spans that are no longer kept are taken out.
        fence: see `write_durable`.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        elapsed: Elapsed,
        *,
        per_stretch: int = 1_000,
        limit: int = 200_000,
        compact_above: int = 20_000,
        fence: Fence = unfenced,
    ) -> None:
        self._fence = fence
        self._path = Path(workdir) / TIMELINE_FILE
        self._elapsed = elapsed
        self._per_stretch = per_stretch
        self._limit = limit
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], list[str]] = {}
        self._stretches: dict[tuple[str, int, int], _Stretch] = {}
        self._prefixes: dict[tuple[str, str, int], str] = {}
        self._earlier: list[str] = []
        self._left_out_earlier = 0
        self._killed: list[str] = []
        self._left_out_killed = 0
        self._num_written = 0
        self._damaged = False
        self._part = TimelinePart(Path(workdir) / PART_FILE, fence)
        self._compact_above = self._compact_least = compact_above
        self._load()
        self._load_part()

    def add(self, role: str, role_id: int, spans: Iterable[Span], offset: float = 0.0) -> None:
        """Take spans of a role.

        Args:
            role: "supervisor", "chief", "server" or "worker".
            role_id: number of the role, from 0.
            spans: their `start` is the monotonic clock of the role's host.
            offset: seconds to add to that clock to have the chief's, from `ClockOffsets`; 0 on one host.
        """
        with self._lock:
            lines: list[str] = []
            categories = self._rows.setdefault((role, role_id), [])
            for span in spans:
                if span.category not in categories:
                    categories.append(span.category)
                    lines.append(encode(_thread_row(_pid(role, role_id), len(categories) - 1, span.category)))
                line = self._line(_pid(role, role_id), categories.index(span.category), span, offset)
                if line is None:
                    continue
                lines.append(line)
                stretch = self._stretches.get((role, role_id, span.phase))
                if stretch is None:
                    stretch = self._stretches[role, role_id, span.phase] = _Stretch(self._per_stretch)
                stretch.add(line)
            self._part.append(self._num_written, lines)
            if self._part.num_lines > self._compact_above:
                self._compact()

    def write(self) -> None:
        """Replace timeline.json by everything that is kept.

        Raises:
            OSError: the disk refuses; the earlier file is intact.
            WorkdirTaken: by the fence; the earlier file is intact.
        """
        with self._lock:
            left_out, since = self._since()
            lines = self._earlier + since
            over = max(len(lines) - self._limit, 0)
            del lines[:over]
            left_out += self._left_out_earlier + over
            other = {"left_out": left_out, "written": self._num_written + 1}
            text = (
                f'{{"displayTimeUnit":"ms","otherData":{encode(other)},"traceEvents":[\n'
                + ",\n".join(self._encoded_rows() + lines)
                + "\n]}\n"
            )
            write_durable(self._path, text, self._fence)
            # The file's contents are earlier from here on; a part that cannot be removed contains that it goes before
            # it.
            self._earlier, self._left_out_earlier, self._num_written = lines, left_out, self._num_written + 1
            self._stretches, self._killed, self._left_out_killed = {}, [], 0
            self._part.remove()

    def _since(self) -> tuple[int, list[str]]:
        """Return what came since timeline.json was written: how many spans are kept no longer, and the others."""
        left_out = self._left_out_killed + sum(stretch.left_out for stretch in self._stretches.values())
        return left_out, self._killed + [line for stretch in self._stretches.values() for line in stretch.lines()]

    def _compact(self) -> None:
        """Take out of timeline.part what is no longer kept; each time it may double, so that a span costs the same."""
        left_out, lines = self._since()
        over = max(len(lines) - self._limit, 0)
        lines = self._encoded_rows() + lines[over:]
        self._part.replace(self._num_written, left_out + over, lines)
        self._compact_above = max(self._compact_least, 2 * len(lines))

    def _encoded_rows(self) -> list[str]:
        return [encode(row) for key, categories in self._rows.items() for row in _rows(*key, categories)]

    def _line(self, pid: int, tid: int, span: Span, offset: float) -> str | None:
        start, secs = span.start + offset, max(span.secs, 0.0)
        ts = self._elapsed.at(start) * 1e6
        dur = self._elapsed.at(start + secs) * 1e6 - ts
        if secs > 0 and dur <= 0:
            return None
        prefix = self._prefixes.get((span.name, span.category, pid))
        if prefix is None:
            prefix = self._prefixes[span.name, span.category, pid] = (
                f'{_SPAN},"name":{json.dumps(span.name)},"cat":{json.dumps(span.category)},"pid":{pid},"tid":{tid}'
            )
        return f'{prefix},"ts":{ts:.1f},"dur":{dur:.1f},"args":{{"phase":{span.phase},"units":{span.units}}}}}'

    def _load(self) -> None:
        """Take over an earlier session's file line by line, as `write` lays it out."""
        try:
            header, *lines, end = read_file(self._path).decode().splitlines()
            other = json.loads(header + end)["otherData"]
            rows = [json.loads(line.rstrip(",")) for line in lines if line and not line.startswith(_SPAN)]
            self._left_out_earlier, self._num_written = other["left_out"], other.get("written", 0)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            logging.warning("%s is damaged (%s); a new timeline begins", self._path, error)
            self._damaged = True
            return
        self._earlier = [line.rstrip(",") for line in lines if line.startswith(_SPAN)]
        self._take_rows(rows)

    def _load_part(self) -> None:
        """Take over what a killed session left, unless it is in timeline.json already."""
        found = self._part.read()
        if found is None or not (self._damaged or found.after == self._num_written):
            self._part.remove()
            return
        self._killed = [line for line in found.lines if line.startswith(_SPAN)]
        self._left_out_killed, self._num_written = found.left_out, found.after
        self._take_rows(json.loads(line) for line in found.lines if not line.startswith(_SPAN))
        self._compact()

    def _take_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            if row["name"] == "thread_name":
                categories = self._rows.setdefault(_role(row["pid"]), [])
                if row["args"]["name"] not in categories:
                    categories.append(row["args"]["name"])


class NullTimeline:
    """Keeps no spans: a run without a workdir or without a timeline."""

    def add(self, role: str, role_id: int, spans: Iterable[Span], offset: float = 0.0) -> None:
        pass

    def write(self) -> None:
        pass


def _pid(role: str, role_id: int) -> int:
    return _FIRST_PID[role] + role_id


def _role(pid: int) -> tuple[str, int]:
    role = max((name for name in _FIRST_PID if _FIRST_PID[name] <= pid), key=_FIRST_PID.__getitem__)
    return role, pid - _FIRST_PID[role]


def _rows(role: str, role_id: int, categories: list[str]) -> Iterable[dict[str, Any]]:
    pid = _pid(role, role_id)
    name = f"{role} {role_id}" if role in ("server", "worker") else role
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for tid, category in enumerate(categories):
        yield _thread_row(pid, tid, category)


def _thread_row(pid: int, tid: int, category: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": category}}
