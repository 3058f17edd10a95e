"""timeline.json: who did what when, as a Chrome trace that opens in Perfetto (ui.perfetto.dev).

One process row a role, one thread row a category of its spans, microseconds of the run's time. What ended before a
session's first unit is left out: the run's time stands still then.

The spans since the file was written last are in timeline.part as well, line by line, so that the session that comes
after a killed one still has them. Its first line has the number of the writing of timeline.json that it follows.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from hybridsync.core.errors import WorkdirTaken
from hybridsync.interfaces.reports import Span
from hybridsync.storage.durable import Fence, open_file, read_file, unfenced, write_durable
from hybridsync.storage.jsonl import LineFile, encode
from hybridsync.telemetry.events import Elapsed

TIMELINE_FILE, PART_FILE = "timeline.json", "timeline.part"

FIELDS = {**dict.fromkeys(("ts", "dur", "pid", "tid"), "a number"), **dict.fromkeys(("ph", "cat"), "a text")}
"""Fields of the trace's rows and spans that readers use, and their kinds (see `telemetry.kinds`)."""

_FIRST_PID = {"supervisor": 1, "chief": 2, "server": 1_000, "worker": 10_000}
_SPAN = '{"ph":"X"'
"""What the line of a span begins with; all other lines are rows."""

_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


class TimelineSink:
    """Takes spans; this one, of a run without a workdir or without a timeline, keeps none."""

    def add(self, role: str, role_id: int, spans: Iterable[Span], offset: float = 0.0) -> None:
        """Take spans of a role; `offset` is what its monotonic clock lacks to the chief's."""

    def write(self) -> None:
        """Put everything so far into the file."""


@dataclass
class SpanLines:
    """Spans as their lines stand in a file, oldest first, and how many more there were that are kept no longer."""

    lines: list[str]
    left_out: int = 0

    def limited(self, limit: int) -> "SpanLines":
        """Return the newest `limit` of them."""
        over = max(len(self.lines) - limit, 0)
        return SpanLines(self.lines[over:], self.left_out + over)


class _PhaseSpans:
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


class Timeline(TimelineSink):
    """Keeps spans and writes timeline.json, whole or not at all; a resume keeps the earlier sessions' spans.

    Args:
        workdir: existing directory.
        elapsed: returns the run's time in seconds, from the event log.
        per_phase: maximum number of spans of one role in one phase: its first and last halves are kept.
        limit: maximum number of spans in the file; the oldest go first.
        compact_above: number of lines of timeline.part above which spans that are no longer kept are taken out.
        fence: see `write_durable`.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        elapsed: Elapsed,
        *,
        per_phase: int = 1_000,
        limit: int = 200_000,
        compact_above: int = 20_000,
        fence: Fence = unfenced,
    ) -> None:
        self._path, self._fence = Path(workdir) / TIMELINE_FILE, fence
        self._elapsed = elapsed
        self._per_phase, self._limit = per_phase, limit
        self._lock = threading.Lock()  # guards all below: roles report while the file is being written

        # Categories of each role's spans in the order of their thread rows. None is ever removed.
        self._rows: dict[tuple[str, int], list[str]] = {}
        self._prefixes: dict[tuple[str, str, int], str] = {}

        # Each span is in one of three: timeline.json has it, a killed session left it in timeline.part, or it came in
        # this session. `write` moves the latter two to the first.
        self._written = SpanLines([])
        self._of_killed = SpanLines([])
        self._of_phases: dict[tuple[str, int, int], _PhaseSpans] = {}

        self._num_written = 0  # how often timeline.json has been written: it and timeline.part name it to each other
        self._part = TimelinePart(Path(workdir) / PART_FILE, fence)
        self._compact_above = self._compact_least = compact_above
        is_whole = self._load()
        self._load_part(is_whole)

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
            pid = _pid(role, role_id)
            categories = self._rows.setdefault((role, role_id), [])
            for span in spans:
                if span.category not in categories:
                    categories.append(span.category)
                    lines.append(encode(_thread_row(pid, len(categories) - 1, span.category)))
                line = self._line(pid, categories.index(span.category), span, offset)
                if line is None:
                    continue
                lines.append(line)
                kept = self._of_phases.get((role, role_id, span.phase))
                if kept is None:
                    kept = self._of_phases[role, role_id, span.phase] = _PhaseSpans(self._per_phase)
                kept.add(line)
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
            written, since = self._written, self._since()
            kept = SpanLines(written.lines + since.lines, written.left_out + since.left_out).limited(self._limit)
            other = {"left_out": kept.left_out, "written": self._num_written + 1}
            text = (
                f'{{"displayTimeUnit":"ms","otherData":{encode(other)},"traceEvents":[\n'
                + ",\n".join(self._encoded_rows() + kept.lines)
                + "\n]}\n"
            )
            write_durable(self._path, text, self._fence)
            # Only now: until the file is there, the spans are still those of this session. A part that cannot be
            # removed does no harm, as the number of its writing is past.
            self._written, self._num_written = kept, self._num_written + 1
            self._of_killed, self._of_phases = SpanLines([]), {}
            self._part.remove()

    def _since(self) -> SpanLines:
        """Return the spans since timeline.json was written."""
        phases = self._of_phases.values()
        return SpanLines(
            self._of_killed.lines + [line for spans in phases for line in spans.lines()],
            self._of_killed.left_out + sum(spans.left_out for spans in phases),
        )

    def _compact(self) -> None:
        """Take out of timeline.part what is no longer kept; each time it may double, so that a span costs the same."""
        since = self._since().limited(self._limit)
        lines = self._encoded_rows() + since.lines
        self._part.replace(self._num_written, since.left_out, lines)
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

    def _load(self) -> bool:
        """Take over an earlier session's file, line by line as `write` lays it out; returns False for a damaged one."""
        try:
            header, *lines, end = read_file(self._path).decode().splitlines()
            other = json.loads(header + end)["otherData"]
            rows = [json.loads(line.rstrip(",")) for line in lines if line and not line.startswith(_SPAN)]
            left_out, self._num_written = other["left_out"], other.get("written", 0)
        except FileNotFoundError:
            return True
        except (ValueError, KeyError, TypeError) as error:
            logging.warning("%s is damaged (%s); a new timeline begins", self._path, error)
            return False
        self._written = SpanLines([line.rstrip(",") for line in lines if line.startswith(_SPAN)], left_out)
        self._take_rows(rows)
        return True

    def _load_part(self, is_whole: bool) -> None:
        """Take over what a killed session left.

        Not where timeline.json has it already: the session was killed between the writing and the removal. Of a damaged
        timeline.json nobody knows which writing it was, so that the part is all there is.
        """
        found = self._part.read()
        if found is None or (is_whole and found.after != self._num_written):
            self._part.remove()
            return
        self._of_killed = SpanLines([line for line in found.lines if line.startswith(_SPAN)], found.left_out)
        self._num_written = found.after
        self._take_rows(json.loads(line) for line in found.lines if not line.startswith(_SPAN))
        self._compact()

    def _take_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            if row["name"] == "thread_name":
                categories = self._rows.setdefault(_role(row["pid"]), [])
                if row["args"]["name"] not in categories:
                    categories.append(row["args"]["name"])


@dataclass(frozen=True)
class PartContent:
    """Holds what a killed session left.

    Args:
        after: number of the writing of timeline.json that the part follows.
        left_out: number of spans since then that it kept no longer.
        lines: rows and spans.
    """

    after: int
    left_out: int
    lines: Sequence[str]


class TimelinePart:
    """timeline.part. Appends lines that survive this process, not the machine: nothing waits for the disk.

    A disk that refuses them ends nothing: they are in memory as well, and only a kill would lose them.

    Args:
        path: path of the file; created by the first line.
        fence: see `write_durable`; a file that is another chief's by now is given up like a disk that refuses.
    """

    def __init__(self, path: str | os.PathLike[str], fence: Fence = unfenced) -> None:
        self._path, self._fence = Path(path), fence
        self._file: LineFile | None = None
        self._refused = False
        self.num_lines = 0

    def read(self) -> PartContent | None:
        """Return what is there, up to the first damaged line; None where nothing is."""
        try:
            header, *lines = read_file(self._path).decode(errors="replace").split("\n")
            values = json.loads(header)
            after, left_out = values["after"], values["left_out"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logging.warning("%s is damaged (%s); what it held is not in the timeline", self._path, error)
            return None
        return PartContent(after, left_out, lines[: _num_whole(lines)])

    def append(self, after: int, lines: Sequence[str]) -> None:
        """Append lines; a new file follows the writing `after` of timeline.json."""
        if self._refused or not lines:
            return
        try:
            if self._file is None:
                self._file = LineFile(self._path)
            if not self.num_lines:
                lines = [_header(after, 0), *lines]
            self._file.extend(lines)
            self.num_lines += len(lines)
        except OSError as error:
            self._give_up(error)

    def replace(self, after: int, left_out: int, lines: Sequence[str]) -> None:
        """Replace the file's content by these lines."""
        if self._refused:
            return
        other = self._path.with_name(self._path.name + ".tmp")
        try:
            self._fence()
            self._close()
            with open(open_file(other, _REPLACE), "w", encoding="utf-8") as file:
                file.write("\n".join([_header(after, left_out), *lines, ""]))
            self._fence()
            other.replace(self._path)
            self.num_lines = 1 + len(lines)
        except (OSError, WorkdirTaken) as error:
            self._give_up(error)

    def remove(self) -> None:
        """Remove the file: everything is in timeline.json."""
        try:
            self._close()
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)
        self.num_lines = 0

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _give_up(self, error: OSError | WorkdirTaken) -> None:
        logging.error("%s: %s; a killed chief would lose the timeline's spans", self._path, error)
        self._refused = True


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


def _header(after: int, left_out: int) -> str:
    return encode({"after": after, "left_out": left_out})


def _num_whole(lines: Sequence[str]) -> int:
    for index, line in enumerate(lines):
        try:
            if not isinstance(json.loads(line), dict):
                return index
        except ValueError:
            return index
    return len(lines)
