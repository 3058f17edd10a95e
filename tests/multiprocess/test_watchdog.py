"""A role whose work never ends is ended, by its own watchdog where it sends heartbeats, and replaced; nothing is lost.

Watchdogs and leases are shorter here than in production, in the same order (`planted_hangs.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.planted_hangs import FLOOR_SECS, LEASE_SECS, LIMITS
from tests.multiprocess.scenarios import newest_pid, tally, until_told

pytestmark = pytest.mark.timeout(300)


def assert_watchdog_told(job: Job, role: str, work: str, *frames: str) -> None:
    """Check that the role's log names the work, and then, once, the stacks of all threads."""
    _, stacks = re.split(f"the watchdog ends {role.replace('-', ' ')}: {work} has made no progress for ", job.log(role))
    assert f"its limit is {FLOOR_SECS:g} s. Stacks of all threads follow" in stacks
    for frame in ("in hang", *frames):
        assert frame in stacks, frame


def test_a_worker_that_hangs_where_nobody_waits_for_it_is_replaced(tmp_path: Path) -> None:
    planted = until_told("unit_17_hangs_once")
    with tally(tmp_path / "run", *LIMITS, plan="asp", units=3000, workers=2, unit_secs=0.05, planted=planted) as job:
        (lost,) = job.until(lambda: job.events("role_lost"), "a worker was lost")
        worker = lost["id"]
        told = f"exit 70: the watchdog ends worker {worker}: reading the data of a unit has made no progress for "
        assert lost["role"] == "worker" and lost["reason"].startswith(told)
        job.until(lambda: job.live_workers().get(worker, lost["pid"]) != lost["pid"], "another process had joined")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["dropped"] == 0
        assert [event["pid"] for event in job.events("role_lost")] == [lost["pid"]]
        assert_watchdog_told(job, f"worker-{worker}", "reading the data of a unit", "in gradient")


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_server_that_hangs_while_it_takes_over_a_state_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    planted = "a_hand_over_hangs_once"
    with tally(tmp_path / "run", *LIMITS, plan="bsp:25%,asp", units=400, workers=2, planted=planted) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        (lost,) = job.events("role_lost")
        told = "exit 70: the watchdog ends server 0: the state of phase 2 has made no progress for "
        assert lost["role"] == "server" and lost["reason"].startswith(told)
        assert newest_pid(job, "server", 0) != lost["pid"]
        assert_watchdog_told(job, "server-0", "the state of phase 2", "in fetch")


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_server_whose_update_hangs_sends_no_heartbeat_and_is_replaced_at_the_end_of_its_lease(tmp_path: Path) -> None:
    flags = ("--checkpoint_secs=1",)
    with tally(
        tmp_path / "run", *LIMITS, *flags, plan="asp", units=400, workers=2, planted="an_update_hangs_once"
    ) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        (lost,) = job.events("role_lost")
        assert (lost["role"], lost["reason"]) == ("server", f"no sign of life for {LEASE_SECS:g} s (hang.silent_secs)")
        assert newest_pid(job, "server", 0) != lost["pid"]
        lost_units = sum(event["rolled_back"] for event in job.events("rollback"))
        assert job.summary()["units"]["rolled_back"] == lost_units


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_chief_whose_save_hangs_is_replaced_and_the_phase_goes_on(tmp_path: Path) -> None:
    planted, flags = until_told("a_save_hangs_once"), ("--checkpoint_secs=1",)
    with tally(
        tmp_path / "run", *LIMITS, *flags, plan="asp", units=3000, workers=2, unit_secs=0.05, planted=planted
    ) as job:
        (lost,) = job.until(lambda: job.events("role_lost"), "the chief was lost")
        assert (lost["role"], lost["reason"]) == ("chief", "exit 70")
        job.until(lambda: len(job.events("checkpoint")) > 1, "another chief had saved")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert len(job.events("phase_entered")) == 1 and job.events("role_lost") == [lost]
        assert newest_pid(job, "chief", 0) != lost["pid"]
        assert_watchdog_told(job, "chief-0", r"the commit of \d+ units", "in commit")
