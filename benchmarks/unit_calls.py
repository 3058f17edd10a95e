"""How many calls a unit takes in a worker and in a server: `python -m benchmarks.unit_calls`, by packages.

A whole `hybridsync train` job of plan `asp` on the digits, whose roles are the real processes. This file is its
configuration too: as each role builds its task, the threads of its units are given a `sys.setprofile` that counts calls
of Python functions and of C functions for --units units, behind the first hundred. A C call counts for the package that
makes it. Types that are called (`np.ndarray(...)`) are seen by no profile. What is counted is slow, so no rate is told.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import ROOT, Row, load, report, train
from hybridsync.config import RunConfig, load_config

if TYPE_CHECKING:
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task

FOLDER, UNITS = "UNIT_CALLS_FOLDER", "UNIT_CALLS_UNITS"
"""Environment variables: where counts are left, and of how many units."""
SKIPPED = 100
_RECIPE = load_config(ROOT / "configs" / "digits_mlp.py")


def config() -> RunConfig:
    """Return the run: that of the digits."""
    return _RECIPE.config


def task(config: RunConfig) -> Task:
    """Return the task, and count from now on in the process that asks for it."""
    from hybridsync.transport.shared_memory.service import Session
    from hybridsync.worker.context import WorkerContext

    if FOLDER in os.environ:
        _count_behind(WorkerContext, "gradient", "worker")
        _count_behind(Session, "answer_next", "server")
    return _RECIPE.module.task(config)


def optimizer(config: RunConfig) -> Optimizer:
    """Return the optimizer of the digits."""
    return _RECIPE.module.optimizer(config)


def layer(frame: FrameType) -> str:
    """Return the package that a frame's code belongs to."""
    path = frame.f_code.co_filename
    for root in ("/hybridsync/", "/site-packages/"):
        _, found, below = path.rpartition(root)
        if found:
            return below.partition("/")[0]
    return "python"


class Calls:
    """Counts the calls of one thread."""

    def __init__(self, role: str) -> None:
        self._role, self._units, self._counts = role, 0, Counter[str]()

    def unit(self) -> None:
        """Note that a unit begins."""
        self._units += 1
        counted = int(os.environ[UNITS])
        if self._units == SKIPPED:
            sys.setprofile(self._seen)
        elif self._units == SKIPPED + counted:
            sys.setprofile(None)
            made = {name: count / counted for name, count in self._counts.items()}
            path = Path(os.environ[FOLDER]) / f"{self._role}-{os.getpid()}-{threading.get_ident()}.json"
            path.write_text(json.dumps(made), encoding="utf-8")

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            self._counts[f"{layer(frame)} {event}"] += 1


def _count_behind(kind: type, name: str, role: str) -> None:
    """Have a method count a unit of its thread at each call."""
    original: Callable[..., Any] = getattr(kind, name)
    of_thread = threading.local()

    @functools.wraps(original)
    def counted(*arguments: Any, **named: Any) -> Any:
        if not hasattr(of_thread, "calls"):
            of_thread.calls = Calls(role)
        of_thread.calls.unit()
        return original(*arguments, **named)

    setattr(kind, name, counted)


def mean(counts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the mean of several threads' counts.

    >>> mean([{"worker call": 3.0}, {"worker call": 5.0, "core call": 2.0}])
    {'worker call': 4.0, 'core call': 1.0}
    """
    found = [*counts]
    names = dict.fromkeys(name for each in found for name in each)
    return {name: sum(each.get(name, 0.0) for each in found) / len(found) for name in names}


def main() -> None:
    """Run the job and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=100)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {FOLDER: folder, UNITS: str(options.units)}
        flags = ["--workers=4", "--plan=asp", "--compute_secs=0.02"]
        sizes = ["--set", f"workload={5 * (SKIPPED + options.units)}", "--set", "unit_size=32"]
        train(Path(folder) / "run", *flags, *sizes, config=__file__)
        for role in ("worker", "server"):
            counts = [json.loads(path.read_bytes()) for path in Path(folder).glob(f"{role}-*.json")]
            found = mean(counts)
            for kind, title in (("call", "Python functions"), ("c_call", "C functions")):
                of_kind = {name.rpartition(" ")[0]: each for name, each in found.items() if name.endswith(f" {kind}")}
                rows.append(Row(f"{role}: {title}", sum(of_kind.values()), "calls", load=load()))
                ordered = sorted(of_kind.items(), key=lambda pair: -pair[1])
                rows += [Row(f"  {name}", each, "calls", load=load()) for name, each in ordered if each >= 0.5]
    report("Calls of a unit", rows, units=options.units)


if __name__ == "__main__":
    main()
