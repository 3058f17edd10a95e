"""A worker whose own code never returns, in processes: its heartbeat goes on, and the run does too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import SOON
from tests.sweeps import swept

pytestmark = pytest.mark.timeout(300)
CONFIG = "tests/multiprocess/hanging.py"
LATE_SECS = 20.0
"""How much longer than its limit a worker may live: reports are a second old, and the machine may be slow."""


WAITING = (
    *("bsp", "bsp_server", "backup(m=3)", "dssp(lower=1,range=2)", "hsp", "localsgd(steps=5)"),
    "psplus(staleness=1,modulation=schedule)",
    "diloco(steps=5,outer_rate=1.0,outer_momentum=0.0,scale=3.0)",  # as it has to be for the tally to count
    *("preduce", "preduce(groups=arrival)", "adpsgd"),
)


def given_up(job: Job) -> list[dict[str, Any]]:
    """Return the workers that the chief has given up; what their supervisors say of them is another event."""
    return [event for event in job.events("role_lost") if not event["reason"].startswith(("signal", "exit"))]


def given_up_hanging(job: Job, tmp_path: Path) -> dict[str, Any]:
    """Return the loss of the worker that hangs; where the machine is busy, another one may be given up besides."""
    (event,) = [event for event in given_up(job) if event["pid"] == int((tmp_path / "flag").read_text())]
    return event


def job_of(tmp_path: Path, plan: str, *more: str) -> Job:
    flags = [f"--plan={plan}", "--compute_secs=0.01", f"--set=model.flag={tmp_path / 'flag'}", *SOON, *more]
    return Job(tmp_path / "run", CONFIG, *flags)


@pytest.mark.parametrize("plan", swept(["ssp(staleness=2)", *WAITING]))
def test_a_worker_that_hangs_while_others_wait_is_named_ended_and_replaced(tmp_path: Path, plan: str) -> None:
    with job_of(tmp_path, plan) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        event = given_up_hanging(job, tmp_path)
        (limit,) = re.findall(r"(\d[\d.]*) s\b", event["reason"])
        assert event["role"] == "worker" and f"worker {event['id']} " in event["reason"] and float(limit) == 4.0
        lived = event["wall"] - (tmp_path / "flag").stat().st_mtime
        print(f"{plan}: given up {lived:.2f} s after it hung: {event['reason']}")
        assert 4.0 < lived < float(limit) + LATE_SECS
        assert job.tracebacks() == []


@pytest.mark.parametrize("plan", swept(["asp", "gba", "backup(m=2)"], 0))
def test_a_worker_that_nobody_waits_for_is_left_alone_and_its_units_go_to_others(tmp_path: Path, plan: str) -> None:
    # Sooner than the limit: under backup a phase's last push may wait for the worker that hangs, which is a reason.
    with job_of(tmp_path, plan, "--set=drain_secs=1") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert given_up(job) == []
        assert "are given to others too" in job.output


@pytest.mark.soak
def test_lock_step_does_not_wait_for_a_worker_that_hangs_in_the_phase_before(tmp_path: Path) -> None:
    with job_of(tmp_path, "asp:60%,bsp", "--set=drain_secs=3") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        event = given_up_hanging(job, tmp_path)
        assert f"worker {event['id']} has been reading the data of one unit" in event["reason"]


@pytest.mark.parametrize("plan", swept(["ssp(staleness=2)", *WAITING], 0))
def test_a_worker_that_becomes_thirty_times_slower_is_kept(tmp_path: Path, plan: str) -> None:
    with job_of(tmp_path, plan, "--set=model.secs=0.3", "--set=workload=400") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert (tmp_path / "flag").exists() and not job.events("role_lost")
