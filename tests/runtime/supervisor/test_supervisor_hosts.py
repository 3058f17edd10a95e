"""The supervisor of several hosts: what it orders where, whom it waits for, what it makes of a host that is lost."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from hybridsync.interfaces.messages import STARTED_FIRST
from hybridsync.runtime.supervisor.placement import MAX_FAILURES
from tests.runtime.supervised import Begin, Run

TWO_HOSTS = {"num_hosts": 2, "host": "127.0.0.1", "collective": "host"}
"""Worker 0 is at home on the head, worker 1 on host 1."""
PID = 1 << 22
"""Above every process id: what a fake agent says is never a process of this machine."""


def heard(run: Run, **fields: Any) -> dict[str, Any]:
    """Return the first call with these fields that was not returned yet; agents and chief hear in no order."""
    waiting = (call for call in run.calls if fields.items() <= call.items() and "taken" not in call)
    call = next(waiting, None) or run.wait_call(**fields)
    call["taken"] = True
    return call


def ordered(run: Run, kind: str = "StartRole", host: int = 1) -> dict[str, Any]:
    """Wait for the next order of a kind to a host."""
    return heard(run, call="order", kind=kind, host=host)


def start_as_ordered(run: Run, pid: int = PID, host: int = 1) -> dict[str, Any]:
    """Have a host's agent start what it is told next; returns what that is."""
    order = ordered(run, host=host)
    spec = order["spec"]
    names = {name: spec[name] for name in ("role", "role_id", "restart_count")}
    run.agent(host, kind="Started", pid=pid, reason=order["reason"], **names)
    return order


def until_started(run: Run, pid: int) -> dict[str, Any]:
    return heard(run, call="role_started", pid=pid)


def end(run: Run) -> None:
    """Have the run end as complete."""
    assert run.process.poll() is None
    (chief,) = (call["pid"] for call in run.calls if call["call"] == "role_started" and call["role"] == "chief")
    os.kill(chief, signal.SIGUSR2)


def test_a_host_gets_its_worker_when_it_attaches_and_is_told_where_the_chief_serves_and_of_the_end(
    begin: Begin,
) -> None:
    run = begin({}, **TWO_HOSTS)
    heard(run, call="role_started", role="chief")
    run.agent(1, attach=1)
    assert run.stderr_line() == "host 1 (node1) has joined with 1 slot\n"
    spec = start_as_ordered(run)["spec"]
    assert (spec["role"], spec["role_id"], spec["restart_count"]) == ("worker", 1, 0)
    assert until_started(run, PID)["reason"] == STARTED_FIRST
    run.agent(1, kind="Ended", role="worker", role_id=1, pid=PID, code=-9, lived_secs=1.0, unit=7)
    assert heard(run, call="role_lost")["unit"] == 7
    assert ordered(run)["spec"]["restart_count"] == 1
    end(run)
    assert ordered(run, "EndRun")["exit_code"] == 0


def test_what_ran_on_a_host_that_is_lost_is_told_as_lost_and_started_there_again(begin: Begin) -> None:
    run = begin({}, **TWO_HOSTS)
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)
    run.agent(1, attach=1)  # another agent takes the place of the first
    assert run.stderr_line().startswith("host 1 (node1) has joined")
    assert run.stderr_line().startswith("host 1 is lost: host 1 (node1) was replaced")
    lost = heard(run, call="role_lost")
    assert (lost["role"], lost["id"], lost["pid"]) == ("worker", 1, PID)
    assert "host 1 is lost" in lost["reason"]
    order = start_as_ordered(run, PID + 1)
    assert order["spec"]["restart_count"] == 1
    until_started(run, PID + 1)


def test_a_worker_whose_host_stays_away_goes_to_a_free_slot_and_stays_there(begin: Begin) -> None:
    run = begin({}, **TWO_HOSTS, slots=2, patience_secs=0.3)
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)
    run.agent(1, kind="Leaving", reason="its agent was ended by SIGTERM")
    heard(run, call="role_lost", id=1)
    back = heard(run, call="role_started", id=1)
    assert back["role"] == "worker" and back["pid"] in run.children(), "the head has started it"
    run.agent(1, attach=1)
    said = [run.stderr_line() for _ in range(3)]
    assert "has joined" in said[0] and "is lost" in said[1] and "has joined" in said[2], said
    end(run)
    assert ordered(run, "EndRun")["exit_code"] == 0
    assert [call for call in run.calls if call.get("kind") == "StartRole"][1:] == []


def test_a_host_that_was_never_there_is_waited_for_longer_than_one_that_is_lost(begin: Begin) -> None:
    run = begin({"worker 0": {"apart": True}}, **TWO_HOSTS, slots=2, patience_secs=0.1, attach_secs=30.0)
    run.spec_of(heard(run, call="role_started", role="server")["pid"])
    assert run.silent(1.5), "a late host is found with nothing to do, and another one has too much"
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)


def test_the_run_begins_without_a_host_for_whose_roles_others_have_slots(begin: Begin) -> None:
    run = begin({"worker 0": {"apart": True}}, **TWO_HOSTS, slots=2, patience_secs=0.1, attach_secs=1.0)
    heard(run, call="role_started", role="worker", id=1)
    assert run.stderr_line() == "the run begins without host 1: others have slots for all\n"


def test_a_run_that_began_with_the_fewest_workers_gives_the_server_of_a_host_that_never_comes_to_another(
    begin: Begin,
) -> None:
    some = {"num_servers": 2, "min_workers": 1, "settle_secs": 0.1, "patience_secs": 0.1, "attach_secs": 1.0}
    run = begin({}, **TWO_HOSTS, **some)
    heard(run, call="role_started", role="worker", id=0)
    back = heard(run, call="role_started", role="server", id=1)
    assert back["pid"] in run.children(), "the head has started it"


def test_a_run_whose_host_never_comes_ends_with_its_number(begin: Begin) -> None:
    run = begin({"worker 0": {"apart": True}}, **TWO_HOSTS, head="10.0.0.1:4711", attach_secs=1.0)
    code, said = run.end()
    assert code == 70
    assert "host 1 has not attached to the head at 10.0.0.1:4711 within 1 s" in said
    assert "`hybridsync host --index=1`" in said


def test_a_host_that_is_lost_before_the_first_step_is_not_waited_for_without_end(begin: Begin) -> None:
    run = begin({"worker 0": {"apart": True}}, **TWO_HOSTS, head="10.0.0.1:4711", attach_secs=1.5)
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)
    run.agent(1, kind="Leaving", reason="its agent was ended by SIGTERM")
    code, said = run.end()
    assert code == 70
    assert "host 1 has not attached" in said


def test_a_worker_that_is_being_started_while_the_process_group_is_renewed_joins_the_new_one(begin: Begin) -> None:
    run = begin({"chief 0": {"renew": True}}, **TWO_HOSTS)
    chief = heard(run, call="role_started", role="chief")["pid"]
    run.agent(1, attach=1)
    first = ordered(run)
    os.kill(chief, signal.SIGHUP)
    second = ordered(run)["spec"]
    assert second["coordinator"] != first["spec"]["coordinator"] and second["restart_count"] == 1
    # The second order crosses the word that the first was carried out: its agent kills what it has started.
    run.agent(1, kind="Started", role="worker", role_id=1, restart_count=0, pid=PID, reason="start")
    run.agent(1, kind="Ended", role="worker", role_id=1, pid=PID, code=-9, lived_secs=1.0, unit=-1)
    third = ordered(run)["spec"]
    assert (third["coordinator"], third["restart_count"]) == (second["coordinator"], 2)


def test_a_host_that_is_lost_while_workers_meet_anew_is_not_waited_for_and_joins_later(begin: Begin) -> None:
    run = begin({"chief 0": {"renew": True}, "worker 0 restart 1": {"apart": True}}, **TWO_HOSTS, patience_secs=0.5)
    chief = heard(run, call="role_started", role="chief")["pid"]
    run.agent(1, attach=1)
    met = start_as_ordered(run)["spec"]["coordinator"]
    until_started(run, PID)
    heard(run, call="role_started", role="worker", id=0)
    told = {"role": "worker", "role_id": 1, "pid": PID}
    run.agent(1, kind="Reported", fields={"joined": met}, **told)
    run.agent(1, kind="Ended", code=-9, lived_secs=1.0, unit=-1, **told)
    heard(run, call="role_lost", id=1)  # so that the supervisor has heard that they have met
    assert ordered(run)["spec"]["slots"] == [0, 1]
    os.kill(chief, signal.SIGHUP)
    assert ordered(run)["spec"]["slots"] == [0, 1], "host 1 has a place in the new group"
    heard(run, call="role_started", id=0, restart_count=1)  # so that worker 0 has one in it, too
    run.agent(1, kind="Leaving", reason="its agent was ended by SIGTERM")
    assert run.wait_spec(role="worker", role_id=0, restart_count=2)["slots"] == [0]
    run.agent(1, attach=1)
    assert ordered(run)["spec"]["slots"] == [1], "a late worker has a group of its own"
    end(run)
    code, said = run.end()
    assert code == 0 and "the run goes on without host 1: it is away\n" in said


def test_a_second_sigterm_ends_all_hosts_at_once(begin: Begin) -> None:
    run = begin({}, **TWO_HOSTS, deaf_to_preempt=True)
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)
    run.process.send_signal(signal.SIGTERM)
    heard(run, call="preempt")
    assert ordered(run, "AwaitEnd"), "a host that is asked to leave as well would do so before the run is saved"
    run.process.send_signal(signal.SIGTERM)
    assert ordered(run, "EndRun")["exit_code"] == 70
    assert heard(run, call="ended")["code"] == 70


@pytest.mark.parametrize("early", [False, True], ids=["known here first", "given up first"])
def test_a_worker_whose_host_is_cut_off_again_and_again_is_not_the_one_that_fails(begin: Begin, early: bool) -> None:
    """It learns from the chief, when it is heard again, that its lease has ended, before the order to kill it comes."""
    given_up = [{"role": "worker", "id": 1, "pid": PID + time, "restart_count": time} for time in range(MAX_FAILURES)]
    chief_does = {"kill": [*given_up, {"role": "worker", "id": 0}]} if early else {"kill_in_turn": given_up}
    run = begin({"chief 0": chief_does}, **TWO_HOSTS)
    chief = heard(run, call="role_started", role="chief")["pid"]
    run.agent(1, attach=1)
    ended = {"kind": "Ended", "role": "worker", "role_id": 1, "code": 70, "lived_secs": 1.0, "unit": -1}
    if early:  # before it is heard that they have started; the head's own worker is the last that is given up
        run.spec_of(heard(run, call="role_started", role="worker", id=0)["pid"])
        os.kill(chief, signal.SIGHUP)
        heard(run, call="role_lost", role="worker", id=0)
    for pid in range(PID, PID + MAX_FAILURES):
        start_as_ordered(run, pid)
        until_started(run, pid)
        if not early:
            os.kill(chief, signal.SIGHUP)
        assert ordered(run, "KillRole")["pid"] == pid
        run.agent(1, pid=pid, **ended)
        assert not heard(run, call="role_lost", pid=pid)["quarantined"]
    assert ordered(run)["spec"]["restart_count"] == MAX_FAILURES


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "Reported", "fields": {"error": "it failed"}},
        {"kind": "Ended", "code": -9, "lived_secs": 1.0, "unit": 1 << 70},
    ],
    ids=["half a report", "a unit above all"],
)
def test_a_host_that_says_what_no_agent_says_is_lost_and_the_run_goes_on(begin: Begin, fields: dict[str, Any]) -> None:
    run = begin({}, **TWO_HOSTS)
    run.agent(1, attach=1)
    start_as_ordered(run)
    until_started(run, PID)
    run.agent(1, role="worker", role_id=1, pid=PID, **fields)
    assert "host 1 is lost" in heard(run, call="role_lost", id=1)["reason"]
    run.agent(1, attach=1)
    start_as_ordered(run, PID + 1)
    until_started(run, PID + 1)
    end(run)
    assert run.end()[0] == 0
