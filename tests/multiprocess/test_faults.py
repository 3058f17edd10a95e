"""What a job survives: processes killed, stopped and asked to stop, on the tally, which counts every unit.

The stories are in scenarios.py. `test_the_story_fails_where_a_bug_is_planted` shows of each that it can fail.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.multiprocess import scenarios
from tests.multiprocess.job import STUCK_SECS, Stuck, assert_exactly_once

pytestmark = pytest.mark.timeout(600)


def test_workers_killed_under_asp_cost_nobody_else_a_pause_and_join_the_next_mesh(tmp_path: Path) -> None:
    scenarios.workers_are_killed_under_asp(tmp_path / "run")


def test_a_run_that_was_killed_whole_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    scenarios.everything_is_killed_and_resumed(tmp_path / "run")


def test_sigterm_saves_exits_75_and_the_same_command_completes(tmp_path: Path) -> None:
    scenarios.sigterm_saves_and_the_same_command_completes(tmp_path / "run")


def test_a_worker_stopped_beyond_its_lease_is_replaced_and_its_units_are_done_by_others(tmp_path: Path) -> None:
    scenarios.a_worker_is_stopped_beyond_its_lease(tmp_path / "run")


def test_a_worker_killed_in_lock_step_ends_the_run_with_one_message_and_the_same_command_completes(
    tmp_path: Path,
) -> None:
    def start():
        return scenarios.tally(tmp_path / "run", plan="asp:25%,bsp", units=400, workers=3)

    with start() as job:
        job.until_phase("bsp")
        job.kill_worker(2)
        assert job.wait() == 70, job.output + job.logs()
        errors = [line for line in job.output.splitlines() if line.startswith("error:")]
        assert len(errors) == 1 and "worker 2 was lost (signal SIGKILL) in a lock-step phase" in errors[0]
        assert "run the same command again" in errors[0]
        assert "Traceback" not in job.output
        assert job.summary()["exit"] == "failed" and "worker 2" in job.summary()["error"]
    with start() as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] > 0


@pytest.mark.soak
def test_a_worker_killed_before_the_run_began_ends_it_with_one_message(tmp_path: Path) -> None:
    with scenarios.tally(tmp_path / "run", plan="asp", units=40) as job:
        children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
        pids = job.until(lambda: (found := children.read_text().split())[5:] and found, "every role was started")
        os.kill(int(pids[3]), signal.SIGKILL)  # chief, server, worker 0, worker 1
        assert job.wait() == 70, job.output + job.logs()
        errors = [line for line in job.output.splitlines() if line.startswith("error:")]
        assert errors == [
            "error: worker 1 was lost (signal SIGKILL) before the run began; run the same command again"
        ]
    with scenarios.tally(tmp_path / "run", plan="asp", units=40) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())


def test_a_second_sigterm_ends_the_run_at_once_and_the_same_command_completes(tmp_path: Path) -> None:
    scenarios.a_second_sigterm_ends_the_run_at_once(tmp_path / "run")


STILL_SECS = 8.0
"""When a job that ought to go on counts as stuck: an asynchronous phase waits for no new process."""


def killed_workers(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.workers_are_killed_under_asp(
        workdir, plan="asp", units=600, workers=3, victims=(1,), planted=planted, stuck_secs=stuck_secs
    )


def stopped_worker(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.a_worker_is_stopped_beyond_its_lease(
        workdir, plan="asp", units=300, workers=2, victim=1, planted=planted, stuck_secs=stuck_secs
    )


def killed_run(workdir: Path, planted: str) -> None:
    scenarios.everything_is_killed_and_resumed(workdir, planted=planted, workers=2)


def preempted_run(workdir: Path, planted: str) -> None:
    scenarios.sigterm_saves_and_the_same_command_completes(
        workdir, plan="asp", units=300, workers=1, planted=planted
    )


def stopped_at_once(workdir: Path, planted: str) -> None:
    scenarios.a_second_sigterm_ends_the_run_at_once(workdir, workers=1, planted=planted)


PLANTED = [
    (killed_workers, "server_forgets_what_it_applied", AssertionError, "'max_count': 2"),
    (killed_workers, "units_of_the_lost_stay_leased", Stuck, r"the job stands at (?!600 )\d+ units"),
    (killed_run, "ledger_outruns_the_state", AssertionError, "'min_count': 0"),
    (preempted_run, "preemption_saves_nothing", AssertionError, "a preempted run lost units"),
    (stopped_at_once, "only_the_first_signal_counts", AssertionError, r"the job stands at \d+ units"),
    (stopped_worker, "units_of_the_lost_stay_leased", Stuck, r"the job stands at (?!300 )\d+ units"),
]


@pytest.mark.parametrize(
    ("story", "bug", "error", "sign"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in PLANTED],
)
def test_the_story_fails_where_a_bug_is_planted(
    tmp_path: Path, story: Callable[..., None], bug: str, error: type[AssertionError], sign: str
) -> None:
    patience = {"stuck_secs": STILL_SECS} if error is Stuck else {}
    with pytest.raises(AssertionError) as caught:
        story(tmp_path / "run", bug, **patience)
    assert type(caught.value) is error
    assert re.search(sign, str(caught.value))


@pytest.mark.soak
def test_a_unit_of_a_lost_worker_that_is_pushed_again_is_applied_once(tmp_path: Path) -> None:
    killed_workers(tmp_path / "run", "server_reports_late")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plan", ["asp", scenarios.MIXED])
def test_ten_worker_kills_and_five_kills_of_everything_leave_every_unit_applied_once(
    tmp_path: Path, plan: str
) -> None:
    scenarios.faults_at_random(tmp_path / "run", plan=plan, lives=5, kills=2, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_sigterm_at_any_time_saves_or_has_nothing_to_save(tmp_path: Path) -> None:
    codes = []
    for life in range(12):
        with scenarios.tally(tmp_path / "run", plan="bsp:50%,asp", units=3000, unit_secs=0.02) as job:
            job.pause(0.5 + 0.75 * life)
            job.send(signal.SIGTERM)
            codes.append(job.wait())
    assert set(codes) == {75}
    with scenarios.tally(tmp_path / "run", plan="bsp:50%,asp", units=3000, unit_secs=0.0) as job:
        assert job.wait() == 0
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0


@pytest.mark.soak
def test_the_wait_for_a_worker_that_stays_stopped_is_told_and_ended_by_sigterm(tmp_path: Path) -> None:
    """A stopped process cannot be replaced while it lives, and a lock-step phase needs it."""
    with scenarios.tally(tmp_path / "run", plan="asp:50%,bsp", units=400) as job:
        job.until_units(50)
        pid = job.kill_worker(0, signal.SIGSTOP)
        job.until_lost(pid)
        job.until_units(200)
        job.until(lambda: "waiting: workers [0] have not registered" in job.screen(), "it said for whom it waits")
        job.send(signal.SIGTERM)
        assert job.wait(secs=30.0) == 75, job.output + job.logs()
        assert scenarios.gone(pid, secs=5.0), "the stopped process was left behind"
        assert job.summary()["units"]["applied"] == 200
    with scenarios.tally(tmp_path / "run", plan="asp:50%,bsp", units=400) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
