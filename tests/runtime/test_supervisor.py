"""The supervisor over fake roles: what it starts, tells, restarts, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridsync.runtime.child import Child
from hybridsync.runtime.role_process import CrashLoop, describe_exit

RUN = Path(__file__).with_name("supervised_run.py")
ROOT = Path(__file__).parents[2]
WAIT_SECS = 30.0
CHIEF = "127.0.0.1:4711"
NUM_PROCESSES = 5  # supervisor, chief, server, two workers


class Run:
    """One supervised run and what it has told the chief."""

    def __init__(self, workdir: Path, actions: dict[str, Any], options: dict[str, Any]) -> None:
        self.workdir = workdir
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in ("JAX_PLATFORMS", "TF_CPP_MIN_LOG_LEVEL"):  # jax sets the second where it is imported
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, str(RUN), str(workdir), json.dumps(actions), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        self.calls: list[dict[str, Any]] = []
        self._buffer = b""

    def next_call(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + WAIT_SECS
        while b"\n" not in self._buffer:
            ready = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"nothing more is told after {self.calls}"
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"the supervisor ended after {self.calls}"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.calls.append(json.loads(line))
        return self.calls[-1]

    def wait_call(self, **fields: Any) -> dict[str, Any]:
        while True:
            call = self.next_call()
            if fields.items() <= call.items():
                return call

    def silent(self, secs: float) -> bool:
        """Return whether nothing is told for so long."""
        assert self.process.stdout is not None and not self._buffer
        return not select.select([self.process.stdout], [], [], secs)[0]

    def started(self) -> dict[tuple[str, int], int]:
        """Wait until every role has been told of; returns their pids."""
        pids = {}
        while len(pids) < NUM_PROCESSES:
            call = self.wait_call(call="role_started")
            pids[call["role"], call["id"]] = call["pid"]
        return pids

    def spec_of(self, pid: int) -> dict[str, Any]:
        """Wait until the role has its spec."""
        return self.wait_spec(pid=pid)

    def wait_spec(self, **fields: Any) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECS
        specs = self.workdir / "specs.jsonl"
        while time.monotonic() < deadline:
            for line in specs.read_text().splitlines() if specs.exists() else ():
                if fields.items() <= (record := json.loads(line)).items():
                    return record
            select.select([], [], [], 0.01)
        raise AssertionError(f"no role ever had a spec with {fields}")

    def end(self) -> tuple[int, str]:
        """Wait for the supervisor's end; returns its code and what it wrote to stderr."""
        _, written = self.process.communicate(timeout=WAIT_SECS)
        return self.process.returncode, written.decode()


Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[Run] = []

    def start(actions: dict[str, Any] | None = None, **options: Any) -> Run:
        runs.append(Run(tmp_path / "run", actions or {}, {"grace_secs": 0.2, **options}))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.communicate(timeout=WAIT_SECS)


def spare_of(run: Run, roles: dict[tuple[str, int], int], former: int = 0) -> int:
    """Wait for the supervisor's child that is no role; returns its pid."""
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    deadline = time.monotonic() + WAIT_SECS
    while time.monotonic() < deadline:
        if found := {int(pid) for pid in children.read_text().split()} - {*roles.values(), former}:
            return found.pop()
        select.select([], [], [], 0.01)
    raise AssertionError("no spare process was ever started")


def gone(pid: int) -> bool:
    """Wait for the end of a process that may not be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], WAIT_SECS)[0])
    finally:
        os.close(descriptor)


def test_every_role_learns_its_place_and_a_completed_run_ends_with_0(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    specs = {role: run.spec_of(pid) for role, pid in pids.items() if role[0] != "supervisor"}
    assert pids["supervisor", 0] == run.process.pid
    assert specs["chief", 0]["chief"] == "" and specs["chief", 0]["platforms"] == "cpu"
    assert specs["server", 0]["chief"] == CHIEF and specs["server", 0]["platforms"] == "cpu"
    assert specs["worker", 1]["chief"] == CHIEF and specs["worker", 1]["platforms"] is None
    assert specs["worker", 1]["role_id"] == 1 and specs["worker", 1]["life"] == 0
    assert {spec["num_workers"] for spec in specs.values()} == {2}
    assert len({spec["coordinator"] for spec in specs.values()}) == 1
    os.kill(pids["chief", 0], signal.SIGUSR2)
    os.kill(pids["worker", 0], signal.SIGUSR2)  # leaves by itself; the others are made to
    assert run.wait_call(call="ended") == {"call": "ended", "code": 0, "heavy": []}
    assert run.end() == (0, "")
    assert all(gone(pid) for pid in pids.values())


def test_a_killed_worker_is_reported_and_reborn_each_time(begin: Begin) -> None:
    run = begin()
    pid = run.started()["worker", 1]
    for life in range(1, 7):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"], lost["reason"]) == ("worker", 1, pid, "signal SIGKILL")
        pid = run.wait_call(call="role_started", role="worker", id=1)["pid"]
        assert run.spec_of(pid)["life"] == life


def test_a_worker_that_ends_as_told_is_not_replaced(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    run.spec_of(pids["worker", 0])
    os.kill(pids["worker", 0], signal.SIGUSR2)
    assert gone(pids["worker", 0])
    os.kill(pids["worker", 1], signal.SIGKILL)
    assert run.next_call()["id"] == 1  # nothing was told about worker 0 before it


def test_a_worker_that_fails_again_and_again_ends_the_run_with_its_name_and_log(begin: Begin) -> None:
    run = begin({"worker 1": {"exit": 3}})
    code, written = run.end()
    assert code == 70
    assert "error: worker 1 fails again and again (exit 3)" in written
    assert "worker-1.log" in written and "worker 1 was here" in written


def test_a_worker_that_failed_once_with_a_reason_is_replaced(begin: Begin) -> None:
    run = begin({"worker 0 life 0": {"error": "lost its way"}})
    assert run.wait_call(call="role_lost")["reason"] == "exit 70: lost its way"
    assert run.wait_call(call="role_started", role="worker", id=0)["reason"].startswith(
        "restart after exit 70"
    )


def test_a_spare_process_takes_the_place_and_the_log_of_a_killed_worker(begin: Begin) -> None:
    run = begin(spare_secs=0.1)
    roles = run.started()
    run.spec_of(roles["worker", 1])  # by then it has written to its log
    for life in (1, 2):
        spare = spare_of(run, roles)
        os.kill(roles["worker", 1], signal.SIGKILL)
        assert run.wait_call(call="role_lost")["pid"] == roles["worker", 1]
        roles["worker", 1] = run.wait_call(call="role_started", role="worker")["pid"]
        assert roles["worker", 1] == spare, "another process was started, though one was there"
        spec = run.spec_of(spare)
        assert (spec["role_id"], spec["life"], spec["chief"]) == (1, life, CHIEF)
    last = spare_of(run, roles)
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")
    log = (run.workdir / "logs" / "worker-1.log").read_text().splitlines()
    assert log == [line for life in range(3) for line in (f"--- worker 1, life {life}", "worker 1 was here")]
    assert gone(last), "the last spare process outlived the run"


def test_a_spare_worker_that_cannot_be_started_ends_no_run(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs" / "worker-spare.log").mkdir(parents=True)  # it cannot be opened
    run = begin(spare_secs=0.05)
    roles = run.started()
    os.kill(roles["worker", 1], signal.SIGKILL)
    assert run.wait_call(call="role_lost")["pid"] == roles["worker", 1]
    run.spec_of(run.wait_call(call="role_started", role="worker")["pid"])
    os.kill(roles["chief", 0], signal.SIGUSR2)
    code, said = run.end()
    assert code == 0 and said.startswith("no spare worker could be started: "), said


def test_a_spare_process_that_ends_is_replaced_and_nobody_is_told(begin: Begin) -> None:
    run = begin(spare_secs=0.1)
    roles = run.started()
    first = spare_of(run, roles)
    os.kill(first, signal.SIGKILL)
    second = spare_of(run, roles, former=first)
    os.kill(roles["worker", 0], signal.SIGKILL)
    assert run.next_call()["pid"] == roles["worker", 0], "the spare process is no role"
    assert run.next_call()["pid"] == second
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_killed_server_is_reported_and_reborn(begin: Begin) -> None:
    run = begin()
    pid = run.started()["server", 0]
    for life in range(1, 6):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"], lost["reason"]) == ("server", 0, pid, "signal SIGKILL")
        pid = run.wait_call(call="role_started", role="server")["pid"]
        spec = run.spec_of(pid)
        assert (spec["life"], spec["chief"]) == (life, CHIEF)


def test_a_killed_chief_is_restarted_at_its_address_and_told_what_happened(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    former = {role: run.spec_of(pid) for role, pid in pids.items() if role[0] != "supervisor"}
    pid = pids["chief", 0]
    for life in range(1, 6):
        os.kill(pid, signal.SIGKILL)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["pid"], lost["reason"]) == ("chief", pid, "signal SIGKILL")
        started = run.wait_call(call="role_started")
        assert (started["role"], started["reason"]) == ("chief", "restart after signal SIGKILL")
        pid = started["pid"]
        spec = run.spec_of(pid)
        assert (spec["life"], spec["chief"], spec["platforms"]) == (life, CHIEF, "cpu")
        assert spec["coordinator"] == former["worker", 0]["coordinator"]
    assert len((run.workdir / "specs.jsonl").read_text().splitlines()) == NUM_PROCESSES - 1 + 5, "others live on"
    os.kill(pid, signal.SIGUSR2)
    assert run.end() == (0, "")


def test_who_left_because_the_run_was_over_is_back_for_a_chief_that_did_not_live_to_end_it(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    run.spec_of(pids["worker", 1])
    os.kill(pids["worker", 1], signal.SIGUSR2)
    assert gone(pids["worker", 1])
    os.kill(pids["chief", 0], signal.SIGKILL)
    assert run.wait_call(call="role_started", role="chief")["reason"] == "restart after signal SIGKILL"
    back = run.wait_call(call="role_started", role="worker", id=1)["pid"]
    assert run.spec_of(back)["life"] == 1
    os.kill(run.wait_spec(role="chief", life=1)["pid"], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_chief_killed_while_it_saves_for_a_preemption_is_followed_by_one_that_is_asked_again(begin: Begin) -> None:
    run = begin(deaf_to_preempt=True)
    pids = run.started()
    run.process.send_signal(signal.SIGTERM)
    run.wait_call(call="preempt")
    os.kill(pids["chief", 0], signal.SIGKILL)
    assert run.wait_call(call="role_started", role="chief")["reason"] == "restart after signal SIGKILL"
    run.wait_call(call="preempt")
    os.kill(run.wait_spec(role="chief", life=1)["pid"], signal.SIGUSR1)
    assert run.end() == (75, "")


def test_a_restarted_chief_is_told_again_which_units_processes_ended_on(begin: Begin) -> None:
    run = begin({"worker 0 life 0": {"unit": 17, "exit": 3}})
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
    run = begin({"chief 0 life 1": {"late": True}})
    pids = run.started()
    os.kill(pids["chief", 0], signal.SIGKILL)
    restarted = run.wait_spec(role="chief", life=1)["pid"]
    os.kill(pids["worker", 1], signal.SIGKILL)
    reborn = run.wait_spec(role="worker", role_id=1, life=1)
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
    run = begin({"chief 0 life 1": {"late": True}}, deaf_to_preempt=True)
    os.kill(run.started()["chief", 0], signal.SIGKILL)
    restarted = run.wait_spec(role="chief", life=1)["pid"]
    run.process.send_signal(signal.SIGTERM)
    assert run.silent(1.5)
    os.kill(restarted, signal.SIGHUP)
    assert run.next_call() == {"call": "preempt"}, "what is left to do comes before what has happened"
    run.wait_call(call="role_lost", role="chief")
    os.kill(restarted, signal.SIGUSR1)
    assert run.end() == (75, "")


def test_a_role_that_the_chief_gave_up_is_ended_and_replaced(begin: Begin) -> None:
    run = begin({"chief 0": {"kill": [{"role": "worker", "id": 1}]}})
    pids = run.started()
    pid = pids["worker", 1]
    for life in range(1, 3):
        run.spec_of(pid)
        os.kill(pids["chief", 0], signal.SIGHUP)
        lost = run.wait_call(call="role_lost")
        assert (lost["role"], lost["id"], lost["pid"]) == ("worker", 1, pid)
        assert gone(pid)
        pid = run.wait_call(call="role_started", role="worker", id=1)["pid"]
        assert run.spec_of(pid)["life"] == life


def test_a_process_that_has_the_place_of_one_that_was_given_up_is_left_alone(begin: Begin) -> None:
    former, nobody = {"role": "worker", "id": 1, "pid": 1}, {"role": "gopher", "id": 0, "pid": 1}
    run = begin({"chief 0": {"kill": [former, nobody, {"role": "worker", "id": 0}]}})
    pids = run.started()
    for role in (("worker", 0), ("worker", 1)):
        run.spec_of(pids[role])
    os.kill(pids["chief", 0], signal.SIGHUP)
    assert run.wait_call(call="role_lost")["id"] == 0, "the last of three words came after the first"
    assert run.wait_call(call="role_started")["id"] == 0
    assert run.silent(0.5)


def test_in_a_new_world_every_worker_starts_again_and_the_others_stay(begin: Begin) -> None:
    run = begin({"chief 0": {"renew": True}})
    pids = run.started()
    former = {run.spec_of(pid)["coordinator"] for (role, _), pid in pids.items() if role != "supervisor"}
    for life in range(1, 6):  # more often than a worker may fail by itself
        os.kill(pids["chief", 0], signal.SIGHUP)
        for worker in (0, 1):
            lost = run.wait_call(call="role_lost")
            assert (lost["role"], lost["id"], lost["pid"]) == ("worker", worker, pids["worker", worker])
            pids["worker", worker] = run.wait_call(call="role_started", role="worker", id=worker)["pid"]
        specs = [run.spec_of(pids["worker", worker]) for worker in (0, 1)]
        assert [spec["life"] for spec in specs] == [life, life]
        (coordinator,) = {spec["coordinator"] for spec in specs}
        assert coordinator not in former
        former.add(coordinator)
    os.kill(pids["server", 0], 0)


def test_a_chief_that_fails_by_itself_again_and_again_ends_the_run(begin: Begin) -> None:
    run = begin({f"chief 0 life {life}": {"exit": 9} for life in range(1, 9)})
    pids = run.started()
    os.kill(pids["chief", 0], signal.SIGKILL)
    code, written = run.end()
    assert code == 70
    assert "error: the chief was lost (exit 9); run the same command again" in written
    assert "chief 0 was here" in written
    lives = [json.loads(line)["life"] for line in (run.workdir / "specs.jsonl").read_text().splitlines()]
    assert max(lives) == 4, "three failures within 30 s are borne"
    assert all(gone(pid) for pid in pids.values())


def test_a_chief_that_is_lost_before_it_ever_served_ends_the_run(begin: Begin) -> None:
    run = begin({"chief 0": {"silent": True}})
    os.kill(run.wait_spec(role="chief")["pid"], signal.SIGKILL)
    code, written = run.end()
    assert code == 70
    assert written == (
        "error: the chief was lost (signal SIGKILL); run the same command again: it resumes from the last commit\n"
    )


def test_a_restarted_chief_that_has_an_end_to_tell_ends_the_run_by_it(begin: Begin) -> None:
    run = begin({"chief 0 life 1": {"refuse": "the checkpoints have another unit size"}})
    os.kill(run.started()["chief", 0], signal.SIGKILL)
    assert run.end() == (1, "error: the checkpoints have another unit size\n")


@pytest.mark.parametrize("role", ["chief 0", "server 0", "worker 1"])
def test_refused_input_is_said_once_without_a_log(begin: Begin, role: str) -> None:
    code, written = begin({role: {"refuse": "the plan's shares sum to 90 %, not 100 %"}}).end()
    assert (code, written) == (1, "error: the plan's shares sum to 90 %, not 100 %\n")


def test_a_chief_that_ends_with_a_traceback_each_time_is_our_fault(begin: Begin) -> None:
    code, written = begin({"chief 0": {"exit": 1}}).end()
    assert code == 70
    assert written.startswith("error: the chief was lost (exit 1); run the same command again")
    assert "chief 0 was here" in written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_makes_the_chief_save_and_the_run_end_with_75(begin: Begin, number: signal.Signals) -> None:
    run = begin()
    pids = run.started()
    run.process.send_signal(number)
    run.wait_call(call="preempt")
    assert run.end() == (75, "")
    assert all(gone(pid) for pid in pids.values())


def test_a_signal_before_the_chief_serves_ends_the_run_with_75(begin: Begin) -> None:
    run = begin({"chief 0": {"silent": True}})
    chief = run.wait_spec(role="chief")["pid"]
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (75, "")
    assert gone(chief)


def test_a_second_signal_kills_everything_at_once(begin: Begin) -> None:
    run = begin(deaf_to_preempt=True)
    pids = run.started()
    run.process.send_signal(signal.SIGTERM)
    run.wait_call(call="preempt")
    begun = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (75, "")
    assert time.monotonic() - begun < 3.0
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


def test_roles_die_with_a_killed_supervisor(begin: Begin) -> None:
    run = begin()
    pids = run.started()
    for role, pid in pids.items():
        if role[0] != "supervisor":
            run.spec_of(pid)
    run.process.kill()
    assert all(gone(pid) for pid in pids.values())


def test_what_the_chief_did_not_take_is_told_again_in_order(begin: Begin) -> None:
    run = begin(deaf_calls=2)
    pids = run.started()
    assert [call["call"] for call in run.calls[:2]] == ["deaf", "deaf"]
    assert list(pids) == [("supervisor", 0), ("chief", 0), ("server", 0), ("worker", 0), ("worker", 1)]
    assert len(run.calls) == 2 + NUM_PROCESSES


def test_a_program_that_no_supervisor_started_has_no_line() -> None:
    assert Child.attach() is None


def test_exits_are_put_into_words() -> None:
    assert [describe_exit(code) for code in (0, 3, -11)] == ["exit 0", "exit 3", "signal SIGSEGV"]


def test_failures_of_different_roles_or_long_ago_are_no_crash_loop() -> None:
    loop = CrashLoop(limit=1, window_secs=10.0)
    assert not loop.add("worker 0", now=0.0)
    assert not loop.add("chief", now=1.0)
    assert not loop.add("worker 0", now=11.0)
    assert loop.add("worker 0", now=12.0)


def test_the_supervisor_imports_neither_jax_nor_orbax() -> None:
    heavy = {"jax", "jaxlib", "orbax", "grpc", "flax"}
    program = f"import sys, hybridsync.runtime.supervisor; print(*{heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
        check=True,
    )
    assert done.stdout.strip() == ""
