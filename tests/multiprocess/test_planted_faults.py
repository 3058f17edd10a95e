"""The stories of test_faults.py, each with a bug planted that it has to find."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.multiprocess import scenarios
from tests.multiprocess.job import STUCK_SECS, Stuck
from tests.sweeps import swept

pytestmark = pytest.mark.timeout(600)

STILL_SECS = 8.0
"""When a job that ought to go on counts as stuck: an asynchronous phase waits for no new process."""


def killed_workers(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.workers_are_killed_under_asp(
        workdir, plan="asp", units=1200, workers=3, victims=(1,), planted=planted, stuck_secs=stuck_secs
    )


def stopped_worker(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.a_worker_is_stopped_beyond_its_lease(
        workdir, plan="asp", workers=2, victim=1, planted=planted, stuck_secs=stuck_secs
    )


def killed_run(workdir: Path, planted: str) -> None:
    scenarios.everything_is_killed_and_resumed(workdir, planted=planted, workers=2)


def preempted_run(workdir: Path, planted: str) -> None:
    scenarios.sigterm_saves_and_the_same_command_completes(workdir, plan="asp", units=300, workers=1, planted=planted)


def stopped_at_once(workdir: Path, planted: str) -> None:
    scenarios.a_second_sigterm_ends_the_run_at_once(workdir, workers=1, planted=planted)


def lost_member(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.members_are_lost_in_lock_step(workdir, workers=2, victims=(1,), planted=planted, stuck_secs=stuck_secs)


def killed_chief(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.the_chief_is_killed(workdir, units=500, workers=2, planted=planted, stuck_secs=stuck_secs)


def killed_server(workdir: Path, planted: str, stuck_secs: float = STUCK_SECS) -> None:
    scenarios.a_server_is_killed(workdir, units=400, workers=2, planted=planted, stuck_secs=stuck_secs)


PLANTED = [
    (killed_workers, "server_forgets_what_it_applied", AssertionError, "'max_count': 2"),
    (lost_member, "survivors_forget_the_newest_state", AssertionError, "rolled_back|was rolled back"),
    (killed_chief, "restarted_chief_starts_from_disk", AssertionError, "rolled_back|was not continued|lost or|== 0"),
    (killed_server, "ledger_keeps_what_the_server_lost", AssertionError, "the ledger counts 400 units as applied"),
    (killed_workers, "units_of_the_lost_stay_leased", Stuck, r"the job stands at (?!1,?200 )\d+ units"),
    (killed_run, "ledger_outruns_the_state", AssertionError, "'min_count': 0"),
    (preempted_run, "preemption_saves_nothing", AssertionError, "a preempted run lost units"),
    (stopped_at_once, "only_the_first_signal_counts", AssertionError, r"the job stands at \d+ units|'run_finished' !="),
    (stopped_worker, "units_of_the_lost_stay_leased", Stuck, r"the job stands at (?!3000 )\d+ units"),
]


@pytest.mark.parametrize("planted", swept(PLANTED, 2), ids=[f"{case[0].__name__}-{case[1]}" for case in PLANTED])
def test_the_story_fails_where_a_bug_is_planted(
    tmp_path: Path, planted: tuple[Callable[..., None], str, type[AssertionError], str]
) -> None:
    story, bug, error, sign = planted
    patience = {"stuck_secs": STILL_SECS} if error is Stuck else {}
    with pytest.raises(AssertionError) as caught:
        story(tmp_path / "run", bug, **patience)
    assert type(caught.value) is error
    assert re.search(sign, str(caught.value))


@pytest.mark.soak
def test_a_unit_of_a_lost_worker_that_is_pushed_again_is_applied_once(tmp_path: Path) -> None:
    killed_workers(tmp_path / "run", "server_reports_late")
