"""Workers whose units are not finite while others' are, and slots that nobody is to fill any more."""

from __future__ import annotations

import math

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.poison_units import MAX_IN_A_ROW as MAX_UNITS
from hybridsync.chief.unfit_workers import MAX_IN_A_ROW, Unfit
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost
from hybridsync.interfaces.messages import NON_FINITE, RoleEvent
from hybridsync.interfaces.reports import Report
from tests.chief.chiefs import WORKLOAD, WatchedChief, begin, enter, lease, served, units_of
from tests.roles import hello

REASON = f"{NON_FINITE}: leaf w, first index [0]"


def make_chief(num_workers: int = 3, workload: int = 400) -> WatchedChief:
    chief = WatchedChief(Ledger(workload), num_workers, clock=SYSTEM_CLOCK, lease_secs=math.inf, unfit=Unfit())
    for worker in range(num_workers):
        chief.service.register(hello(worker, pid=100 + worker))
    chief.service.register(hello(0, role="server", pid=99))
    return chief


def spoil(chief: WatchedChief, phase, worker: int, others: tuple[int, ...], incarnation: int = 1) -> list[int]:
    """Have `worker` do units that are not finite, others good ones, until it is given up; returns the bad units."""
    bad: list[int] = []
    known = dict.fromkeys((*others, worker), 0)
    at_hand: dict[int, list[int]] = {each: [] for each in known}
    while len(bad) < 20 and worker in chief.control.members.live_workers():
        for each, units in at_hand.items():
            if not units:
                own = incarnation if each == worker else 1
                units += units_of(lease(chief, phase, each, known[each], known[each], own))
                known[each] += len(units)
            unit = units.pop(0)
            if each == worker:
                bad.append(unit)
            served(chief, phase, *(() if each == worker else ((unit, unit + 1),)),
                   dropped=((unit, REASON),) if each == worker else ())  # fmt: skip
    return bad


def test_a_worker_is_started_again_first_and_quarantined_when_it_does_the_same_again() -> None:
    chief = make_chief()
    phase = begin(chief, "asp", end=400)
    assert len(spoil(chief, phase, 1, (0, 2))) == MAX_IN_A_ROW
    (first,) = chief.evicted
    assert (first.id, first.pid, first.quarantined) == (1, 101, False)
    assert first.reason.startswith("it is started again: 4 of its units in a row were not finite while others applied ")
    chief.service.register(hello(1, pid=201, restart_count=1))
    chief.control.close_leases()
    phase = begin(chief, "asp", end=400, number=2)
    assert len(spoil(chief, phase, 1, (0, 2), incarnation=2)) == MAX_IN_A_ROW
    assert (chief.evicted[1].pid, chief.evicted[1].quarantined) == (201, True)
    assert chief.control.members.quarantined == {}, "it is, when the supervisor says that nobody takes its place"
    chief.service.role_lost(chief.evicted[1])
    assert list(chief.control.members.quarantined) == [1] and chief.control.members.num_awaited() == 2
    assert [event.id for event in chief.control.take_reports().unfit] == [1]
    chief.service.role_lost(chief.evicted[1])
    assert not chief.control.take_reports().unfit, "said once"


def test_what_a_worker_under_suspicion_had_goes_to_others() -> None:
    chief = make_chief()
    phase = begin(chief, "asp", end=400)
    leases = chief.state.leases
    chief.control.ledger.lease("worker 1", 8, 400)
    leases.doubt(1)
    leases.release_worker(1)
    assert chief.control.ledger.num_waiting == 8
    chief.service.register(hello(1, pid=201, restart_count=1))
    assert units_of(lease(chief, phase, 1, incarnation=2)) == [8], "those that wait are not for it"
    assert units_of(lease(chief, phase, 0)) == [0]
    leases.release_worker(2)
    got = units_of(lease(chief, phase, 1, 1, 1, incarnation=2))
    assert got[0] == 1, "somebody has to do them when others are lost"


@pytest.mark.parametrize(
    ("reason", "unit", "num_workers", "is_doubted"),
    [("exit 1", 1, 3, True), ("signal SIGKILL", 1, 3, False), ("exit 1", -1, 3, False), ("exit 1", 1, 1, False)],
)
def test_what_a_worker_had_that_ended_at_a_unit_by_itself_goes_to_others(reason, unit, num_workers, is_doubted) -> None:
    chief = make_chief(num_workers)
    worker = num_workers - 1
    phase = begin(chief, "asp", end=400)
    had = units_of(lease(chief, phase, worker))
    chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, reason, 0.0, unit=unit))
    assert chief.control.ledger.num_waiting == len(had) > 0
    chief.service.register(hello(worker, pid=201, restart_count=1))
    got = units_of(lease(chief, phase, worker, incarnation=2))
    assert (got[0] not in had) == is_doubted, "the same worker would end on the same unit again"
    if is_doubted:
        assert units_of(lease(chief, phase, 0))[0] in had


def test_what_others_wait_with_is_also_for_the_worker_that_ended_at_it() -> None:
    """The phase would not end where those that were to take it hang."""
    chief = make_chief(2)
    phase = begin(chief, "asp", end=8)
    had = units_of(lease(chief, phase, 1))
    chief.service.role_lost(RoleEvent("worker", 1, 101, "exit 1", 0.0, unit=had[0]))
    chief.service.register(hello(1, pid=201, restart_count=1))
    assert set(had) <= set(units_of(lease(chief, phase, 0)))
    chief.control.reclaim()
    assert units_of(lease(chief, phase, 1, incarnation=2))


def test_a_repeated_word_of_an_end_doubts_nothing_that_the_next_process_has() -> None:
    chief = make_chief()
    phase = begin(chief, "asp", end=400)
    lease(chief, phase, 2)
    event = RoleEvent("worker", 2, 102, "exit 1", 0.0, unit=0)
    chief.service.role_lost(event)
    chief.service.register(hello(2, pid=202, restart_count=1))
    had = units_of(lease(chief, phase, 2, incarnation=2))
    chief.service.role_lost(event)
    chief.state.leases.release_worker(2)
    chief.service.register(hello(2, pid=203, restart_count=2))
    assert units_of(lease(chief, phase, 2, incarnation=3))[0] == had[0]


def test_units_that_are_bad_for_everybody_are_no_fault_of_a_worker() -> None:
    unfit = Unfit()
    for _ in range(50):
        assert unfit.record({0: 2, 1: 2, 2: 2}, [(0, REASON), (1, REASON), (2, REASON)]) == []
        assert unfit.record({}, [(0, REASON)] * 3) == []


def test_a_worker_alone_and_other_reasons_are_not_judged() -> None:
    unfit = Unfit()
    assert unfit.record({}, [(0, REASON)] * 50) == [], "nobody else applies anything"
    assert unfit.record({0: 9}, [(1, "too late")] * 50) == []
    assert not unfit.watches


def test_a_unit_that_is_applied_clears_a_worker_of_what_it_did_before_it_was_started_again() -> None:
    unfit = Unfit()
    assert unfit.record({0: 4}, [(1, REASON)] * 4)[0].again is False
    assert unfit.record({1: 1}, []) == []
    assert unfit.record({0: 4}, [(1, REASON)] * 4)[0].again is False


@pytest.mark.parametrize("shares", [(), (2, 1, 1)])
def test_in_lock_step_a_unit_belongs_to_the_member_that_its_place_is_dealt_to(shares: tuple[int, ...]) -> None:
    chief = make_chief()
    phase = begin(chief, "bsp", end=400, shares=shares)
    for worker in range(3):
        enter(chief, worker)
    units = units_of(lease(chief, phase))
    turns = phase.assignment.turns
    own = [unit for position, unit in enumerate(units) if turns[position % len(turns)] == 1]
    assert chief.state.leases.owners([(own[0], own[0] + 1)]) == {1: 1}
    assert chief.state.leases.owners([(units[0], units[-1] + 1)])[1] == len(own)
    known = 0
    while not chief.evicted:
        units = units_of(lease(chief, phase, 0, known, known))
        for position, unit in enumerate(units, known):
            if turns[position % len(turns)] == 1:
                report = Report("worker", 0, 1, phase.id, dropped=((unit, REASON),))
            else:
                report = Report("worker", 0, 1, phase.id, applied=((unit, unit + 1),))
            chief.service.report(report)
        known += len(units)
    assert chief.evicted[0].id == 1 and chief.control.ledger.num_dropped == MAX_IN_A_ROW


def test_a_run_of_which_every_worker_is_quarantined_saves_and_says_whom_it_lost() -> None:
    chief = make_chief(num_workers=2)
    for worker in range(2):
        assert chief.control.members.all_quarantined is None and not chief.control.preempted
        chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, f"reason {worker}", 0.0, quarantined=True))
    assert chief.control.preempted
    with pytest.raises(RoleLost, match=r"no worker is left, .*worker 0: reason 0; worker 1: reason 1"):
        raise chief.control.members.all_quarantined or AssertionError


def test_units_that_end_processes_one_after_another_end_the_run_when_nothing_is_applied_between() -> None:
    chief = make_chief()
    begin(chief, "asp", end=WORKLOAD)
    chief.control.ledger.lease("worker 0", WORKLOAD, 400)
    for unit in range(MAX_UNITS + 1):
        assert chief.control.failure is None
        for pid in (2 * unit, 2 * unit + 1):
            chief.service.role_lost(RoleEvent("worker", pid % 3, 1000 + pid, "exit 1", 0.0, unit=unit))
    assert f"the last was unit {MAX_UNITS}: worker" in str(chief.control.failure)
