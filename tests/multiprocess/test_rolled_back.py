"""A killed run's units since its last commit are counted as rolled back once, whoever is killed after that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hybridsync.storage.jsonl import read_lines
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import newest_pid, tally

pytestmark = pytest.mark.timeout(300)
LOST = 150


def start(workdir: Path, unit_secs: float = 0.02) -> Job:
    """Start or resume a run that commits at its start and its end only."""
    return tally(workdir, "--checkpoint_secs=600", plan="asp", units=1500, workers=2, unit_secs=unit_secs)


def until_it_applies(job: Job) -> None:
    """Wait until this session has logged units of its own, far fewer than the first one."""

    def applied() -> bool:
        phase = job.events("phase_entered")[-1]["phase"]
        lines = read_lines(job.workdir / "metrics.jsonl")
        return any(line["phase"] == phase and line["units"] > 0 for line in lines)

    job.until(lambda: any(e["kind"] == "phase_entered" for e in job.session_events()) and applied(), "it applied units")


def session_that_is_lost(workdir: Path) -> None:
    with start(workdir) as job:
        job.until_units(LOST)
        job.kill_everything()


def assert_lost_twice(job: Job, second: range) -> None:
    """Check a completed run that has gone back twice, first to unit 0, the second time from one of the counts `second`.

    A chief that took over in the moment between two phases may have committed what was applied by then.
    """
    assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    first, again = job.events("rollback")
    assert first["rolled_back"] >= LOST and first["to_units"] == 0
    assert again["rolled_back"] + again["to_units"] in second
    assert job.summary()["units"]["rolled_back"] == first["rolled_back"] + again["rolled_back"]


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_units_lost_before_a_resume_are_counted_though_its_chief_is_killed_and_then_everybody(tmp_path: Path) -> None:
    session_that_is_lost(tmp_path / "run")
    with start(tmp_path / "run", unit_secs=0.05) as job:
        until_it_applies(job)
        pid = newest_pid(job, "chief", 0)
        os.kill(pid, signal.SIGKILL)
        job.until_lost(pid)
        units = job.units()
        job.until(lambda: job.units() > units, "the next chief had logged more")
        job.kill_everything()
        units = job.units()
    with start(tmp_path / "run", unit_secs=0.0) as job:
        assert_lost_twice(job, range(units, units + 1))
