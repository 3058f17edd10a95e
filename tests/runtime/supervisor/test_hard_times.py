"""The supervisor when the machine fails it: no logs, no processes, zombies, a closed terminal, its own faults."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.runtime.end_signals import WARNINGS
from hybridsync.storage.durable import WorkdirLock
from tests.runtime.supervised import WAIT_SECS, Begin, Run, gone, seed_of


def _worker_is_replaced(run: Run, pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    assert run.wait_call(call="role_lost")["pid"] == pid
    return run.wait_call(call="role_started")["pid"]


def _ends_well(run: Run, chief: int) -> str:
    os.kill(chief, signal.SIGUSR2)
    code, said = run.end()
    assert code == 0, said
    return said


def test_a_removed_folder_of_logs_is_made_again(begin: Begin) -> None:
    run = begin()
    roles = run.started()
    run.spec_of(roles["worker", 0])
    shutil.rmtree(run.workdir / "logs")
    run.spec_of(_worker_is_replaced(run, roles["worker", 0]))
    assert _ends_well(run, roles["chief", 0]) == ""
    assert (run.workdir / "logs" / "worker-0.log").read_text() == "--- worker 0, restart count 1\nworker 0 was here\n"


def test_without_a_place_for_logs_the_run_goes_on_and_says_so_once(begin: Begin) -> None:
    run = begin()
    roles = run.started()
    run.spec_of(roles["worker", 0])
    shutil.rmtree(run.workdir / "logs")
    (run.workdir / "logs").write_text("no folder")
    pid = roles["worker", 0]
    for _ in range(2):
        pid = _worker_is_replaced(run, pid)
        run.spec_of(pid)
    said = _ends_well(run, roles["chief", 0]).splitlines()
    assert len(said) == 1 and said[0].startswith(f"logs cannot be written to {run.workdir / 'logs'}: "), said


def _command(tmp_path: Path) -> Path:
    """Return a program that runs Python, and can be taken away."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_role_that_cannot_be_started_is_tried_again_until_it_can_be(begin: Begin, tmp_path: Path) -> None:
    program = _command(tmp_path)
    run = begin(program=str(program))
    roles = run.started()
    seed = seed_of(run, roles)
    away = program.rename(tmp_path / "away")
    os.kill(seed, signal.SIGKILL)
    assert run.stderr_line().startswith("no fork server for the next role could be started: ")
    os.kill(roles["worker", 0], signal.SIGKILL)
    assert run.wait_call(call="role_lost")["pid"] == roles["worker", 0]
    assert run.stderr_line().startswith("worker 0 could not be started, which is tried again: ")
    away.rename(program)
    started = run.wait_call(call="role_started")
    assert run.spec_of(started["pid"])["restart_count"] == 1
    assert _ends_well(run, roles["chief", 0]) == "", "said once"


@pytest.mark.parametrize("role", ["server", "worker"])
def test_what_cannot_be_started_for_long_ends_the_run_unless_it_is_a_worker(
    begin: Begin, tmp_path: Path, role: str
) -> None:
    program = _command(tmp_path)
    run = begin(program=str(program), start_again_secs=0.2)
    roles = run.started()
    seed = seed_of(run, roles)
    program.unlink()
    os.kill(seed, signal.SIGKILL)
    run.stderr_line()
    os.kill(roles[role, 0], signal.SIGKILL)
    assert run.wait_call(call="role_lost")["quarantined"] is False
    if role == "server":
        code, said = run.end()
        assert code != 0 and "RoleLost: server 0 could not be started for 0.2 s: " in said
        return
    lost = run.wait_call(call="role_lost")
    assert lost["quarantined"] and lost["reason"].startswith("worker 0 could not be started for 0.2 s: ")
    _ends_well(run, roles["chief", 0])


@pytest.mark.parametrize("sessions", [False, True])
def test_children_of_a_lost_role_leave_no_zombies(begin: Begin, sessions: bool) -> None:
    run = begin({"worker 0 restart 0": {"children": 8, "sessions": sessions}})
    roles = run.started()
    pid = roles["worker", 0]
    run.spec_of(pid)
    children = _wait_for(lambda: _begun(pid, 8, sessions))
    os.kill(pid, signal.SIGKILL)
    reborn = run.wait_call(call="role_started")["pid"]
    for child in children if sessions else ():  # in a session of their own they live on, as orphans
        os.kill(child, signal.SIGKILL)
    assert _wait_for(lambda: not run.children() & set(children)), "they are zombies"
    os.kill(reborn, signal.SIGUSR2)
    assert gone(reborn)
    os.kill(roles["server", 0], signal.SIGKILL)
    assert run.wait_call(call="role_lost", role="server")["reason"] == "signal SIGKILL", "its status was stolen"


def _begun(pid: int, count: int, sessions: bool) -> list[int]:
    """Return a process's children once there are `count`, each in its own session or none: a fork precedes that."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children if [os.getsid(child) == child for child in children] == count * [sessions] else []


def _wait_for(condition):
    deadline = time.monotonic() + WAIT_SECS
    while not (found := condition()) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return found


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGHUP, signal.SIGHUP), (signal.SIGUSR1,), (signal.SIGUSR2, signal.SIGUSR2)],
    ids=["the kernel and the shell of a terminal", "Slurm with --signal=USR1", "a batch system that warns twice"],
)
def test_warnings_before_a_sigterm_are_one_request_to_save_and_leave(
    begin: Begin, numbers: tuple[signal.Signals, ...]
) -> None:
    run = begin(deaf_to_preempt=True)
    pids = run.started()
    for number in (*numbers, signal.SIGTERM):
        run.process.send_signal(number)
    run.wait_call(call="preempt")
    assert run.silent(1.0), "the last of them is no second request"
    os.kill(pids["chief", 0], signal.SIGUSR1)
    assert run.end()[0] == 75


def test_a_warning_that_was_ignored_at_the_start_as_by_nohup_is_nothing_to_a_run(begin: Begin) -> None:
    run = begin(warnings_ignored=True)
    pids = run.started()
    for number in WARNINGS:
        run.process.send_signal(number)
    assert run.silent(1.0)
    _ends_well(run, pids["chief", 0])


def _holds_lock(pid: int, workdir: Path) -> bool:
    files = set[str]()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile: a role opens files, the lock stays open
            files.add(os.readlink(descriptor))
    return str(workdir / "lock") in files


def test_the_workdir_stays_locked_while_a_chief_is_replaced_and_after_a_killed_supervisor(
    begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    run = begin({"chief 0 restart 1": {"late": True}}, locks=True)
    roles = run.started()
    chief = roles["chief", 0]
    run.spec_of(chief)
    assert _holds_lock(chief, run.workdir) and not _holds_lock(roles["worker", 0], run.workdir)
    os.kill(chief, signal.SIGKILL)
    assert gone(chief)
    with pytest.raises(WorkdirError, match=f"is in use by process {run.process.pid} "):
        WorkdirLock(run.workdir).acquire()
    assert _holds_lock(run.wait_spec(role="chief", restart_count=1)["pid"], run.workdir)
    run.process.kill()
    run.process.wait(WAIT_SECS)
    with WorkdirLock(run.workdir):  # its roles have ended by then
        assert (run.workdir / "lock").read_text() != ""


def test_a_run_whose_workdir_another_host_has_taken_ends_at_once_with_every_role(begin: Begin) -> None:
    lost = "workdir W is no longer this run's: process 7 on there has it"
    run = begin(lock_lost=lost)
    code, said = run.end()
    assert code == 70
    assert said.count(f"error: {lost}") == 1


def test_a_fault_of_the_supervisor_is_no_refusal_and_takes_every_role_with_it(begin: Begin) -> None:
    run = begin(fault=True)
    pids = run.started()
    os.kill(pids["worker", 0], signal.SIGKILL)
    code, said = run.end()
    assert code == 70
    assert said.startswith("error: the supervisor failed; run the same command again") and "planted" in said
    assert all(gone(pid) for pid in pids.values())
