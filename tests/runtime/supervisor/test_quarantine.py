"""The supervisor over fake roles: a worker that fails again and again is quarantined, and the others go on."""

from __future__ import annotations

import os
import signal

from hybridsync.runtime.supervisor.placement import MAX_FAILURES
from tests.runtime.supervised import Begin, gone


def test_a_worker_that_fails_again_and_again_is_started_no_more_and_named(begin: Begin) -> None:
    run = begin({"worker 1": {"exit": 3}})
    pids = run.started()
    run.spec_of(pids["worker", 0])
    lost = [run.wait_call(call="role_lost", role="worker") for _ in range(MAX_FAILURES)]
    assert [(call["id"], call["quarantined"]) for call in lost] == [(1, False)] * 3 + [(1, True)]
    assert [call["reason"] for call in lost[:3]] == ["exit 3"] * 3
    log = run.workdir / "logs" / "worker-1.log"
    assert lost[3]["reason"] == f"it failed 4 times in a row by itself, the last time with exit 3; see {log}"
    assert run.silent(1.5), "it was started again, or others were disturbed"
    os.kill(pids["worker", 0], signal.SIGKILL)
    assert run.wait_call(call="role_lost")["reason"] == "signal SIGKILL"
    assert run.wait_call(call="role_started")["id"] == 0
    os.kill(pids["chief", 0], signal.SIGUSR2)
    assert run.end() == (0, "")


def test_a_restarted_chief_hears_again_who_is_quarantined_and_the_worker_stays_away(begin: Begin) -> None:
    run = begin({"worker 1": {"exit": 3}})
    chief = run.started()["chief", 0]
    told = run.wait_call(call="role_lost", quarantined=True)
    os.kill(chief, signal.SIGKILL)
    assert run.wait_call(call="role_lost", role="chief")["pid"] == chief
    assert run.next_call() == told
    assert run.next_call()["role"] == "chief"
    assert run.silent(1.5), "only the chief was to be started"


def test_the_process_group_begins_anew_without_a_worker_that_never_joined_it(begin: Begin) -> None:
    run = begin({"worker 1": {"exit": 3, "apart": True}, "worker 0 restart 0": {"apart": True}})
    first = run.spec_of(run.started()["worker", 0])
    assert first["slots"] == [0, 1]
    run.wait_call(call="role_lost", quarantined=True)
    second = run.wait_spec(role="worker", role_id=0, restart_count=1)
    assert second["slots"] == [0] and second["coordinator"] != first["coordinator"]


def test_a_worker_that_comes_back_finds_the_places_as_they_were_when_all_joined(begin: Begin) -> None:
    """Its place in a process group is its number among all slots, of which one is empty now."""
    run = begin({"worker 0": {"exit": 3}})
    pids = run.started()
    first = run.spec_of(pids["worker", 1])
    run.wait_call(call="role_lost", quarantined=True)
    os.kill(pids["worker", 1], signal.SIGKILL)
    second = run.wait_spec(role="worker", role_id=1, restart_count=1)
    assert second["coordinator"] == first["coordinator"] and second["slots"] == first["slots"] == [0, 1]


def test_a_worker_that_the_chief_quarantines_is_ended_and_not_replaced(begin: Begin) -> None:
    run = begin({"chief 0": {"kill": [{"role": "worker", "id": 1, "quarantine": "its units are not finite"}]}})
    pids = run.started()
    run.spec_of(pids["worker", 1])
    os.kill(pids["chief", 0], signal.SIGHUP)
    lost = run.wait_call(call="role_lost")
    assert (lost["id"], lost["reason"], lost["quarantined"]) == (1, "its units are not finite", True)
    assert gone(pids["worker", 1]) and run.silent(1.5)


def test_a_chief_that_does_not_end_the_run_when_nobody_is_left_is_named(begin: Begin) -> None:
    run = begin({"worker 0": {"exit": 3}, "worker 1": {"exit": 4}}, preempt_secs=0.5)
    code, written = run.end()
    assert code == 70 and "the chief has not saved and left within 0.5 s" in written


def test_a_chief_that_ends_the_run_because_nobody_is_left_is_heard(begin: Begin) -> None:
    run = begin({"worker 0": {"exit": 3}, "worker 1": {"exit": 4}})
    chief = run.started()["chief", 0]
    for _ in range(2):
        run.wait_call(call="role_lost", quarantined=True)
    os.kill(chief, signal.SIGUSR1)
    assert run.end()[0] == 75
