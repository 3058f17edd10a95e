"""What a run survives when the chief is lost together with others: the next one has to find out about them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import SOON, gone, newest_pid, tally, until_told
from tests.sweeps import swept

pytestmark = pytest.mark.timeout(300)


def asynchronous(workdir: Path) -> Job:
    """Start a run that commits at its start and its end only, and takes its time until it is told to hurry."""
    save = "--checkpoint_secs=600"
    return tally(workdir, save, *SOON, plan="asp", units=600, workers=2, unit_secs=0.05, planted=until_told())


def test_a_worker_that_was_stopped_before_the_chief_was_killed_is_replaced(tmp_path: Path) -> None:
    with asynchronous(tmp_path / "run") as job:
        job.until_units(100)
        stopped = newest_pid(job, "worker", 1)
        os.kill(stopped, signal.SIGSTOP)
        os.kill(newest_pid(job, "chief", 0), signal.SIGKILL)
        lost = job.until_lost(stopped)
        assert lost["reason"].endswith("since the chief was restarted (hang.silent_secs)")
        assert gone(stopped), "the stopped process was left behind"
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert job.tracebacks() == []


@pytest.mark.parametrize(
    "others", swept([["server-0", "worker-0", "worker-1"], ["server-0"]]), ids=["everybody", "server"]
)
def test_units_that_were_lost_with_chief_and_server_are_accounted_for(tmp_path: Path, others: list[str]) -> None:
    with asynchronous(tmp_path / "run") as job:
        job.until_units(150)
        pids = [newest_pid(job, role, int(number)) for role, _, number in (name.partition("-") for name in others)]
        for pid in (newest_pid(job, "chief", 0), *pids):
            os.kill(pid, signal.SIGKILL)
        known = job.units()
        for pid in pids:
            job.until_lost(pid)  # the next chief may hear of it a second later
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        (rollback,) = job.events("rollback")
        assert rollback["to_units"] == 0 and rollback["rolled_back"] >= known
        assert job.summary()["units"]["rolled_back"] == rollback["rolled_back"]
        assert job.tracebacks() == []
