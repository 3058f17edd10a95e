"""The supervisor over fake roles: whom it starts, tells and restarts, and whom it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hybridsync.runtime.agent.role_process import describe_exit
from hybridsync.runtime.role.role_pipe import Child
from hybridsync.runtime.supervisor.placement import CrashLoop
from tests.runtime.supervised import CHIEF, ROOT, WAIT_SECS, Begin, gone, seed_of


def test_every_role_learns_its_place_and_a_completed_run_ends_with_0(begin: Begin) -> None:
    run = begin({"chief 0": {"over": [{"role": "worker", "id": 0}]}})
    pids = run.started()
    specs = {role: run.spec_of(pid) for role, pid in pids.items() if role[0] != "supervisor"}
    assert pids["supervisor", 0] == run.process.pid
    assert specs["chief", 0]["chief"] == "" and specs["chief", 0]["platforms"] == "cpu"
    assert specs["server", 0]["chief"] == CHIEF and specs["server", 0]["platforms"] == "cpu"
    assert specs["worker", 1]["chief"] == CHIEF and specs["worker", 1]["platforms"] == "cpu"
    assert specs["worker", 1]["role_id"] == 1 and specs["worker", 1]["restart_count"] == 0
    assert {spec["num_workers"] for spec in specs.values()} == {2}
    assert len({spec["coordinator"] for spec in specs.values()}) == 1
    os.kill(pids["chief", 0], signal.SIGHUP)
    assert gone(pids["worker", 0])  # leaves by itself; the others are made to
    os.kill(pids["chief", 0], signal.SIGUSR2)
    assert run.wait_call(call="ended") == {"call": "ended", "code": 0, "heavy": []}
    assert run.end() == (0, "")
    assert all(gone(pid) for pid in pids.values())


def test_a_killed_worker_is_reported_and_reborn_each_time(begin: Begin) -> None:
    run = begin()
    pid = run.started()["worker", 1]
    for restart_count in range(1, 7):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"], lost["reason"]) == ("worker", 1, pid, "signal SIGKILL")
        pid = run.wait_call(call="role_started", role="worker", id=1)["pid"]
        assert run.spec_of(pid)["restart_count"] == restart_count


def test_a_worker_that_ends_as_told_is_not_replaced(begin: Begin) -> None:
    run = begin({"chief 0": {"over": [{"role": "worker", "id": 0}]}})
    pids = run.started()
    run.spec_of(pids["worker", 0])
    os.kill(pids["chief", 0], signal.SIGHUP)
    assert gone(pids["worker", 0])
    os.kill(pids["chief", 0], signal.SIGUSR2)
    assert run.next_call() == {"call": "ended", "code": 0, "heavy": []}


@pytest.mark.parametrize("code", [0, 75])
@pytest.mark.parametrize("role", ["worker 1", "server 0", "chief 0"])
def test_a_role_that_ends_without_being_told_is_replaced_whatever_its_exit_code(
    begin: Begin, role: str, code: int
) -> None:
    run = begin({f"{role} restart 0": {"exit": code}})
    kind, _, number = role.partition(" ")
    assert run.wait_call(call="role_lost", role=kind, id=int(number))["reason"] == f"exit {code}"
    assert run.wait_call(call="role_started", role=kind, id=int(number), reason=f"restart after exit {code}")


@pytest.mark.parametrize("exit_code", [3, 0, 75])
def test_a_server_that_fails_again_and_again_ends_the_run_with_its_name_and_log(begin: Begin, exit_code: int) -> None:
    run = begin({"server 0": {"exit": exit_code}})
    code, written = run.end()
    assert code == 70
    assert f"error: server 0 fails again and again (exit {exit_code})" in written
    assert "server-0.log" in written and "server 0 was here" in written


def test_a_worker_that_failed_once_with_a_reason_is_replaced(begin: Begin) -> None:
    run = begin({"worker 0 restart 0": {"error": "lost its way"}})
    assert run.wait_call(call="role_lost")["reason"] == "exit 70: lost its way"
    assert run.wait_call(call="role_started", role="worker", id=0)["reason"].startswith("restart after exit 70")


def test_a_killed_worker_is_replaced_by_a_child_of_the_supervisors_that_goes_on_in_its_log(begin: Begin) -> None:
    run = begin()
    roles = run.started()
    run.spec_of(roles["worker", 1])  # by then it has written to its log
    for restart_count in (1, 2):
        os.kill(roles["worker", 1], signal.SIGKILL)
        assert run.wait_call(call="role_lost")["pid"] == roles["worker", 1]
        roles["worker", 1] = run.wait_call(call="role_started", role="worker")["pid"]
        assert {*roles.values(), seed_of(run, roles)} - {run.process.pid} == run.children()
        spec = run.spec_of(roles["worker", 1])
        assert (spec["role_id"], spec["restart_count"], spec["chief"]) == (1, restart_count, CHIEF)
    seed = seed_of(run, roles)
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")
    log = (run.workdir / "logs" / "worker-1.log").read_text().splitlines()
    assert log == [
        line
        for restart_count in range(3)
        for line in (f"--- worker 1, restart count {restart_count}", "worker 1 was here")
    ]
    assert gone(seed), "the fork server outlived the run"


def test_a_killed_server_is_reported_and_reborn(begin: Begin) -> None:
    run = begin()
    pid = run.started()["server", 0]
    for restart_count in range(1, 6):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"], lost["reason"]) == ("server", 0, pid, "signal SIGKILL")
        pid = run.wait_call(call="role_started", role="server")["pid"]
        spec = run.spec_of(pid)
        assert (spec["restart_count"], spec["chief"]) == (restart_count, CHIEF)


def test_a_role_that_the_chief_gave_up_is_ended_and_replaced(begin: Begin) -> None:
    run = begin({"chief 0": {"kill": [{"role": "worker", "id": 1}]}})
    pids = run.started()
    pid = pids["worker", 1]
    for restart_count in range(1, 3):
        run.spec_of(pid)
        os.kill(pids["chief", 0], signal.SIGHUP)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"]) == ("worker", 1, pid)
        assert gone(pid)
        pid = run.wait_call(call="role_started", role="worker", id=1)["pid"]
        assert run.spec_of(pid)["restart_count"] == restart_count


def test_a_process_that_has_the_place_of_one_that_was_given_up_is_left_alone(begin: Begin) -> None:
    former, nobody = {"role": "worker", "id": 1, "pid": 1}, {"role": "gopher", "id": 0, "pid": 1, "restart_count": 0}
    elsewhere = {"role": "worker", "id": 1, "restart_count": 7}  # on another host it had the same process id
    run = begin({"chief 0": {"kill": [former, nobody, elsewhere, {"role": "worker", "id": 0}]}})
    pids = run.started()
    for role in (("worker", 0), ("worker", 1)):
        run.spec_of(pids[role])
    os.kill(pids["chief", 0], signal.SIGHUP)
    lost = run.wait_call(call="role_lost")
    assert (lost["role"], lost["id"]) == ("worker", 0), "the last of four words came after the others"
    again = run.wait_call(call="role_started")
    assert (again["role"], again["id"]) == ("worker", 0)
    assert run.silent(0.5)


def test_in_a_new_process_group_every_worker_starts_again_and_the_others_stay(begin: Begin) -> None:
    run = begin({"chief 0": {"renew": True}})
    pids = run.started()
    former = {run.spec_of(pid)["coordinator"] for (role, _), pid in pids.items() if role != "supervisor"}
    for restart_count in range(1, 6):  # more often than a worker may fail by itself
        os.kill(pids["chief", 0], signal.SIGHUP)
        calls = [run.next_call() for _ in range(4)]
        for worker in (0, 1):
            lost, started = (call for call in calls if (call["role"], call["id"]) == ("worker", worker))
            assert (lost["call"], lost["pid"]) == ("role_lost", pids["worker", worker])
            assert started["call"] == "role_started"
            pids["worker", worker] = started["pid"]
        specs = [run.spec_of(pids["worker", worker]) for worker in (0, 1)]
        assert [spec["restart_count"] for spec in specs] == [restart_count, restart_count]
        (coordinator,) = {spec["coordinator"] for spec in specs}
        assert coordinator not in former
        former.add(coordinator)
    os.kill(pids["server", 0], 0)


def test_roles_die_with_a_killed_supervisor(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    for role, pid in pids.items():
        if role[0] != "supervisor":
            run.spec_of(pid)
    run.process.kill()
    assert all(gone(pid) for pid in pids.values())


def test_a_program_that_no_supervisor_started_has_no_line() -> None:
    assert Child.from_environment() is None


def test_exits_are_put_into_words() -> None:
    assert [describe_exit(code) for code in (0, 3, -11)] == ["exit 0", "exit 3", "signal SIGSEGV"]


def test_failures_of_different_roles_or_after_a_long_life_are_no_crash_loop() -> None:
    loop = CrashLoop(limit=1, window_secs=10.0)
    assert not loop.add("worker 0", 1.0)
    assert not loop.add("chief", 1.0)
    assert not loop.add("worker 0", 11.0)
    assert not loop.add("worker 0", 1.0, by_itself=False)
    assert loop.add("worker 0", 1.0)
    assert not loop.add("chief", 11.0, by_itself=False), "it lived long enough to be forgiven"
    assert not loop.add("chief", 1.0)


def test_units_that_end_whoever_computes_them_are_no_fault_of_the_workers() -> None:
    loop = CrashLoop(limit=1)
    for unit in range(20):
        assert not loop.add("worker 0", 1.0, unit), f"unit {unit} ends worker 1, too"
        assert not loop.add("worker 1", 1.0, unit)
    assert not loop.add("worker 0", 1.0, 100) and not loop.add("worker 0", 1.0, 100), "one unit counts once"
    assert loop.add("worker 0", 1.0, 101), "others live through unit 100"


def test_the_supervisor_imports_neither_jax_nor_orbax() -> None:
    heavy = {"jax", "jaxlib", "numpy", "orbax", "grpc", "flax"}
    modules = "hybridsync.cli.train, hybridsync.runtime.supervisor.supervisor"
    program = f"import sys, {modules}; print(*{heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
        check=True,
    )
    assert done.stdout.strip() == ""
