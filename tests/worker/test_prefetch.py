"""Data that are read while the unit before is computed: the same batches, one reader at a time, errors where due."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen

from hybridsync import Task, Trainer
from hybridsync.core.activity import follow
from hybridsync.data import IndexedSource
from hybridsync.losses import cross_entropy
from hybridsync.worker.prefetch import Prefetch
from tests.tasks import momentum_sgd
from tests.trainers import NEVER

WAIT_SECS = 30.0


class Reader:
    """Reads numbers, and notes which, and how many threads did at a time."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.may_read = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0
        self.wrong: dict[int, BaseException] = {}

    def __call__(self, unit: int) -> dict[str, Any]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.began.release()
        assert self.may_read.acquire(timeout=WAIT_SECS)
        self.at_once -= 1
        self.read.append(unit)
        if unit in self.wrong:
            raise self.wrong[unit]
        return {"x": unit}


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_the_next_unit_is_read_before_it_is_asked_for(reader: Reader) -> None:
    prefetch = Prefetch(reader)
    reader.may_read.release(2)
    assert prefetch.take(3, lambda: 7) == {"x": 3}
    for _ in range(2):
        assert reader.began.acquire(timeout=WAIT_SECS)
    assert prefetch.take(7, lambda: None) == {"x": 7}
    assert reader.read == [3, 7]


def test_a_unit_that_comes_in_its_place_is_read_after_it_by_one_reader_at_a_time(reader: Reader) -> None:
    prefetch = Prefetch(reader)
    reader.wrong[7] = ValueError("nobody asked for it")
    reader.may_read.release(3)
    assert prefetch.take(3, lambda: 7) == {"x": 3}
    assert prefetch.take(8, lambda: None) == {"x": 8}
    assert reader.read == [3, 7, 8] and reader.most_at_once == 1


def test_an_error_is_raised_where_its_unit_is_asked_for_and_the_next_is_read_anew(reader: Reader) -> None:
    prefetch = Prefetch(reader)
    reader.wrong[4] = ValueError("unit 4 is damaged")
    reader.may_read.release(4)
    prefetch.take(3, lambda: 4)
    with pytest.raises(ValueError, match="unit 4 is damaged"):
        prefetch.take(4, lambda: 5)
    assert prefetch.take(5, lambda: None) == {"x": 5}


def test_a_worker_that_waits_for_its_data_reads(reader: Reader) -> None:
    noted: list[str] = []
    waits = threading.Event()

    class Noting:
        def reading(self) -> None:
            noted.append("reading")
            waits.set()

        def has_read(self) -> None:
            noted.append("has read")

        def compiling(self) -> None:
            raise AssertionError("nothing is compiled")

    prefetch = Prefetch(reader)
    reader.may_read.release()
    prefetch.take(0, lambda: 1)
    noted.clear()
    found: list[Any] = []

    def work() -> None:
        follow(Noting())
        found.append(prefetch.take(1, lambda: None))

    worker = threading.Thread(target=work)
    worker.start()
    assert waits.wait(WAIT_SECS) and noted == ["reading"]
    reader.may_read.release()
    worker.join(WAIT_SECS)
    assert found == [{"x": 1}] and noted == ["reading", "has read"]


def test_its_thread_ends_with_the_worker(reader: Reader) -> None:
    prefetch = Prefetch(reader)
    before = set(threading.enumerate())
    reader.may_read.release(2)
    prefetch.take(0, lambda: 1)
    prefetch.take(1, lambda: None)
    (thread,) = set(threading.enumerate()) - before
    del prefetch
    gc.collect()
    thread.join(WAIT_SECS)
    assert not thread.is_alive()


class Examples:
    """Counts how often an example is read, and by which threads."""

    def __init__(self) -> None:
        self._x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        self.readers: set[str] = set()

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.readers.add(threading.current_thread().name)
        return {"image": self._x[index], "label": np.int32(self._x[index].sum() > 0)}


@pytest.mark.parametrize("plan", ["bsp", "asp", "preduce", "diloco"])
def test_every_kind_of_engine_reads_ahead_and_trains_on_the_same_units(plan: str) -> None:
    found = []
    for threads in (0, 1, 3):
        examples = Examples()
        source = IndexedSource(examples, fingerprint="examples", threads=threads)
        task = Task.from_linen(linen.Dense(2), source, cross_entropy)
        trainer = Trainer(
            task, momentum_sgd(0.05), workload=24, unit_size=8, workers=1, plan=plan, checkpoint=NEVER, progress=False
        )
        found.append(trainer.fit().state.params)
        readers = {name for name in examples.readers if name.startswith(("prefetch", "read"))}
        assert {"read" if name.startswith("read") else name for name in readers} == [set(), {"prefetch"}, {"read"}][
            min(threads, 2)
        ]
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)
