"""The wall clock of every process jumps, again and again: it stamps the logs, and nothing waits by it."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests import shims
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import tally

SOURCE = Path(__file__).with_name("wallclock.c")
HOUR_SECS = 3600
JUMPS = (HOUR_SECS, -HOUR_SECS, 24 * HOUR_SECS, -24 * HOUR_SECS, 1, 0)

pytestmark = pytest.mark.timeout(300)


class WallClock:
    """The clock of processes that are started with its library; the test's own is left alone.

    Args:
      folder: for the library and what says how far the clock is off.
    """

    def __init__(self, folder: Path) -> None:
        self._shift = folder / "shift"
        self._shift.write_bytes(struct.pack("q", 0))
        self.environment = {
            "LD_PRELOAD": str(shims.build(SOURCE, folder)),
            "WALLCLOCK_SHIFT": str(self._shift),
        }

    def jump(self, secs: int) -> None:
        """Be `secs` off from now on."""
        with open(self._shift, "r+b") as file:
            file.write(struct.pack("q", secs * 10**9))


@pytest.fixture
def wall_clock(tmp_path: Path) -> Iterator[WallClock]:
    yield WallClock(tmp_path)


def the_wall_clock_jumps(workdir: Path, wall_clock: WallClock, monkeypatch, *, planted: str = "") -> Job:
    """Nobody is lost, nothing is rolled back, no phase breaks; the run's own time goes on as it did."""
    rng = random.Random(23)
    with monkeypatch.context() as patch:
        for name, value in wall_clock.environment.items():
            patch.setenv(name, value)
        job = tally(workdir, "--checkpoint_secs=1", plan="bsp:50%,asp", units=500, workers=2, planted=planted)
    with job:
        job.until_phase("bsp")
        told = len(job.events())
        wall_clock.jump(HOUR_SECS)
        job.until(lambda: len(job.events()) > told, "an event was stamped after the first jump")
        while job.process.poll() is None:
            wall_clock.jump(rng.choice(JUMPS))
            job.pause(rng.uniform(0.05, 0.5))
            lost = [event["reason"] for event in job.events("role_lost")]
            assert lost == [], f"lost by a jump: {lost}"
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert [event["reason"] for event in job.events("phase_entered")] == ["start", "planned"]
        assert job.tracebacks() == []
    return job


def test_a_run_whose_wall_clock_jumps_completes_and_loses_nobody(tmp_path: Path, wall_clock, monkeypatch) -> None:
    job = the_wall_clock_jumps(tmp_path / "run", wall_clock, monkeypatch)
    events = job.events()
    assert max(abs(b["wall"] - a["wall"]) for a, b in pairwise(events)) > HOUR_SECS / 2, "the clock did not jump"
    assert events[-1]["t"] < HOUR_SECS / 2
    assert all(a["t"] <= b["t"] for a, b in pairwise(events))


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_deadlines_that_go_by_the_wall_clock_are_found(tmp_path: Path, wall_clock, monkeypatch) -> None:
    with pytest.raises(AssertionError, match="lost by a jump"):
        the_wall_clock_jumps(tmp_path / "run", wall_clock, monkeypatch, planted="deadlines_by_the_wall_clock")
