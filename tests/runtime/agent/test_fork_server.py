"""Roles grow from a fork server: it may die, have threads of its own, or never come to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridsync.config.device_config import DeviceConfig
from hybridsync.devices.environment import worker_environments
from hybridsync.runtime.agent import fork_server
from hybridsync.runtime.agent.fork_server import ForkServerClient, ForkServerLost
from hybridsync.runtime.agent.role_process import RoleProcess
from tests.runtime.supervised import ROOT, WAIT_SECS, Begin, seed_of


def test_a_seed_that_is_killed_takes_nobody_with_it_and_is_replaced(begin: Begin) -> None:
    run = begin()
    roles = run.started()
    first = seed_of(run, roles)
    os.kill(first, signal.SIGKILL)
    assert seed_of(run, roles, former=first)
    assert set(roles.values()) - {run.process.pid} <= run.children(), (
        "a role died with the fork server that it grew from"
    )
    os.kill(roles["worker", 0], signal.SIGKILL)
    assert run.next_call()["pid"] == roles["worker", 0], "the fork server is no role"
    run.spec_of(run.next_call()["pid"])
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_roles_of_a_seed_with_threads_of_its_own_are_started_as_programs(begin: Begin) -> None:
    run = begin({"fork server": {"threads": True}})
    roles = run.started()
    specs = [run.spec_of(roles[role]) for role in (("chief", 0), ("worker", 0), ("worker", 1))]
    assert all(spec["is_program"] for spec in specs)
    os.kill(roles["worker", 0], signal.SIGKILL)
    assert run.wait_call(call="role_lost")["pid"] == roles["worker", 0]
    assert run.spec_of(run.wait_call(call="role_started")["pid"])["restart_count"] == 1
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_seed_that_ends_at_once_is_told_with_its_last_words(begin: Begin) -> None:
    run = begin({"fork server": {"exit": "it reads no such file"}})
    code, said = run.end()
    assert code != 0 and "RoleLost: the fork server ended, exit 1" in said and "it reads no such file" in said


def test_roles_draw_other_numbers_than_each_other(begin: Begin) -> None:
    run = begin({"fork server": {"numpy": True}})
    roles = run.started()
    draws = [run.spec_of(pid)["drawn"] for role, pid in roles.items() if role[0] != "supervisor"]
    assert {len(drawn) for drawn in draws} == {2}, "of Python and of NumPy"
    for of_one_generator in zip(*draws, strict=True):
        assert len(set(of_one_generator)) == len(draws)
    os.kill(roles["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


TELLS = """from hybridsync.runtime.agent import fork_server
import os
fork_server.connect().serve('jax')
import jax
print(jax.config.jax_platforms, os.environ.get('CUDA_VISIBLE_DEVICES'))
print('libcuda' in open('/proc/self/maps').read())"""


@pytest.mark.parametrize(
    ("named", "of_a_worker"), [(None, "cpu None"), ("", "cpu None"), ("cuda,cpu", "cuda,cpu 1"), ("tpu", "tpu None")]
)
def test_a_worker_alone_has_the_devices_of_its_order_though_jax_was_imported_before_the_fork(
    named: str | None, of_a_worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if named is not None:
        monkeypatch.setenv("JAX_PLATFORMS", named)
    told = {}
    (of_worker,) = worker_environments(DeviceConfig(), 1, {**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    with contextlib.closing(
        ForkServerClient([sys.executable, "-c", TELLS], tmp_path / "fork-server.log")
    ) as fork_server_client:
        for role in ("server", "worker"):
            log = tmp_path / f"{role}.log"
            order = of_worker if role == "worker" else {}
            process = RoleProcess(fork_server_client, role, 0, 0, log, environment=order).started()
            assert process.wait_ended(WAIT_SECS)
            assert process.reap() == 0
            told[role], has_cuda = log.read_text().splitlines()[-2:]
            assert has_cuda == "False", "a role has of CUDA what the fork server had"
        environment = Path(f"/proc/{fork_server_client.pid}/environ").read_bytes().split(b"\0")
        assert b"JAX_PLATFORMS=cpu" in environment, "the configuration file runs there, and may ask JAX for devices"
    assert told == {"server": "cpu None", "worker": of_a_worker}


def test_a_fork_server_that_does_not_answer_in_time_is_replaced(tmp_path: Path, monkeypatch) -> None:
    """Its late answer would be taken for that to the next order."""
    monkeypatch.setattr(fork_server, "START_SECS", 0.2)
    idle = [sys.executable, "-c", f"import time; time.sleep({WAIT_SECS})"]
    with contextlib.closing(ForkServerClient(idle, tmp_path / "fork-server.log")) as fork_server_client:
        former = fork_server_client.pid
        with pytest.raises(ForkServerLost, match=f"process {former}, has not answered for 0.2 s"):
            RoleProcess(fork_server_client, "worker", 0, 0, tmp_path / "worker.log").started()
        assert fork_server_client.ensure_running() and fork_server_client.pid != former


@pytest.mark.parametrize("actions", [{}, {"fork server": {"threads": True}}], ids=["forked", "programs"])
def test_a_signal_to_all_processes_of_a_host_leaves_it_to_the_supervisor_when_they_end(
    begin: Begin, actions: dict[str, Any]
) -> None:
    run = begin(actions)
    roles = run.started()
    seed = seed_of(run, roles)
    for pid in {*roles.values()} - {run.process.pid}:
        run.spec_of(pid)  # it has begun
    told = len(run.calls)
    for pid in (*(pid for pid in roles.values() if pid != run.process.pid), seed, run.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert run.wait_call(call="ended")["code"] == 75
    assert [call["call"] for call in run.calls[told:]] == ["preempt", "ended"], "a role died before the run was saved"


PARENT = """import os, signal, sys
from hybridsync.runtime import end_signals
end_signals.outlive_signals()
end_signals.forks_end_on_signals()
for number in (signal.SIGTERM, signal.SIGINT, *end_signals.WARNINGS):
    os.kill(os.getpid(), number)
if (child := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os.execvp('grep', ['grep', 'SigIgn', '/proc/self/status'])"""


def test_what_a_role_starts_ends_on_signals_as_any_program_does() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECS, check=True)
    forked, ignored = ended.stdout.splitlines()
    assert int(forked) == -signal.SIGTERM
    mask = int(ignored.split()[1], 16)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    assert [number for number in numbers if mask >> (number - 1) & 1] == []
