"""The benchmark of a unit's parts: each part has its own time, without that of the parts inside it."""

from __future__ import annotations

import json
import time

import pytest

from benchmarks import unit_parts
from benchmarks.unit_parts import FOLDER, SKIPPED, UNITS, Parts


class Clock:
    """Processor time that goes on only by `spend`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.secs = 0.0
        for name in ("thread_time", "process_time"):
            patch.setattr(time, name, lambda: self.secs)

    def spend(self, microseconds: float) -> None:
        self.secs += microseconds / 1e6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_part_inside_another_is_taken_off_it_and_the_rest_is_the_threads_own(clock, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(UNITS, "4")
    monkeypatch.setenv(SKIPPED, "2")

    class Worker:
        def unit(self) -> None:
            clock.spend(10)
            self.outer()

        def outer(self) -> None:
            clock.spend(20)
            self.inner()
            clock.spend(30)

        def inner(self) -> None:
            clock.spend(5)

    parts = Parts()
    parts.wrap(Worker, "inner", "inside")
    parts.wrap(Worker, "outer", "around")
    parts.count(Worker, "unit", "worker")
    worker = Worker()
    for _ in range(6):
        assert [*tmp_path.iterdir()] == []
        worker.unit()
    (path,) = tmp_path.glob("worker-*.json")
    found = json.loads(path.read_bytes())
    assert found == pytest.approx({"inside": 5, "around": 50, "own thread, rest": 10, "other threads, rest": 0})


def test_an_error_of_a_part_passes_and_its_time_counts(clock):
    class Link:
        def push(self) -> None:
            clock.spend(7)
            raise OSError("gone")

    parts = Parts()
    parts.wrap(Link, "push", "push")
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            Link().push()
    assert parts._now()["push"] == pytest.approx(14e-6)


def test_its_job_is_that_of_the_digits():
    config = unit_parts.config()
    assert config.workers == 4 and unit_parts.optimizer(config).learning_rate == config.optimizer.learning_rate
