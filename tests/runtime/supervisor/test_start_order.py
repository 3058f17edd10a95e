"""Roles are told what to do at once, in any order; where the chief serves, they hear once it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.runtime.supervised import CHIEF, WAIT_SECS, Begin, gone

LATE_CHIEF = {"chief 0 restart 0": {"held": True}}


def test_a_role_has_its_spec_while_the_chief_still_prepares(begin: Begin) -> None:
    run = begin({**LATE_CHIEF, "worker 0": {"early": True}})
    chief = run.wait_spec(role="chief")["pid"]
    assert run.wait_spec(role="worker", role_id=0)["chief"] == ""
    assert run.silent(0.2), "a chief that does not serve was called"
    os.kill(chief, signal.SIGHUP)
    assert run.wait_spec(role="worker", role_id=1)["chief"] == CHIEF
    assert run.wait_spec(role="server")["chief"] == CHIEF
    os.kill(chief, signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_role_that_is_killed_before_the_chief_serves_is_replaced_once_it_does(begin: Begin) -> None:
    run = begin({**LATE_CHIEF, "worker 0 restart 0": {"early": True}})
    chief = run.wait_spec(role="chief")["pid"]
    worker = run.wait_spec(role="worker", role_id=0)["pid"]
    os.kill(worker, signal.SIGKILL)
    assert gone(worker)
    os.kill(chief, signal.SIGHUP)
    assert run.wait_call(call="role_lost")["pid"] == worker
    assert run.wait_spec(role="worker", role_id=0, restart_count=1)["chief"] == CHIEF


@pytest.mark.parametrize("code", [0, 75])
def test_a_role_that_leaves_before_the_chief_serves_is_replaced_whatever_its_exit_code(begin: Begin, code: int) -> None:
    run = begin({**LATE_CHIEF, "worker 0 restart 0": {"early": True, "exit": code}})
    chief = run.wait_spec(role="chief")["pid"]
    assert gone(run.wait_spec(role="worker", role_id=0)["pid"])
    os.kill(chief, signal.SIGHUP)
    assert run.wait_spec(role="worker", role_id=0, restart_count=1)["chief"] == CHIEF


def test_of_two_refusals_at_the_start_the_chiefs_is_told(begin: Begin) -> None:
    refuses = {"held": True, "refuse": "the chief's reason"}
    run = begin({"chief 0": refuses, "worker 0": {"early": True, "refuse": "a worker's reason"}})
    chief = run.wait_spec(role="chief")["pid"]
    assert gone(run.wait_spec(role="worker", role_id=0)["pid"])
    os.kill(chief, signal.SIGHUP)
    assert run.end() == (1, "error: the chief's reason\n")


def test_what_a_role_refuses_before_the_chief_serves_ends_the_run_when_it_does(begin: Begin) -> None:
    run = begin({**LATE_CHIEF, "worker 0": {"early": True, "refuse": "a worker's reason"}})
    chief = run.wait_spec(role="chief")["pid"]
    assert gone(run.wait_spec(role="worker", role_id=0)["pid"])
    os.kill(chief, signal.SIGHUP)
    code, written = run.end()
    assert code == 1 and written.startswith("error: a worker's reason\n")


def test_a_chief_that_dies_before_it_serves_ends_the_run_and_the_roles_that_prepare(begin: Begin) -> None:
    run = begin({**LATE_CHIEF, "worker 0": {"early": True}})
    chief = run.wait_spec(role="chief")["pid"]
    worker = run.wait_spec(role="worker", role_id=0)["pid"]
    os.kill(chief, signal.SIGKILL)
    code, written = run.end()
    assert code == 70 and "error: the chief was lost (signal SIGKILL)" in written
    assert gone(worker)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("spec", "worker 2 waited 0.05 s for the supervisor to say what to do"),
        ("chief_address", "worker 2 waited 0.05 s for the chief to serve"),
    ],
)
def test_a_role_that_is_told_nothing_names_who_is_missing(call: str, message: str) -> None:
    program = f"""
import os
from hybridsync.core.errors import WaitTimeout
from hybridsync.runtime.role.role_pipe import SHARED_BYTES, Child
shared = os.memfd_create("shared")
os.truncate(shared, SHARED_BYTES)
try:
    Child("worker", 2, 1, shared).{call}(0.05)
except WaitTimeout as error:
    print(error)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().decode() == f"{message}\n"
        assert process.wait(WAIT_SECS) == 0
