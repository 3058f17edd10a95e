"""Waits for roles: what is needed, what is said, and what ends them."""

from __future__ import annotations

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.config import RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import Preempted, WaitTimeout
from hybridsync.phases import member_waits
from hybridsync.phases.member_waits import MemberWaits
from hybridsync.protocols.modes import LOCKSTEP, SERVER
from tests.chief.chiefs import WatchedChief
from tests.roles import hello

CONFIG = RunConfig(workload=10, unit_size=1, workers=2, servers=1)


@pytest.fixture
def chief() -> WatchedChief:
    return WatchedChief(Ledger(10), 2, clock=SYSTEM_CLOCK)


def arrivals_at(chief: WatchedChief, said: list[str] | None = None) -> MemberWaits:
    say = said.append if said is not None else lambda text: None
    return MemberWaits(chief.control, CONFIG, SYSTEM_CLOCK, lambda: None, say)


def test_everybody_is_waited_for_at_the_start_and_named_when_late(chief, monkeypatch):
    monkeypatch.setattr(member_waits, "START_DEADLINE_SECS", 0.15)
    monkeypatch.setattr(member_waits, "SAY_SECS", 0.01)
    chief.service.register(hello(1))
    said: list[str] = []
    with pytest.raises(WaitTimeout, match=r"workers \[0\] have not registered; 0 of 1 servers have"):
        arrivals_at(chief, said).await_all()
    assert len(said) == 1, "it is said once"
    chief.service.register(hello(0))
    chief.service.register(hello(0, role="server"))
    arrivals_at(chief).await_all()


def test_a_lock_step_phase_begins_with_the_workers_that_are_left(chief):
    chief.service.register(hello(1))
    arrivals_at(chief).await_needed(LOCKSTEP)


def test_a_served_phase_needs_its_servers(chief, monkeypatch):
    monkeypatch.setattr(member_waits, "START_DEADLINE_SECS", 0.1)
    chief.service.register(hello(1))
    with pytest.raises(WaitTimeout, match="0 of 1 servers"):
        arrivals_at(chief).await_needed(SERVER)


def test_a_run_that_is_asked_to_stop_waits_for_nobody(chief):
    chief.service.preempt()
    with pytest.raises(Preempted, match=r"workers \[0, 1\] have not registered"):
        arrivals_at(chief).await_all()


def test_a_restarted_chief_waits_until_nobody_new_comes_and_gives_up_who_was_there(chief, monkeypatch):
    """Nothing else would end a process that is stopped."""
    monkeypatch.setattr(member_waits, "SETTLE_SECS", 0.1)
    chief.service.register(hello(0))
    there = [("chief", 0, 0, 1), ("supervisor", 0, 0, 2), ("worker", 0, 0, 100), ("worker", 1, 0, 101)]
    there.append(("server", 0, 0, 99))
    arrivals_at(chief).await_registrations(there)
    assert chief.control.members.live_workers() == (0,)
    evicted = chief.evicted
    assert [(event.role, event.id, event.pid) for event in evicted] == [("worker", 1, 101), ("server", 0, 99)]
    assert evicted[0].reason == "no sign of life for 0.1 s since the chief was restarted"
    assert chief.control.take_reports().lost == evicted
