"""What a job survives: processes killed, stopped and asked to stop, on the tally, which counts every unit.

The stories are in scenarios.py; test_planted_faults.py shows of each that it can fail.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.multiprocess import scenarios, sessions, stages
from tests.multiprocess.job import assert_exactly_once
from tests.sweeps import swept

pytestmark = pytest.mark.timeout(600)


OVER_GRPC = pytest.param((scenarios.GRPC,), id="grpc", marks=[pytest.mark.soak, pytest.mark.one_of_each_soak])


# In every suite workers die over shared memory, and a server over TCP.
@pytest.mark.parametrize(
    "link",
    [pytest.param((), id="shm"), pytest.param((scenarios.TCP,), id="tcp", marks=pytest.mark.soak), OVER_GRPC],
)
@pytest.mark.alone
def test_workers_killed_under_asp_cost_nobody_else_a_pause_and_join_the_next_mesh(tmp_path: Path, link) -> None:
    scenarios.workers_are_killed_under_asp(tmp_path / "run", *link)


def test_a_run_that_was_killed_whole_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    scenarios.everything_is_killed_and_resumed(tmp_path / "run")


@pytest.mark.parametrize(
    ("to_all", "number"),
    [(False, signal.SIGTERM), (True, signal.SIGTERM), pytest.param(True, signal.SIGUSR1, marks=pytest.mark.soak)],
    ids=["supervisor", "all", "SIGUSR1 to all"],
)
def test_sigterm_saves_exits_75_and_the_same_command_completes(
    tmp_path: Path, to_all: bool, number: signal.Signals
) -> None:
    scenarios.sigterm_saves_and_the_same_command_completes(tmp_path / "run", to_all=to_all, number=number)


@pytest.mark.soak
@pytest.mark.alone
def test_a_worker_stopped_beyond_its_lease_is_replaced_and_its_units_are_done_by_others(tmp_path: Path) -> None:
    scenarios.a_worker_is_stopped_beyond_its_lease(tmp_path / "run")


def test_two_members_killed_at_once_in_lock_step_cost_nothing_and_come_back(tmp_path: Path) -> None:
    scenarios.members_are_lost_in_lock_step(tmp_path / "run", victims=(0, 2))


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_a_member_stopped_in_lock_step_is_given_up_and_replaced(tmp_path: Path) -> None:
    scenarios.members_are_lost_in_lock_step(tmp_path / "run", signal.SIGSTOP, workers=2, victims=(1,))


def test_a_member_killed_in_its_group_takes_the_others_back_to_their_last_full_synchronisation(tmp_path: Path) -> None:
    scenarios.a_member_of_groups_is_lost(tmp_path / "run")


@pytest.mark.soak
@pytest.mark.parametrize("plan", swept(["preduce(groups=arrival)", "adpsgd"], 0))
def test_a_stopped_member_is_given_up_by_those_who_wait_for_it(tmp_path: Path, plan: str) -> None:
    scenarios.a_member_of_groups_is_lost(tmp_path / "run", signal.SIGSTOP, plan=plan, victim=0)


@pytest.mark.soak
@pytest.mark.alone
def test_a_member_killed_while_the_next_mesh_connects_costs_nobody_else_a_restart(tmp_path: Path) -> None:
    assert scenarios.a_member_dies_while_the_next_mesh_connects(tmp_path / "run") < 10.0  # gloo itself would wait 30


@pytest.mark.parametrize("deaths", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_more_members_may_be_lost_than_the_process_group_has_meshes(tmp_path: Path, deaths: int) -> None:
    scenarios.more_members_are_lost_than_there_are_meshes(tmp_path / "run", deaths=deaths)


def test_a_killed_chief_takes_the_run_up_where_it_is(tmp_path: Path) -> None:
    scenarios.the_chief_is_killed(tmp_path / "run", units=700, workers=2)


def test_a_run_whose_sockets_were_moved_makes_others_and_replaces_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path has about a hundred bytes
        monkeypatch.setenv("TMPDIR", short)
        scenarios.the_sockets_are_removed(tmp_path / "run", Path(short))


@pytest.mark.parametrize(
    "link", [pytest.param((), id="shm", marks=pytest.mark.soak), pytest.param((scenarios.TCP,), id="tcp"), OVER_GRPC]
)
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_killed_server_takes_everybody_back_to_the_last_commit(tmp_path: Path, victim: int, link) -> None:
    scenarios.a_server_is_killed(tmp_path / "run", *link, servers=2, victim=victim, units=600, workers=2)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", range(4))
def test_each_member_in_turn_may_be_lost(tmp_path: Path, victim: int, number: signal.Signals) -> None:
    scenarios.members_are_lost_in_lock_step(tmp_path / "run", number, victims=(victim,))


AT_STAGES = [
    pytest.param(*case, marks=[pytest.mark.one_of_each_soak] * (case == ("bsp:50%,asp", "ENTER", "chief-0")))
    for case in itertools.product(stages.PLANS, stages.STAGES, stages.VICTIMS)
]


@pytest.mark.soak
@pytest.mark.parametrize(("plan", "stage", "victim"), AT_STAGES)
def test_every_role_at_every_stage_in_both_directions(tmp_path: Path, plan: str, stage: str, victim: str) -> None:
    stages.a_role_is_killed_at_a_stage(tmp_path / "run", plan, stage, victim)


@pytest.mark.soak
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.one_of_each_soak), 1])
def test_a_worker_killed_before_the_run_began_is_replaced_and_the_run_begins(tmp_path: Path, victim: int) -> None:
    with scenarios.tally(tmp_path / "run", plan="bsp:50%,asp", units=40, workers=2) as job:
        children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
        pids = job.until(lambda: (found := children.read_text().split())[4:] and found, "every role was started")
        pid = int(pids[3 + victim])  # their fork server, chief, server, worker 0, worker 1
        job.until(lambda: os.getsid(pid) == pid, "it was told of")  # before that the supervisor would wait for it
        job.pause(0.1)
        os.kill(pid, signal.SIGKILL)
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        first, *_ = job.events("phase_entered")
        assert (first["reason"], sorted(first["members"])) == ("start", [0, 1])
        assert pid not in job.live_workers().values()
        assert f"worker {victim}: restart after signal SIGKILL" in job.output
        assert job.tracebacks() == []


@pytest.mark.soak
@pytest.mark.alone
def test_a_second_sigterm_ends_the_run_at_once_and_the_same_command_completes(tmp_path: Path) -> None:
    scenarios.a_second_sigterm_ends_the_run_at_once(tmp_path / "run")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plan", ["asp", scenarios.AVERAGED])
def test_ten_worker_kills_and_five_kills_of_everything_leave_every_unit_applied_once(tmp_path: Path, plan: str) -> None:
    scenarios.faults_at_random(tmp_path / "run", plan=plan, sessions=5, kills=2, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_sigterm_at_any_time_saves_or_has_nothing_to_save(tmp_path: Path) -> None:
    codes = []
    for attempt in range(12):
        with scenarios.tally(tmp_path / "run", plan="bsp:50%,asp", units=12_000, unit_secs=0.02) as job:
            sessions.until_heeded(job)
            job.pause(0.75 * attempt)
            job.send(signal.SIGTERM)
            codes.append(job.wait())
    assert set(codes) == {75}
    with scenarios.tally(tmp_path / "run", plan="bsp:50%,asp", units=12_000, unit_secs=0.0) as job:
        assert job.wait() == 0
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
