"""Which unit is given up after which processes have ended on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridsync.chief.chief import Chief
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.poison_units import PoisonUnits
from hybridsync.chief.run_state import RunState
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.interfaces.messages import LeaseRequest, RoleEvent
from tests.roles import hello, phase_of

KILLED, RAISED, CRASHED = "signal SIGKILL", "exit 1", "signal SIGSEGV"
HUNG = "exit 70: the watchdog ends worker 1: unit 17 has made no progress for 61 s, and its limit is 60 s"


def end(worker: int, reason: str, unit: int = 17, pid: int | None = None) -> RoleEvent:
    return RoleEvent("worker", worker, 100 + worker if pid is None else pid, reason, 0.0, unit)


@pytest.mark.parametrize(
    ("reasons", "is_found"),
    [
        ([RAISED], False),
        ([RAISED, CRASHED], True),
        ([RAISED, "signal SIGABRT"], True),
        ([KILLED, KILLED], False),
        ([RAISED, KILLED], False),
        ([KILLED, RAISED], False),
        ([RAISED, "exit 70: the chief is gone"], False),
        ([HUNG, HUNG, HUNG, HUNG], False),  # no unit is left out because of time alone
        ([KILLED, KILLED, HUNG], False),
        ([KILLED, KILLED, KILLED], True),
        ([KILLED, RAISED, CRASHED], True),
        ([KILLED, "signal SIGTERM", RAISED], True),
    ],
    ids=str,
)
def test_two_processes_that_end_by_themselves_convict_a_unit_and_three_of_any_kind(reasons, is_found):
    suspects = PoisonUnits()
    found = [suspects.record(end(worker, reason)) for worker, reason in enumerate(reasons)]
    assert [verdict is not None for verdict in found] == [False] * (len(reasons) - 1) + [is_found]
    if (verdict := found[-1]) is not None:
        assert verdict.workers == tuple(range(len(reasons)))
        assert all(reason in verdict.reason for reason in reasons)


def test_one_process_counts_once_and_only_at_the_unit_that_it_was_at():
    suspects = PoisonUnits()
    assert suspects.record(end(0, RAISED)) is None
    assert suspects.record(end(0, RAISED)) is None, "its supervisor says it again"
    assert suspects.record(end(1, RAISED, unit=16)) is None
    assert suspects.record(end(1, RAISED, unit=-1, pid=7)) is None
    assert suspects.record(end(0, RAISED, pid=8)) is not None, "the same worker's next process"


def test_processes_with_one_number_on_two_hosts_are_two():
    suspects = PoisonUnits()
    assert suspects.record(end(0, RAISED, pid=7)) is None
    assert suspects.record(end(1, RAISED, pid=7)) is not None


def test_a_restarted_chief_that_is_told_again_convicts_at_the_second_process():
    """The first chief was told of worker 0's end, and died."""
    chief = Chief(RunState(Ledger(20, issued=20), 2, "schema", SYSTEM_CLOCK, restarted=True))
    chief.service.role_lost(end(0, RAISED))
    chief.service.register(hello(0, pid=500, restart_count=1))
    chief.service.role_lost(end(0, RAISED))
    assert chief.control.members.missing_workers() == [1], "its next process is not taken for it"
    chief.service.role_lost(end(1, CRASHED))
    assert [found.unit for found in chief.control.take_reports().quarantined] == [17]


@pytest.mark.parametrize(("known", "broken"), [((), True), (((17, 18),), False)])
def test_a_phase_taken_up_ends_where_its_holder_has_not_heard_of_a_quarantine(known, broken):
    """Its servers would refuse the fresh unit that takes the place of the one left out."""
    chief = Chief(RunState(Ledger(20, issued=20), 2, "schema", SYSTEM_CLOCK, restarted=True))
    chief.service.role_lost(end(0, RAISED))
    chief.service.role_lost(end(1, RAISED))
    chief.control.adopt(replace(phase_of(1, "asp"), dropped=known))
    assert ("units ((17, 18),) are quarantined" in chief.control.broken) == broken


def test_a_quarantined_unit_is_never_leased_again_whatever_a_state_says_that_does_not_know_of_it():
    ledger = Ledger(4)
    ledger.lease("mesh", 3, limit=4)
    assert ledger.quarantine(1) and not ledger.quarantine(1)
    assert not ledger.quarantine(9), "it was never issued"
    ledger.restore(applied=[(0, 1)], dropped=[])
    assert ledger.lease("mesh", 9, limit=4) == ((2, 3), (3, 5))
    assert ledger.all_dropped([(0, 1)], []) == ((1, 2),)
    again = Ledger.from_json(ledger.to_json([(0, 1)], []))
    assert (again.num_dropped, again.num_outstanding) == (1, 3)


def test_a_quarantined_unit_that_was_applied_all_the_same_counts_as_applied():
    ledger = Ledger(4)
    ledger.lease("worker 0", 3, limit=4)
    ledger.quarantine(1)
    ledger.record_applied([(0, 2)])
    assert (ledger.num_applied, ledger.num_dropped, ledger.num_outstanding) == (2, 0, 1)
    assert ledger.all_dropped([(0, 2)], []) == ()
    ledger.check()


def test_the_chief_drops_the_unit_breaks_the_phase_and_tells():
    chief = Chief(RunState(Ledger(100), 2, "schema", SYSTEM_CLOCK))
    incarnations = [chief.service.register(hello(worker, pid=100 + worker)).incarnation for worker in range(2)]
    phase = phase_of(members=(0, 1), end=100)
    chief.control.announce(phase)
    chief.control.open_leases()
    chief.service.lease(LeaseRequest(0, incarnations[0], phase.id, 0, 0))
    chief.service.role_lost(end(0, RAISED, unit=0))
    assert not chief.control.broken and not chief.control.take_reports().quarantined
    assert chief.service.lease(LeaseRequest(1, incarnations[1], phase.id, 0, 0)).ranges[0][0] == 0
    chief.service.role_lost(end(1, CRASHED, unit=0))
    (found,) = chief.control.take_reports().quarantined
    assert (found.unit, found.workers) == (0, (0, 1))
    assert "unit 0 is quarantined" in chief.control.broken
    assert chief.control.ledger.dropped().ranges() == ((0, 1),)
