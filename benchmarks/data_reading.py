"""What reading data costs a unit: `python -m benchmarks.data_reading [hidden] [huggingface]`.

*hidden*: one worker with an emulated device of 20 ms a unit trains on a data set that takes 5 ms a unit, read ahead
(`threads=1`) and when it is needed (`threads=0`), and on the same data without the 5 ms, in turns. Hidden is what the
worker does not wait for: the median of its waits for a unit's data, beside the median of the reads. Medians, because a
busy machine moves them less than means. The times of whole units are shown too, and hold on a quiet machine alone.

*huggingface*: milliseconds that `IndexedSource` takes for a unit of 16 examples of a Hugging Face data set, row by row
and by `__getitems__`, as it is and `with_format("numpy")`. Processor time of the thread, medians of turns. It needs the
package `datasets`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax
from flax import nnx

from benchmarks.jobs import Row, load, report
from hybridsync.config import EmulationConfig
from hybridsync.core.clock import pause
from hybridsync.data import IndexedSource
from hybridsync.trainer import Trainer
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.task import Task
from hybridsync.worker.prefetch import Prefetch

READ_SECS, COMPUTE_SECS, SKIPPED = 0.005, 0.02, 10
UNIT_SIZE = 16


class Examples:
    """A data set whose reads take a while, as a disk's do, and are timed.

    Args:
      secs: seconds of each read.
    """

    def __init__(self, secs: float) -> None:
        self._secs, self.begun, self.read = secs, list[float](), list[float]()

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.full(8, index % 2, np.float32), "label": index % 2}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        self.begun.append(time.perf_counter())
        if self._secs:
            pause(self._secs)
        examples = [self[index] for index in indices]
        self.read.append(time.perf_counter() - self.begun[-1])
        return examples


class Rows:
    """A data set that is read row by row: it hides `__getitems__`."""

    def __init__(self, examples: Any) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Any:
        return self._examples[index]


@contextlib.contextmanager
def timed_waits() -> Iterator[list[float]]:
    """Time how long a worker waits for each unit that is read ahead."""
    take, waits = Prefetch.take, list[float]()

    def timed(self: Prefetch, unit: int, ahead: Callable[[], int | None]) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            return take(self, unit, ahead)
        finally:
            waits.append(time.perf_counter() - began)

    Prefetch.take = timed
    try:
        yield waits
    finally:
        Prefetch.take = take


class Times(NamedTuple):
    """Medians of a run, in seconds: of whole units, of the reads, and of the worker's waits for them."""

    unit: float
    read: float
    wait: float


def times_of(read_secs: float, threads: int, units: int) -> Times:
    """Return the times of a run with one worker."""
    examples = Examples(read_secs)
    source = IndexedSource(examples, fingerprint="stamped", threads=threads)
    task = Task.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs), source)
    with timed_waits() as waits:
        Trainer(
            task,
            Optimizer(optax.sgd, learning_rate=0.1),
            workload=units,
            unit_size=UNIT_SIZE,
            workers=1,
            plan="bsp",
            emulation=EmulationConfig(compute_secs=COMPUTE_SECS),
            progress=False,
        ).fit()
    begun = examples.begun[-units + SKIPPED :]
    unit = statistics.median(later - earlier for earlier, later in itertools.pairwise(begun))
    read = statistics.median(examples.read[-units + SKIPPED :])
    return Times(unit, read, statistics.median(waits[SKIPPED:]) if waits else read)


def hidden(turns: int, units: int) -> list[Row]:
    """Measure how much of the reads is hidden."""
    kinds = {"no read": (0.0, 1), "read ahead": (READ_SECS, 1), "read when needed": (READ_SECS, 0)}
    found: dict[str, list[Times]] = {name: [] for name in kinds}
    for _ in range(turns):
        for name, (secs, threads) in kinds.items():
            found[name].append(times_of(secs, threads, units))
    rows = [
        Row(f"{name}: {what}", 1e3 * statistics.median(getattr(each, what) for each in times), "ms", load=load())
        for name, times in found.items()
        for what in Times._fields
    ]
    share = statistics.median(1 - each.wait / each.read for each in found["read ahead"])
    return [*rows, Row("hidden of 5 ms beside 20 ms", 100 * share, "%", ">=", 95, load())]


def huggingface(turns: int, units: int) -> list[Row]:
    """Measure the processor time of a unit of a Hugging Face data set."""
    import datasets  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    kinds = {"images 28 x 28": rng.random((4096, 28, 28), np.float32), "64 tokens": rng.integers(256, size=(4096, 64))}
    rows = []
    for kind, column in kinds.items():
        plain = datasets.Dataset.from_dict({"input": column, "label": rng.integers(10, size=4096)})
        for form, examples in (("", plain), (", numpy", plain.with_format("numpy"))):
            for how, split in (("rows", Rows(examples)), ("__getitems__", examples)):
                source = IndexedSource(split, fingerprint="measured")
                secs = []
                for turn in range(turns):
                    began = time.thread_time()
                    for unit in range(turn * units, (turn + 1) * units):
                        source.batch(unit, unit_size=UNIT_SIZE, seed=0)
                    secs.append((time.thread_time() - began) / units)
                rows.append(Row(f"{kind}{form}, {how}: a unit of 16", 1e3 * statistics.median(secs), "ms", load=load()))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"hidden": hidden, "huggingface": huggingface}
    parser.add_argument("parts", nargs="*", default=["hidden"], help=f"of {', '.join(parts)}")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--units", type=int, default=60, help="in each turn")
    options = parser.parse_args()
    rows = [row for part in options.parts for row in parts[part](options.turns, options.units)]
    report("Reading data", rows, units=options.units, turns=options.turns)


if __name__ == "__main__":
    main()
