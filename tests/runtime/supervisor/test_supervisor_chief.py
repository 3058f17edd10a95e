"""The supervisor, a chief that is lost, and the end of the run: restarts, signals, refusals, exit codes."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from hybridsync.core.errors import EXIT_FAILED, EXIT_PREEMPTED, EXIT_REFUSED, RESTARTING
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.ports import ChiefPort
from hybridsync.runtime.agent.host_messages import Ended
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.supervisor.placement import MAX_FAILURES, RunningRole
from hybridsync.runtime.supervisor.supervisor import Supervisor, SupervisorSpec
from tests.runtime.supervised import CHIEF, NUM_PROCESSES, Begin, gone, seed_of


def test_a_killed_chief_is_restarted_at_its_address_and_told_what_happened(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    former = {role: run.spec_of(pid) for role, pid in pids.items() if role[0] != "supervisor"}
    pid = pids["chief", 0]
    for restart_count in range(1, 6):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["pid"], lost["reason"]) == ("chief", pid, "signal SIGKILL")
        started = run.wait_call(call="role_started")
        assert (started["role"], started["reason"]) == ("chief", "restart after signal SIGKILL")
        pid = started["pid"]
        spec = run.spec_of(pid)
        assert (spec["restart_count"], spec["chief"], spec["platforms"]) == (restart_count, CHIEF, "cpu")
        assert spec["coordinator"] == former["worker", 0]["coordinator"]
    assert len((run.workdir / "specs.jsonl").read_text().splitlines()) == NUM_PROCESSES - 1 + 5, "others live on"
    os.kill(pid, signal.SIGUSR2)
    assert run.end() == (0, "")


def test_who_left_because_the_run_was_over_is_back_for_a_chief_that_did_not_live_to_end_it(begin: Begin) -> None:
    run = begin({"chief 0": {"over": [{"role": "worker", "id": 1}]}})
    pids = run.started()
    run.spec_of(pids["worker", 1])
    os.kill(pids["chief", 0], signal.SIGHUP)
    assert gone(pids["worker", 1])
    os.kill(pids["chief", 0], signal.SIGKILL)
    assert run.wait_call(call="role_started", role="chief")["reason"] == "restart after signal SIGKILL"
    back = run.wait_call(call="role_started", role="worker", id=1)["pid"]
    assert run.spec_of(back)["restart_count"] == 1
    os.kill(run.wait_spec(role="chief", restart_count=1)["pid"], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_chief_killed_while_it_saves_for_a_preemption_is_followed_by_one_that_is_asked_again(begin: Begin) -> None:
    run = begin(deaf_to_preempt=True)
    pids = run.started()
    run.process.send_signal(signal.SIGTERM)
    run.wait_call(call="preempt")
    os.kill(pids["chief", 0], signal.SIGKILL)
    assert run.wait_call(call="role_started", role="chief")["reason"] == "restart after signal SIGKILL"
    run.wait_call(call="preempt")
    os.kill(run.wait_spec(role="chief", restart_count=1)["pid"], signal.SIGUSR1)
    assert run.end() == (75, "SIGTERM: the run is saved and ends\n")


def test_a_stop_that_the_chief_was_told_of_outlives_it(begin: Begin) -> None:
    run = begin({"chief 0 restart 0": {"stop": True}}, deaf_to_preempt=True)
    pids = run.started()
    os.kill(pids["chief", 0], signal.SIGHUP)
    run.wait_call(call="preempt")
    os.kill(pids["chief", 0], signal.SIGKILL)
    run.wait_call(call="role_started", role="chief")
    run.wait_call(call="preempt")
    os.kill(run.wait_spec(role="chief", restart_count=1)["pid"], signal.SIGUSR1)
    assert run.end() == (75, "")


def test_a_restarted_chief_is_told_again_which_units_processes_ended_on(begin: Begin) -> None:
    run = begin({"worker 0 restart 0": {"unit": 17, "exit": 3}})
    first = run.wait_call(call="role_lost", role="worker")
    assert (first["unit"], first["reason"]) == (17, "exit 3")
    reborn = run.wait_call(call="role_started", role="worker", id=0, reason="restart after exit 3")["pid"]
    os.kill(reborn, signal.SIGKILL)
    assert run.wait_call(call="role_lost", role="worker")["unit"] == -1
    os.kill(run.wait_spec(role="chief")["pid"], signal.SIGKILL)
    assert run.wait_call(call="role_lost", role="chief")["reason"] == "signal SIGKILL"
    assert run.next_call() == first, "and not of the process that ended on none"
    assert run.next_call()["call"] == "role_started"


def test_nothing_is_delivered_while_no_chief_serves_and_all_of_it_afterwards(begin: Begin) -> None:
    run = begin({"chief 0 restart 1": {"late": True}})
    pids = run.started()
    os.kill(pids["chief", 0], signal.SIGKILL)
    restarted = run.wait_spec(role="chief", restart_count=1)["pid"]
    os.kill(pids["worker", 1], signal.SIGKILL)
    reborn = run.wait_spec(role="worker", role_id=1, restart_count=1)
    assert reborn["chief"] == CHIEF, "it needs no chief to learn where one will serve"
    assert run.silent(2.5), "a chief that does not serve was called"
    os.kill(restarted, signal.SIGHUP)
    told = [run.next_call() for _ in range(4)]
    assert [(call["call"], call["role"], call["pid"]) for call in told] == [
        ("role_lost", "chief", pids["chief", 0]),
        ("role_started", "chief", restarted),
        ("role_lost", "worker", pids["worker", 1]),
        ("role_started", "worker", reborn["pid"]),
    ]


def test_a_signal_while_no_chief_serves_reaches_the_next_one(begin: Begin) -> None:
    run = begin({"chief 0 restart 1": {"late": True}}, deaf_to_preempt=True)
    os.kill(run.started()["chief", 0], signal.SIGKILL)
    restarted = run.wait_spec(role="chief", restart_count=1)["pid"]
    run.process.send_signal(signal.SIGTERM)
    assert run.silent(1.5)
    os.kill(restarted, signal.SIGHUP)
    assert run.next_call() == {"call": "preempt"}, "what is left to do comes before what has happened"
    run.wait_call(call="role_lost", role="chief")
    os.kill(restarted, signal.SIGUSR1)
    assert run.end() == (75, "SIGTERM: the run is saved and ends\n")


@pytest.mark.parametrize("exit_code", [9, 0, 75])
def test_a_chief_that_fails_by_itself_again_and_again_ends_the_run(begin: Begin, exit_code: int) -> None:
    run = begin({f"chief 0 restart {restart_count}": {"exit": exit_code} for restart_count in range(1, 9)})
    pids = run.started()
    os.kill(pids["chief", 0], signal.SIGKILL)
    code, written = run.end()
    assert code == 70
    assert f"error: the chief was lost (exit {exit_code}); run the same command again" in written
    assert "chief 0 was here" in written
    specs = [json.loads(line) for line in (run.workdir / "specs.jsonl").read_text().splitlines()]
    assert max(spec["restart_count"] for spec in specs) == 4, "three failures within 30 s are borne"
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize("exit_code", [0, 75, 3])
def test_the_end_that_a_chief_has_reported_counts_whatever_its_process_ends_with(begin: Begin, exit_code: int) -> None:
    run = begin({"chief 0": {"atexit": exit_code}})
    os.kill(run.started()["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_chief_that_its_watchdog_ends_is_replaced(begin: Begin) -> None:
    run = begin({"chief 0 restart 0": {"hangs": True}})
    os.kill(run.started()["chief", 0], signal.SIGUSR1)
    assert run.wait_call(call="role_lost", role="chief")["reason"] == "exit 70"
    assert run.wait_call(call="role_started", role="chief")["reason"] == "restart after exit 70"
    os.kill(run.wait_spec(role="chief", restart_count=1)["pid"], signal.SIGUSR2)
    assert run.end() == (0, "")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGHUP], ids=["stopped", "the interpreter's lock is kept"])
def test_a_chief_that_stands_still_is_replaced(begin: Begin, number: signal.Signals) -> None:
    run = begin({"chief 0 restart 0": {"holds": True}}, silent_secs=3.0)
    pid = run.started()["chief", 0]
    os.kill(pid, number)
    assert run.stderr_line().startswith(f"the chief, process {pid}, has shown no sign of life for ")
    lost = run.wait_call(call="role_lost", role="chief")
    assert lost["reason"].startswith("signal SIGKILL: it has shown no sign of life for ")
    os.kill(run.wait_spec(role="chief", restart_count=1)["pid"], signal.SIGUSR2)
    assert run.wait_call(call="ended")["code"] == 0


def test_a_chief_that_pauses_is_left_alone_and_hears_of_a_signal_afterwards(begin: Begin) -> None:
    run = begin()
    pid = run.started()["chief", 0]
    os.kill(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert run.stderr_line() == "SIGTERM: the run is saved and ends\n", "the loop does not go on meanwhile"
    os.kill(pid, signal.SIGCONT)
    assert run.wait_call(call="ended")["code"] == 75


def test_a_chief_that_stands_still_again_and_again_ends_the_run(begin: Begin) -> None:
    code, written = begin({"chief 0": {"stands": True}}, silent_secs=2.0).end()
    assert code == 70
    assert "error: the chief was lost (signal SIGKILL: it has shown no sign of life for " in written
    assert written.count("and is replaced") == MAX_FAILURES


def test_a_chief_that_stands_still_after_its_work_is_done_ends_the_run_as_it_has_reported(begin: Begin) -> None:
    run = begin({"chief 0": {"lingers": True}}, silent_secs=2.0)
    os.kill(run.started()["chief", 0], signal.SIGUSR2)
    assert run.wait_call(call="ended")["code"] == 0


def test_a_run_hears_of_a_signal_while_its_fork_server_stands_still(begin: Begin) -> None:
    run = begin()
    roles = run.started()
    run.spec_of(roles["worker", 1])
    os.kill(seed_of(run, roles), signal.SIGSTOP)
    os.kill(roles["worker", 1], signal.SIGKILL)
    run.wait_call(call="role_lost")
    told = len(run.calls)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait_call(call="ended")["code"] == 75
    assert [call["call"] for call in run.calls[told:]] == ["preempt", "ended"], "the loop has waited for a new worker"


def test_a_chief_that_is_lost_before_it_ever_served_ends_the_run(begin: Begin) -> None:
    run = begin({"chief 0": {"silent": True}})
    os.kill(run.wait_spec(role="chief")["pid"], signal.SIGKILL)
    code, written = run.end()
    assert code == 70
    assert written == (
        "error: the chief was lost (signal SIGKILL); run the same command again: it resumes from the last commit\n"
    )


def test_a_restarted_chief_that_has_an_end_to_tell_ends_the_run_by_it(begin: Begin) -> None:
    run = begin({"chief 0 restart 1": {"refuse": "the checkpoints have another unit size"}})
    os.kill(run.started()["chief", 0], signal.SIGKILL)
    assert run.end() == (1, "error: the checkpoints have another unit size\n")


@pytest.mark.parametrize("role", ["chief 0", "server 0", "worker 1"])
def test_refused_input_is_said_once_without_a_log(begin: Begin, role: str) -> None:
    code, written = begin({role: {"refuse": "the plan's shares sum to 90 %, not 100 %"}}).end()
    saved = "" if role == "chief 0" else f"{role} refuses to go on: the run is saved and ends\n"
    assert (code, written) == (1, "error: the plan's shares sum to 90 %, not 100 %\n" + saved)


def test_a_chief_that_ends_with_a_traceback_each_time_is_our_fault(begin: Begin) -> None:
    code, written = begin({"chief 0": {"exit": 1}}).end()
    assert code == 70
    assert written.startswith("error: the chief was lost (exit 1); run the same command again")
    assert "chief 0 was here" in written


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_signal_makes_the_chief_save_and_the_run_end_with_75(begin: Begin, name: str) -> None:
    run = begin()
    pids = run.started()
    run.process.send_signal(signal.Signals[name])
    run.wait_call(call="preempt")
    assert run.end() == (75, f"{name}: the run is saved and ends\n")
    assert all(gone(pid) for pid in pids.values())


def test_a_run_whose_parent_is_killed_is_saved(begin: Begin) -> None:
    run = begin(under="import subprocess, sys; subprocess.run(sys.argv[1:])")
    pids = run.started()
    run.process.kill()  # the parent
    run.wait_call(call="preempt")
    assert run.wait_call(call="ended")["code"] == 75
    assert all(gone(pid) for pid in pids.values())


def test_a_signal_before_the_chief_serves_ends_the_run_with_75(begin: Begin) -> None:
    run = begin({"chief 0": {"silent": True}})
    chief = run.wait_spec(role="chief")["pid"]
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (75, "SIGTERM: the run ends before it has begun: the chief does not serve yet\n")
    assert gone(chief)


def test_a_second_signal_kills_everything_at_once(begin: Begin) -> None:
    run = begin(deaf_to_preempt=True, grace_secs=120.0)
    pids = run.started()
    run.process.send_signal(signal.SIGTERM)
    run.wait_call(call="preempt")
    run.process.send_signal(signal.SIGTERM)  # all other waits are longer than that for the end
    code, written = run.end()
    assert code == 70 and "error: a second signal has ended the run before it was saved" in written
    assert all(gone(pid) for pid in pids.values())


def test_a_chief_that_does_not_save_in_time_is_named(begin: Begin) -> None:
    run = begin(deaf_to_preempt=True, preempt_secs=0.1)
    run.started()
    run.process.send_signal(signal.SIGTERM)
    code, written = run.end()
    assert code == 70 and "the chief has not saved and left within 0.1 s" in written


def test_a_chief_that_never_serves_is_named(begin: Begin) -> None:
    code, written = begin({"chief 0": {"silent": True}}, start_secs=0.5).end()
    assert code == 70 and "the chief does not serve after 0.5 s" in written


def test_what_the_chief_did_not_take_is_told_again_in_order(begin: Begin) -> None:
    run = begin(deaf_calls=2)
    pids = run.started()
    assert [call["call"] for call in run.calls[:2]] == ["deaf", "deaf"]
    assert list(pids) == [("supervisor", 0), ("chief", 0), ("server", 0), ("worker", 0), ("worker", 1)]
    assert len(run.calls) == 2 + NUM_PROCESSES


class Agent:
    """The supervisor's own host, on which every process has ended by now; the run's hosts as well."""

    def __init__(self) -> None:
        self.supervisor: Any = None
        self.num_signals = 0
        self.logs = self

    def path(self, name: str) -> Path:
        return Path("absent") / name

    def pulse(self, key: tuple[str, int]) -> NoReturn:
        raise KeyError(key)

    def wait(self, secs: float, wake_fd: int) -> list[tuple[int, Ended]]:
        for _ in range(self.num_signals):
            self.supervisor._on_signal(signal.SIGTERM, None)
        return [(0, Ended("chief", 0, 100, -signal.SIGKILL, 60.0))]

    def discard(self) -> None: ...

    def await_end(self) -> None: ...

    def kill_all(self) -> None: ...


class Chief:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.refusals: list[str] = []

    def role_lost(self, event: RoleEvent) -> None:
        self.lost.append(event.id)
        self.refusals += [event.reason] if event.is_refusal else []

    def preempt(self) -> None: ...


class Watch:
    """A supervisor in this process, whose chief and workers have started, and what it has said."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        self.chief, self.said = Chief(), list[str]()
        spec, chief = SupervisorSpec((), folder, num_workers, preempt_secs=0.0), cast("ChiefPort", self.chief)
        inside: Any = Supervisor(spec, lambda address: chief, self.said.append)
        self.agent, self.inside = Agent(), inside
        self.agent.supervisor = inside
        inside._agent = inside._hosts = self.agent
        inside._chief_address = CHIEF
        inside._roles = {("worker", each): RunningRole("worker", each, 0, each, 0) for each in range(num_workers)}
        inside._roles["chief", 0] = RunningRole("chief", 0, 0, 100, 0)

    def ends(self, role: str, role_id: int, code: int, error: str = "") -> None:
        ended = self.inside._roles[role, role_id]
        ended.exit_code, ended.error = code, error
        self.inside._lost(Ended(role, role_id, ended.pid, code, 60.0))


@pytest.mark.parametrize(("serves", "secs"), [(True, 60.0), (False, 120.0)], ids=["serves", "opens the run"])
def test_a_silent_chief_is_replaced_sooner_once_it_serves(tmp_path: Path, *, serves: bool, secs: float) -> None:
    watch, killed = Watch(tmp_path, 1), list[float]()
    watch.inside._chief_serves = serves
    watch.inside._agent = SimpleNamespace(pulse=lambda key: 7)
    watch.inside._hosts = SimpleNamespace(kill=lambda host, order: killed.append(now))
    for now in map(float, range(200)):
        watch.inside._watch_chief(now)
    assert killed == [secs], "and once"
    assert watch.said == [f"the chief, process 100, has shown no sign of life for {secs:g} s, and is replaced"]


def test_the_chief_hears_of_every_role_that_refuses_and_the_user_once_of_each_reason(tmp_path: Path) -> None:
    watch = Watch(tmp_path, 4)
    for worker in range(4):
        watch.ends("worker", worker, EXIT_REFUSED, f"the loss raised {'KeyError' if worker < 3 else 'TypeError'}")
    watch.inside._outbox.deliver(CHIEF)
    assert watch.chief.lost == [0, 1, 2, 3]
    assert watch.chief.refusals == [*["exit 1: the loss raised KeyError"] * 3, "exit 1: the loss raised TypeError"]
    assert watch.said == ["error: the loss raised KeyError", "error: the loss raised TypeError"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, 0), (EXIT_PREEMPTED, EXIT_REFUSED), (EXIT_FAILED, EXIT_REFUSED), (RESTARTING, EXIT_REFUSED)],
)
def test_a_mistake_of_the_users_is_what_the_exit_code_says_whatever_it_led_to(
    tmp_path: Path, code: int, expected: int
) -> None:
    watch = Watch(tmp_path, 1)
    watch.ends("worker", 0, EXIT_REFUSED, "the loss raised KeyError")
    watch.ends("chief", 0, code)
    assert watch.inside._leaving[0] == expected


@pytest.mark.parametrize(("signals", "expected"), [(0, RESTARTING), (1, EXIT_PREEMPTED)])
def test_a_run_that_is_asked_to_stop_while_its_roles_leave_does_not_restart(
    tmp_path: Path, signals: int, expected: int
) -> None:
    watch = Watch(tmp_path, 1)
    watch.ends("chief", 0, RESTARTING)
    for _ in range(signals):
        watch.inside._on_signal(signal.SIGTERM, None)
    watch.inside._roles.clear()
    with closing(RoleAddresses("127.0.0.1", num_hosts=2)) as addresses:  # without sockets
        assert watch.inside._final(watch.inside._watch(-1, addresses)) == expected


def test_a_mistake_of_the_users_is_what_the_exit_code_says_where_the_chief_does_not_leave(
    tmp_path: Path,
) -> None:
    watch = Watch(tmp_path, 1)
    watch.ends("worker", 0, EXIT_REFUSED, "the loss raised KeyError")
    for now in (0.0, 1.0):
        watch.inside._preempt(now)
    assert watch.inside._exit_code == EXIT_REFUSED


def test_a_second_signal_ends_the_run_though_its_chief_has_just_ended(tmp_path: Path) -> None:
    watch = Watch(tmp_path, 1)
    watch.agent.num_signals = 2
    with closing(RoleAddresses("127.0.0.1", num_hosts=2)) as addresses:  # without sockets
        assert watch.inside._watch(-1, addresses) == EXIT_FAILED
