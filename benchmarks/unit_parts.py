"""Where a unit's processor time goes: `python -m benchmarks.unit_parts`, microseconds by role and part.

Whole `hybridsync train` jobs on the digits, whose roles are the real processes, at 85,002 and about 25 M parameters.
This file is their configuration too: as each role builds its task, the parts of its units are wrapped, and their
`time.thread_time` is summed for --units units, behind those that compile. A part that another one calls is taken off
it. "own thread, rest" is the engine with all that has no name here, "other threads" whatever else the process
does. In lock-step a unit is a worker's step. The waits count what the kernel takes to sleep and to wake.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import ROOT, Row, load, report, train
from benchmarks.unit_calls import mean
from hybridsync.config import RunConfig, load_config

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task

FOLDER, UNITS, SKIPPED = "UNIT_PARTS_FOLDER", "UNIT_PARTS_UNITS", "UNIT_PARTS_SKIPPED"
"""Environment variables: where times are left, of how many units, and behind how many of a thread."""
SIZES = {"85 k": ("(256, 256)", 1.0), "25 M": ("(4960, 4960)", 0.01)}
"""Hidden layers, and the share of --units that is measured."""
_RECIPE = load_config(ROOT / "configs" / "digits_mlp.py")


def config() -> RunConfig:
    """Return the run: that of the digits."""
    return _RECIPE.config


def task(config: RunConfig) -> Task:
    """Return the task, and measure from now on in the process that asks for it."""
    if FOLDER in os.environ:
        _measure()
    return _RECIPE.module.task(config)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer of the digits."""
    return _RECIPE.module.optimizer(config)


class Parts:
    """Sums the processor time of one process by parts; each thread has a sum of its own, so nothing is locked."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._sums: list[defaultdict[str, float]] = []
        self._units = itertools.count()  # of all threads; a server has one for each worker

    def wrap(self, kind: type, name: str, part: str) -> None:
        """Have a method's time, without that of wrapped ones that it calls, count for `part`."""
        original: Callable[..., Any] = getattr(kind, name)

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            mine = self._of_thread
            if not hasattr(mine, "sums"):
                mine.sums, mine.inner = defaultdict[str, float](float), 0.0
                self._sums.append(mine.sums)
            outer, mine.inner = mine.inner, 0.0
            began = time.thread_time()
            try:
                return original(*arguments, **named)
            finally:
                taken = time.thread_time() - began
                mine.sums[part] += taken - mine.inner
                mine.inner = outer + taken

        setattr(kind, name, timed)

    def count(self, kind: type, name: str, role: str) -> None:
        """Have each call of a method begin a unit of its thread, and leave the times once enough are counted."""
        original: Callable[..., Any] = getattr(kind, name)
        counted, skipped = int(os.environ[UNITS]), int(os.environ[SKIPPED])

        @functools.wraps(original)
        def noted(*arguments: Any, **named: Any) -> Any:
            mine = self._of_thread
            mine.units, begun = getattr(mine, "units", 0) + 1, next(self._units)
            if mine.units == skipped:
                mine.before, mine.begun = self._now(), begun
            elif mine.units == skipped + counted:
                after, made = self._now(), begun - mine.begun
                found = {part: 1e6 * (after[part] - mine.before[part]) / made for part in after}
                path = Path(os.environ[FOLDER]) / f"{role}-{os.getpid()}-{threading.get_ident()}.json"
                path.write_text(json.dumps(found), encoding="utf-8")
            return original(*arguments, **named)

        setattr(kind, name, noted)

    def _now(self) -> defaultdict[str, float]:
        """Return the sums of all threads so far, with what the calling thread and all others took besides."""
        own, everything = time.thread_time(), time.process_time()
        found = defaultdict[str, float](float)
        for sums in self._sums:
            for part, secs in [*sums.items()]:
                found[part] += secs
        named = sum(getattr(self._of_thread, "sums", {}).values())
        others = sum(found.values()) - named
        found["own thread, rest"] = own - named
        found["other threads, rest"] = everything - own - others
        return found


def _measure() -> None:
    from hybridsync.collectives.packing import FlatContributions
    from hybridsync.collectives.shared_memory.communicator import SharedMemoryCommunicator
    from hybridsync.collectives.shared_memory.rounds import Rounds
    from hybridsync.training.compiled_programs import Programs
    from hybridsync.transport.packed_link import PackedLink
    from hybridsync.transport.shared_memory.service import Session
    from hybridsync.worker.context import ProgramNumerics, WorkerContext
    from hybridsync.worker.replica import Replica
    from hybridsync.worker.stats import WorkerRecorder

    parts = Parts()
    for kind, name, part in (
        (Programs, "batch", "batch"),
        (WorkerContext, "gradient", "gradient"),
        (ProgramNumerics, "non_finite", "finite check"),
        (ProgramNumerics, "loss", "telemetry"),
        (FlatContributions, "split", "pack"),
        (SharedMemoryCommunicator, "sum", "sum"),
        (Rounds, "reach", "waits and wake-ups"),
        (Rounds, "await_peers", "waits and wake-ups"),
        (Replica, "update", "update"),
        (PackedLink, "prepare", "pack"),
        (PackedLink, "_staged", "pack"),
        (PackedLink, "push_pull", "push"),
        (PackedLink, "pull", "pull"),
        (WorkerContext, "lease", "leases"),
        (WorkerRecorder, "computing", "telemetry"),
        (WorkerRecorder, "compute", "telemetry"),
        (WorkerRecorder, "wait", "telemetry"),
        (WorkerRecorder, "step", "telemetry"),
        (WorkerRecorder, "moved", "telemetry"),
        (WorkerRecorder, "record_outcome", "telemetry"),
        (WorkerRecorder, "take_report", "telemetry"),
        (Session, "answer_next", "answers"),
        (Programs, "update", "update"),
    ):
        parts.wrap(kind, name, part)
    parts.count(WorkerContext, "gradient", "worker")
    parts.count(Session, "answer_next", "server")


def measured(plan: str, hidden: str, units: int, skipped: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of a unit by role and part."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {FOLDER: folder, UNITS: str(units), SKIPPED: str(skipped)}
        values = {"workload": 6 * (skipped + units), "unit_size": 32, "model.hidden": hidden}
        sizes = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        train(Path(folder) / "run", "--workers=4", f"--plan={plan}", *sizes, config=__file__)
        counts = {
            role: [json.loads(path.read_bytes()) for path in Path(folder).glob(f"{role}-*.json")]
            for role in ("worker", "server")
        }
    return {role: mean(found) for role, found in counts.items() if found}


def main() -> None:
    """Run the jobs and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=2000, help="of each worker, at 85 k parameters")
    parser.add_argument("--sizes", default=",".join(SIZES), help="which of 85 k and 25 M")
    options = parser.parse_args()
    rows = []
    for size in options.sizes.split(","):
        hidden, share = SIZES[size]
        units = max(5, round(share * options.units))
        for plan in ("bsp", "asp"):
            for role, parts in measured(plan, hidden, units, min(100, units)).items():
                title = f"{plan}, {size}, {role}"
                rows.append(Row(f"{title}: all", sum(parts.values()), "us", load=load()))
                ordered = sorted(parts.items(), key=lambda pair: -pair[1])
                rows += [Row(f"{title}: {part}", each, "us", load=load()) for part, each in ordered if each >= 0.5]
    report("Processor time of a unit by its parts", rows, units=options.units)


if __name__ == "__main__":
    main()
