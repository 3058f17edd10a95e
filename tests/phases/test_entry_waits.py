"""Waits for roles: what is needed, what is said, and what ends them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.membership import VACANT_SECS
from hybridsync.chief.run_state import RunState
from hybridsync.config import RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import Preempted, WaitTimeout
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.phases import entry
from hybridsync.phases.entry import SETTLE_SECS, MemberWaits
from hybridsync.protocols.modes import LOCKSTEP, SERVER
from tests.chief.chiefs import WatchedChief
from tests.roles import hello
from tests.telemetry.clocks import ManualClock

CONFIG = RunConfig(workload=10, unit_size=1, workers=2, servers=1)


@pytest.fixture
def chief() -> WatchedChief:
    return WatchedChief(Ledger(10), 2, clock=SYSTEM_CLOCK)


def arrivals_at(chief: WatchedChief, said: list[str] | None = None) -> MemberWaits:
    say = said.append if said is not None else lambda text: None
    return MemberWaits(chief.control, CONFIG, SYSTEM_CLOCK, lambda: None, say)


def test_everybody_is_waited_for_at_the_start_and_named_when_late(chief, monkeypatch):
    monkeypatch.setattr(entry, "START_DEADLINE_SECS", 0.15)
    monkeypatch.setattr(entry, "SAY_MISSING_SECS", 0.01)
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
    monkeypatch.setattr(entry, "START_DEADLINE_SECS", 0.1)
    chief.service.register(hello(1))
    with pytest.raises(WaitTimeout, match="0 of 1 servers"):
        arrivals_at(chief).await_needed(SERVER)


def test_a_run_that_is_asked_to_stop_waits_for_nobody(chief):
    chief.service.preempt()
    with pytest.raises(Preempted, match=r"workers \[0, 1\] have not registered"):
        arrivals_at(chief).await_all()


def rejoin(at: dict[float, Callable[[WatchedChief], object]]) -> tuple[WatchedChief, float]:
    """Let a restarted chief wait for two workers and a server, while things happen; returns it, and for how long."""
    clock = ManualClock(now=0.0)
    chief = WatchedChief(Ledger(10), 2, clock=clock)

    def wait_until(ready: Callable[[RunState], bool], secs: float) -> bool:
        clock.advance(secs)
        for due in [due for due in at if due <= clock.monotonic()]:
            at.pop(due)(chief)
        return ready(chief.state)

    chief.control.wait_until = wait_until
    there = [("chief", 0, 0, 1), ("supervisor", 0, 0, 2), ("worker", 0, 0, 100), ("worker", 1, 0, 101)]
    there.append(("server", 0, 0, 100))
    MemberWaits(chief.control, CONFIG, clock, lambda: None, lambda text: None).await_registrations(there)
    return chief, clock.monotonic()


SERVER_COMES = {0.5: lambda chief: chief.service.register(hello(0, role="server"))}


def test_a_restarted_chief_waits_for_who_stands_still_and_gives_up_who_stays_silent():
    """Nothing else would end a process that is stopped."""
    limit = CONFIG.hang.silent_secs
    chief, secs = rejoin({**SERVER_COMES, 1.0: lambda chief: chief.service.register(hello(0))})
    assert limit <= secs < limit + 1.0
    assert chief.state.members.workers.ids() == (0,)
    (event,) = chief.evicted
    assert (event.role, event.id, event.pid) == ("worker", 1, 101)
    assert event.reason == "no sign of life for 60 s since the chief was restarted (hang.silent_secs)"
    assert chief.state.take_reports().lost == chief.evicted
    chief, secs = rejoin({**SERVER_COMES, 1.0: lambda c: c.service.register(hello(0)), 40.0: _comes_late})
    assert 40.0 <= secs < 41.0 and chief.evicted == [] and chief.state.members.workers.ids() == (0, 1)


def _comes_late(chief: WatchedChief) -> None:
    chief.service.register(hello(1))


def test_a_restarted_chief_does_not_wait_for_who_has_ended():
    died = RoleEvent("worker", 1, 101, "signal SIGKILL", 0.0)
    chief, secs = rejoin(
        {
            **SERVER_COMES,
            1.0: lambda chief: chief.service.register(hello(0)),
            2.0: lambda chief: chief.service.role_lost(died),
        }
    )
    assert secs < 2.0 + SETTLE_SECS and chief.evicted == []


@pytest.fixture
def quick_ticks(monkeypatch):
    monkeypatch.setattr(entry, "TICK_SECS", 0.0)


class Renewal:
    """Three workers and a server that start again in a new process group, in virtual time.

    Attributes:
      at: what happens when, in seconds since the wait began.
    """

    def __init__(self, min_workers: int = 0) -> None:
        self.clock = ManualClock()
        self.chief = WatchedChief(Ledger(10), 3, clock=self.clock, min_workers=min_workers)
        self.chief.service.register(hello(0, role="server"))
        self.at: dict[float, Callable[[], object]] = {}

    def start(self, worker: int) -> None:
        self.chief.service.role_started(RoleEvent("worker", worker, 200 + worker, "restart", 0.0, restart_count=1))

    def lose(self, worker: int, pid: int = 100) -> None:
        lost = RoleEvent("worker", worker, pid + worker, "host is lost", 0.0, restart_count=pid > 100)
        self.chief.service.role_lost(lost)

    def register(self, worker: int) -> None:
        self.chief.service.register(hello(worker, pid=200 + worker, restart_count=1))

    def wait(self, workers: tuple[int, ...] = (0, 1, 2)) -> float:
        """Wait for the workers; returns for how long."""
        config = RunConfig(workload=10, unit_size=1, workers=3, servers=1)
        began = self.clock.monotonic()

        def tick() -> None:
            self.clock.advance(0.5)
            for at in [at for at in self.at if began + at <= self.clock.monotonic()]:
                self.at.pop(at)()

        MemberWaits(self.chief.control, config, self.clock, tick, lambda text: None).await_again(workers)
        return self.clock.monotonic() - began


@pytest.mark.usefixtures("quick_ticks")
def test_workers_that_start_again_are_waited_for_as_long_as_their_processes_live():
    renewal = Renewal()
    for worker in range(3):
        renewal.lose(worker)
        renewal.start(worker)
    renewal.at = {5.0: lambda: renewal.register(0), 6.0: lambda: renewal.register(1), 90.0: lambda: renewal.register(2)}
    assert renewal.wait() == 90.0


@pytest.mark.usefixtures("quick_ticks")
def test_a_worker_whose_host_is_lost_meanwhile_is_not_waited_for_when_its_place_stays_empty():
    renewal = Renewal()
    for worker in range(3):
        renewal.lose(worker)
        renewal.start(worker)
    renewal.at = {10.0: lambda: renewal.lose(2, 200), 12.0: lambda: (renewal.register(0), renewal.register(1))}
    assert renewal.wait() == 10.0 + VACANT_SECS


@pytest.mark.usefixtures("quick_ticks")
def test_a_worker_that_was_away_before_does_not_stand_for_one_that_comes_back():
    renewal = Renewal()
    renewal.at = {1.0: lambda: renewal.register(2), 2.0: lambda: renewal.register(0), 7.0: lambda: renewal.register(1)}
    assert renewal.wait((0, 1)) == 7.0


@pytest.mark.usefixtures("quick_ticks")
def test_as_many_workers_as_the_run_needs_are_waited_for_wherever_their_hosts_are():
    renewal = Renewal(min_workers=3)
    renewal.lose(2)
    renewal.at = {1.0: lambda: renewal.register(0), 2.0: lambda: renewal.register(1), 50.0: lambda: renewal.register(2)}
    assert renewal.wait() == 50.0
