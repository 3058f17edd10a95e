"""Counts the files of `hybridsync/` that one push, one unit's whole life and one switch go through.

    python -m tests.tools.files_crossed [--windows=20] [--keep=DIR]

Runs the digits recipe over processes twice, and logs every function of the package that is entered (`frame_log`). A
file counts in a window when a function of it is entered there. Generated files do not count. Neither do the methods
that `dataclass` and `NamedTuple` make, because they have no file.

A window holds the calls that carry the thing, wherever they run:

    push      The worker's thread, from the engine's hold of the gradient until it has the version that answers it. The
              server's thread that took this push, in the same time.
    unit      The worker's call that leased the unit, and the chief's handler of it. The worker's thread, from the
              version before until the unit's own. The server's thread that took the push. The server's report that
              tells of it, and the chief's handler of that, in which the ledger notes it.
    switch    From bsp's end, as the controller sees it, to the first update of asp. The controller's thread and those
              that it begins to have servers enter, until the leases are open. The workers' threads, and those that
              ask for units ahead. The threads that serve calls. Heartbeats that they serve are cut out, and what the
              controller writes down or looks after meanwhile (`Reporter`, `Housekeeping`).

Heartbeats otherwise, watchdogs, commits and whatever else runs at the same time have threads of their own, which are
not looked at. One worker makes the first two windows, so that nothing else runs on their threads; two workers switch.
A generator that goes on is entered again. So is its file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.multiprocess.job import ROOT, users_environment
from tests.tools import frame_log

PUSH_PULL = "worker/server_engine.py:ServerEngine._push_pull"
LEASE = "worker/context.py:WorkerContext.lease"
TAKE_PUSH = "server/server_core.py:ServerCore.push"
APPLY = "server/partitioned_state.py:PartitionedState.apply"
TAKE_REPORT = "server/primary.py:Primary.take_report"
DRAIN = "runtime/role/server_main.py:run_server.<locals>.drain"
SEND_REPORT = "runtime/role/heartbeat.py:Heartbeat._report"
SERVE = "transport/grpc/interceptors.py:WatchedCalls.intercept_service.<locals>.watched"
ISSUE = "chief/ledger.py:Ledger.lease"
RECORD = "chief/ledger.py:Ledger.record_applied"
DECIDE = "phases/controller.py:RunStage._ends"
OPEN_LEASES = "chief/run_state.py:RunState.open_leases"

ASIDE = (
    "phases/housekeeping.py:Housekeeping.tick",
    "phases/reporter.py:Reporter.tick",
    "phases/reporter.py:Reporter.span",
    "phases/reporter.py:Reporter.ended",
    "phases/reporter.py:Reporter.entered",
    "phases/reporter.py:Reporter.switching",
    "phases/reporter.py:Reporter.committed",
)
"""What the controller calls beside a switch."""

SERVING = "rpc", "slab"
SWITCHING = {
    "chief": ("MainThread", "enter", *SERVING),
    "server": SERVING,
    "worker": ("MainThread", "leases", *SERVING),
}
"""Role -> how the names of the threads begin that carry a switch."""

MARKS = {
    PUSH_PULL: "result.sequence",
    LEASE: "result.ranges",
    TAKE_PUSH: "push.units",
    APPLY: "update.units",
    TAKE_REPORT: "result.applied",
    DRAIN: "",
    SEND_REPORT: "",
    SERVE: "handler_call_details.method",
    ISSUE: "result",
    RECORD: "ranges",
    DECIDE: "phase.spec",
    OPEN_LEASES: "",
    **dict.fromkeys(ASIDE, ""),
}
"""Function -> what is logged of it when it is left (see `frame_log`)."""

ROLES = {f"runtime/role/{role}_main.py:run_{role}": role for role in ("chief", "server", "worker")}
GENERATED = ("_pb2.py",)
BOUNDS = {"push": 32, "unit": 68, "switch": 122}
"""Window -> the most files that it may cross, by the median; a bound may only fall."""
GOALS = {"push": 20, "unit": 45, "switch": 65}
AT = attrgetter("at")
WARM_UP = 40
"""Pushes before the first window: programs are compiled, buffers made."""


class Line(NamedTuple):
    """One line of a log."""

    at: int
    entered: bool
    name: str
    value: Any


class Crossed(NamedTuple):
    """A file that one role's process crosses."""

    role: str
    file: str


class Span(NamedTuple):
    """A part of a thread's time."""

    pid: int
    thread: str
    start: int
    end: int
    value: Any = None

    def covers(self, at: int) -> bool:
        return self.start <= at <= self.end


class Trace:
    """The logs of one run."""

    def __init__(self, folder: Path) -> None:
        self.threads: dict[tuple[int, str], list[Line]] = defaultdict(list)
        self.roles: dict[int, str] = {}
        self._spans: dict[str, list[Span]] = defaultdict(list)
        for path in folder.glob("*.log"):
            pid = int(path.stem)
            for text in path.read_text().splitlines():
                at, thread, event, file, function, value = text.split("\t")
                line = Line(int(at), event == "call", f"{file}:{function}", json.loads(value))
                self.threads[pid, thread].append(line)
                if line.name in ROLES:
                    self.roles[pid] = ROLES[line.name]
        for (pid, thread), lines in self.threads.items():
            self._find_spans(pid, thread, lines)

    def _find_spans(self, pid: int, thread: str, lines: list[Line]) -> None:
        entered: dict[str, int] = {}
        for line in lines:
            if line.name in MARKS and line.entered:
                entered[line.name] = line.at
            elif line.name in MARKS:
                self._spans[line.name].append(Span(pid, thread, entered[line.name], line.at, line.value))

    def spans(self, mark: str) -> list[Span]:
        """Return the calls of a marked function, as they ended."""
        return sorted(self._spans[mark], key=attrgetter("end"))

    def files(self, span: Span, cut: Iterable[Span] = ()) -> set[Crossed]:
        """Return the files that a thread enters in a part of its time; what it does in the spans `cut` is left out."""
        lines, role = self.threads[span.pid, span.thread], self.roles[span.pid]
        among = slice(bisect_left(lines, span.start, key=AT), bisect_right(lines, span.end, key=AT))
        holes = [hole for hole in cut if (hole.pid, hole.thread) == (span.pid, span.thread)]
        return {
            Crossed(role, line.name.partition(":")[0])
            for line in lines[among]
            if line.entered and not any(hole.covers(line.at) for hole in holes)
        }


def first(spans: Iterable[Span]) -> Span:
    """Return the first span.

    Raises:
      AssertionError: there is none; a mark has moved.
    """
    found = next(iter(spans), None)
    assert found is not None, "a call of the window is not in the log; are the marks still what they are called?"
    return found


def has(ranges: Iterable[tuple[int, int]] | None, unit: int) -> bool:
    return any(start <= unit < stop for start, stop in ranges or ())


class Push(NamedTuple):
    """One push of a run with one worker: its unit, and the spans that carry it at worker and server."""

    unit: int
    worker: Span
    server: Span


def pushes(trace: Trace) -> Iterator[Push]:
    """Yield the pushes; `_push_pull` is a generator, and the last of its returns has the version."""
    taken = trace.spans(TAKE_PUSH)
    start = 0
    for part in trace.spans(PUSH_PULL):
        start = start or part.start
        if part.value is not None:
            whole = part._replace(start=start)
            at_server = first(span for span in taken if whole.covers(span.start))
            (unit,) = at_server.value
            yield Push(unit, whole, at_server._replace(start=whole.start, end=whole.end))
            start = 0


def files_of_push(trace: Trace, push: Push) -> set[Crossed]:
    return trace.files(push.worker) | trace.files(push.server)


def files_of_unit(trace: Trace, push: Push, before: Push) -> set[Crossed]:
    """Return the files of a unit's life; `before` is the push before its own."""
    unit = push.unit
    handlers = trace.spans(SERVE)
    issued = first(span for span in trace.spans(ISSUE) if has(span.value, unit))
    leased = first(span for span in trace.spans(LEASE) if span.covers(issued.end))
    told = first(span for span in trace.spans(TAKE_REPORT) if has(span.value, unit))
    drained = first(span for span in trace.spans(DRAIN) if span.pid == told.pid and span.covers(told.start))
    sent = first(span for span in trace.spans(SEND_REPORT) if span.pid == told.pid and span.start > told.end)
    noted = first(span for span in trace.spans(RECORD) if has(span.value, unit) and sent.covers(span.end))
    carrying = [
        leased,
        _around(handlers, issued),
        push.worker._replace(start=before.worker.end),
        push.server,
        drained._replace(end=sent.end),
        _around(handlers, noted),
    ]
    return set().union(*map(trace.files, carrying))


def _around(handlers: Iterable[Span], call: Span) -> Span:
    """Return the handler that made a call."""
    same = (span for span in handlers if (span.pid, span.thread) == (call.pid, call.thread))
    return first(span for span in same if span.covers(call.end))


def switches(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """Yield the monotonic ns of each decision to leave bsp, of the open leases, and of the first update after it."""
    for decided in trace.spans(DECIDE):
        if decided.value == "bsp":
            opened = first(span for span in trace.spans(OPEN_LEASES) if span.start > decided.end)
            applied = first(span for span in trace.spans(APPLY) if span.start > decided.end)
            yield decided.end, opened.end, applied.end


def files_of_switch(trace: Trace, decided: int, opened: int, applied: int) -> set[Crossed]:
    cut = [span for span in trace.spans(SERVE) if span.value.endswith("/Report")]
    cut += [span for mark in ASIDE for span in trace.spans(mark)]
    found: set[Crossed] = set()
    for pid, thread in trace.threads:
        role = trace.roles.get(pid)
        if role is not None and thread.startswith(SWITCHING[role]):
            end = opened if role == "chief" and not thread.startswith(SERVING) else applied
            found |= trace.files(Span(pid, thread, decided, end), cut)
    return found


def run(folder: Path, *flags: str) -> Trace:
    """Train the digits recipe with every process's frames logged; returns them."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    shutil.copy(frame_log.__file__, folder / "sitecustomize.py")
    environment = {
        **users_environment(),
        "PYTHONPATH": str(folder),
        frame_log.FOLDER: str(logs),
        frame_log.PACKAGE: f"{ROOT / 'hybridsync'}/",
        frame_log.MARKS: json.dumps(MARKS),
    }
    command = [sys.executable, "-m", "launch.train", "--config=configs/digits_mlp.py", f"--workdir={folder / 'run'}"]
    subprocess.run([*command, *flags], cwd=ROOT, env=environment, stdout=sys.stderr, check=True, timeout=600)
    return Trace(logs)


def num_crossed(windows: list[set[Crossed]]) -> int:
    """Return how many files, generated ones left out, the windows cross by their median."""
    files = ({crossed.file for crossed in window if not crossed.file.endswith(GENERATED)} for window in windows)
    return round(statistics.median(map(len, files)))


def show(name: str, windows: list[set[Crossed]]) -> None:
    """Print how many files the windows cross, and which: in how many of them, and at whom."""
    at: dict[str, set[str]] = defaultdict(set)
    for role, file in set().union(*windows):
        at[file].add(role)
    generated = {file for file in at if file.endswith(GENERATED)}
    files = [{crossed.file for crossed in window} - generated for window in windows]
    counts = Counter(file for window in files for file in window)
    by_role = ", ".join(f"{role} {sum(role in at[file] for file in counts)}" for role in ROLES.values())
    by_room = Counter(file.partition("/")[0] for file in counts)
    print(
        f"\n{name}: {len(counts)} files in any of {len(windows)} windows, median {statistics.median(map(len, files)):g}"
        f" ({by_role}); generated beside them {len(generated)}\n"
        f"  {', '.join(f'{room} {count}' for room, count in by_room.most_common())}"
    )
    for file in sorted(counts):
        print(f"  {counts[file]:3d}  {file:40s} {', '.join(sorted(at[file]))}")


def measure(folder: Path, num_windows: int = 20) -> dict[str, list[set[Crossed]]]:
    """Run the recipe in a folder; returns what each window crosses, by the window's kind."""
    trace = run(folder / "units", "--workers=1", "--plan=asp", "--set", "workload=400")
    found = [*pushes(trace)][WARM_UP:][: num_windows + 1]
    windows = {
        "push": [files_of_push(trace, push) for push in found[1:]],
        "unit": [files_of_unit(trace, *pair) for pair in zip(found[1:], found, strict=False)],
    }
    plan = "--plan=bsp:20%,asp:20%,bsp:20%,asp:20%,bsp:10%,asp"
    trace = run(folder / "switches", "--workers=2", plan, "--set", "workload=400")
    return windows | {"switch": [files_of_switch(trace, *times) for times in switches(trace)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=20, help="pushes and units that are looked at")
    parser.add_argument("--keep", help="a new folder for the logs; none keeps none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name, windows in measure(Path(given.keep or temporary), given.windows).items():
            show(name, windows)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
