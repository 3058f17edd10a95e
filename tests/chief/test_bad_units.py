"""Which unit, or which worker, is given up after what; when a run has diverged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridsync import Trainer
from hybridsync.chief.bad_units import (
    MAX_NOT_FINITE,
    MAX_OF_ONE_WORKER,
    MAX_QUARANTINED,
    Divergence,
    PoisonUnits,
    Unfit,
)
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_REFUSED, Diverged, RoleLost
from hybridsync.interfaces.messages import NON_FINITE, LeaseRequest, RoleEvent
from hybridsync.interfaces.reports import Report
from tests.chief.chiefs import WORKLOAD, Chief, WatchedChief, begin, enter, lease, served, units_of
from tests.roles import hello, phase_of
from tests.tasks import plain_sgd, tally_task
from tests.trainers import NEVER, events_of, is_exact

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
    chief = Chief(RunState(Ledger(20, issued=20), 2, "schema", SYSTEM_CLOCK, RunStateSpec(restarted=True)))
    chief.service.role_lost(end(0, RAISED))
    chief.service.register(hello(0, pid=500, restart_count=1))
    chief.service.role_lost(end(0, RAISED))
    assert chief.state.members.missing_workers() == [1], "its next process is not taken for it"
    chief.service.role_lost(end(1, CRASHED))
    assert [found.unit for found in chief.state.take_reports().quarantined] == [17]


@pytest.mark.parametrize(("known", "broken"), [((), True), (((17, 18),), False)])
def test_a_phase_taken_up_ends_where_its_holder_has_not_heard_of_a_quarantine(known, broken):
    """Its servers would refuse the fresh unit that takes the place of the one left out."""
    chief = Chief(RunState(Ledger(20, issued=20), 2, "schema", SYSTEM_CLOCK, RunStateSpec(restarted=True)))
    chief.service.role_lost(end(0, RAISED))
    chief.service.role_lost(end(1, RAISED))
    with chief.control.turn() as state:
        state.adopt(replace(phase_of(1, "asp"), dropped=known))
    assert ("units ((17, 18),) are quarantined" in chief.state.phase_members.broken) == broken


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
    with chief.control.turn() as state:
        state.begin(phase)
        state.open_leases()
    chief.service.lease(LeaseRequest(0, incarnations[0], phase.id, 0, 0))
    chief.service.role_lost(end(0, RAISED, unit=0))
    assert not chief.state.phase_members.broken and not chief.state.take_reports().quarantined
    assert chief.service.lease(LeaseRequest(1, incarnations[1], phase.id, 0, 0)).ranges[0][0] == 0
    chief.service.role_lost(end(1, CRASHED, unit=0))
    (found,) = chief.state.take_reports().quarantined
    assert (found.unit, found.workers) == (0, (0, 1))
    assert "unit 0 is quarantined" in chief.state.phase_members.broken
    assert chief.state.ledger.dropped().ranges() == ((0, 1),)


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
    while len(bad) < 20 and worker in chief.state.members.workers.ids():
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
    assert len(spoil(chief, phase, 1, (0, 2))) == MAX_OF_ONE_WORKER
    (first,) = chief.evicted
    assert (first.id, first.pid, first.quarantined) == (1, 101, False)
    assert first.reason.startswith("it is started again: 4 of its units in a row were not finite while others applied ")
    chief.service.register(hello(1, pid=201, restart_count=1))
    with chief.control.turn() as state:
        state.close_leases()
    phase = begin(chief, "asp", end=400, number=2)
    assert len(spoil(chief, phase, 1, (0, 2), incarnation=2)) == MAX_OF_ONE_WORKER
    assert (chief.evicted[1].pid, chief.evicted[1].quarantined) == (201, True)
    assert chief.state.members.quarantined == {}, "it is, when the supervisor says that nobody takes its place"
    chief.service.role_lost(chief.evicted[1])
    assert list(chief.state.members.quarantined) == [1] and chief.state.members.num_awaited() == 2
    assert [event.id for event in chief.state.take_reports().unfit] == [1]
    chief.service.role_lost(chief.evicted[1])
    assert not chief.state.take_reports().unfit, "said once"


def test_what_a_worker_under_suspicion_had_goes_to_others() -> None:
    chief = make_chief()
    phase = begin(chief, "asp", end=400)
    leases = chief.state.leases
    chief.state.ledger.lease("worker 1", 8, 400)
    leases.doubt(1)
    leases.release_worker(1)
    assert chief.state.ledger.num_waiting == 8
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
    assert chief.state.ledger.num_waiting == len(had) > 0
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
    with chief.control.turn() as state:
        state.reclaim()
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
    assert chief.evicted[0].id == 1 and chief.state.ledger.num_dropped == MAX_OF_ONE_WORKER


def test_a_run_of_which_every_worker_is_quarantined_saves_and_says_whom_it_lost() -> None:
    chief = make_chief(num_workers=2)
    for worker in range(2):
        assert chief.state.members.all_quarantined() is None and not chief.state.preempted
        chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, f"reason {worker}", 0.0, quarantined=True))
    assert chief.state.preempted
    with pytest.raises(RoleLost, match=r"no worker is left, .*worker 0: reason 0; worker 1: reason 1"):
        raise chief.state.members.all_quarantined() or AssertionError


def test_units_that_end_processes_one_after_another_end_the_run_when_nothing_is_applied_between() -> None:
    chief = make_chief()
    begin(chief, "asp", end=WORKLOAD)
    chief.state.ledger.lease("worker 0", WORKLOAD, 400)
    for unit in range(MAX_QUARANTINED + 1):
        assert chief.state.waits.failure is None
        for pid in (2 * unit, 2 * unit + 1):
            chief.service.role_lost(RoleEvent("worker", pid % 3, 1000 + pid, "exit 1", 0.0, unit=unit))
    assert f"the last was unit {MAX_QUARANTINED}: worker" in str(chief.state.waits.failure)


AT_THREE = f"{NON_FINITE}: leaf w, first index [3]"


def spoiled(unit_is_bad: Callable[[jax.Array], jax.Array], *, entries: int = 64, **options: Any) -> Trainer:
    """Return a tally whose loss is no number at some units; it has twice as many units to give out as `entries`."""
    whole = tally_task(entries)

    def loss(params, model_state, batch, key):
        value, rest = whole.loss(params, model_state, batch, key)
        return jnp.where(unit_is_bad(batch["unit"][0]), jnp.nan, value), rest

    task = replace(whole, loss=loss)
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, "plan": "asp", **options}
    return Trainer(task, plain_sgd(1.0), workload=64, unit_size=1, **options)


@pytest.mark.parametrize("options", [{}, {"servers": 2}, {"plan": "bsp"}, {"plan": "bsp", "workers": 1}], ids=str)
def test_a_unit_whose_contribution_is_not_finite_is_dropped_and_a_fresh_one_takes_its_place(options):
    result = spoiled(lambda unit: unit % 10 == 3, **options).fit()
    units = result.summary.units
    assert result.completed and is_exact(result.summary.final)
    assert (units.applied, units.dropped, units.issued, units.outstanding) == (64, 7, 71, 0)


def test_a_lock_step_stage_goes_on_with_fresh_units_until_its_share_is_applied(tmp_path):
    result = spoiled(lambda unit: unit % 10 == 3, plan="bsp:50%,asp", workers=3, workdir=tmp_path).fit()
    assert result.completed and is_exact(result.summary.final)
    *lockstep, served = events_of(tmp_path, "phase_entered")
    assert [phase["reason"] for phase in lockstep] == ["start"] + ["dropped"] * (len(lockstep) - 1)
    assert (served["protocol"], served["units"], served["reason"]) == ("asp", 32, "planned")
    assert len(result.summary.switches) == 1


@pytest.mark.parametrize("bad_from", [0, 20, 62])
def test_lock_step_training_that_has_diverged_ends_the_run(bad_from):
    with pytest.raises(Diverged, match="units in a row"):
        spoiled(lambda unit: unit >= bad_from, entries=20_000, plan="bsp").fit()  # until the chief hears of it


def test_a_run_that_has_diverged_ends_with_the_leaf_and_a_summary(tmp_path):
    with pytest.raises(Diverged, match=r"units in a row .* leaf floats/loss, first index \[\]"):
        spoiled(lambda unit: unit >= 20, entries=20_000, workdir=tmp_path).fit()  # until the chief hears of it
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["exit"] == "failed" and "diverged" in summary["error"]
    assert summary["units"]["applied"] == 20


def drops(count: int, reason: str = AT_THREE) -> tuple[tuple[int, str], ...]:
    return tuple((unit, reason) for unit in range(count))


def test_one_more_than_ten_in_a_row_ends_the_run_by_name():
    divergence = Divergence()
    assert divergence.record((), drops(MAX_NOT_FINITE)) is None
    error = divergence.record((), drops(1))
    assert isinstance(error, Diverged) and error.exit_code == EXIT_REFUSED
    assert "11 units in a row" in str(error) and f"unit 0, {AT_THREE}" in str(error)


@pytest.mark.parametrize(
    ("applied", "dropped"), [(((7, 8),), ()), (((7, 8),), drops(3))], ids=["alone", "beside drops"]
)
def test_a_unit_applied_between_them_begins_the_count_again(applied, dropped):
    divergence = Divergence()
    divergence.record((), drops(MAX_NOT_FINITE))
    assert divergence.record(applied, dropped) is None
    assert divergence.record((), drops(MAX_NOT_FINITE)) is None


def test_what_was_dropped_for_another_reason_does_not_count():
    divergence = Divergence()
    assert divergence.record((), drops(100, "too stale")) is None
    assert divergence.record((), drops(MAX_NOT_FINITE)) is None


def test_gradients_that_a_server_may_hold_before_it_applies_them_are_allowed_for():
    divergence = Divergence()
    assert divergence.record((), drops(MAX_NOT_FINITE + 63), held=63) is None
    assert isinstance(divergence.record((), drops(1), held=63), Diverged)


def test_the_chief_fails_a_run_that_has_diverged():
    chief = Chief(RunState(Ledger(100), 1, "schema", SYSTEM_CLOCK))
    worker, server = chief.service.register(hello(0)), chief.service.register(hello(0, role="server"))
    phase = phase_of(members=(0,), end=100)
    with chief.control.turn() as state:
        state.begin(phase)
        state.open_leases()
    chief.service.lease(LeaseRequest(0, worker.incarnation, phase.id, 0, 0))
    for unit in range(MAX_NOT_FINITE + 1):
        if unit >= chief.state.ledger.counts().issued:
            chief.service.lease(LeaseRequest(0, worker.incarnation, phase.id, unit, unit))
        chief.service.report(Report("server", 0, server.incarnation, phase.id, dropped=((unit, AT_THREE),)))
    with pytest.raises(Diverged, match="11 units in a row"):
        chief.control.watch(lambda state: False, 0.0)
