"""The ledger against a plain dictionary unit -> what became of it."""

from __future__ import annotations

import time

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hybridsync.chief.ledger import Ledger
from hybridsync.core.units import Range

HOLDERS = ("mesh", "worker 0", "worker 1", "worker 2")
WORKLOAD = 30
WAITING = "waiting"


def units_of(ranges: tuple[Range, ...]) -> list[int]:
    return [unit for start, stop in ranges for unit in range(start, stop)]


class LedgerMachine(RuleBasedStateMachine):
    """Every unit is in one place: waiting, with one holder, applied or dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(WORKLOAD)
        self.model: dict[int, str] = {}

    def where(self, *places: str) -> list[int]:
        return sorted(unit for unit, place in self.model.items() if place in places)

    @rule(holder=st.sampled_from(HOLDERS), count=st.integers(1, 9), limit=st.integers(0, WORKLOAD))
    def lease(self, holder: str, count: int, limit: int) -> None:
        leased = self.where(*HOLDERS)
        room = max(0, limit - len(self.where("applied")) - len(leased))
        waiting, fresh = self.where(WAITING), len(self.model)
        units = units_of(self.ledger.lease(holder, count, limit))
        assert len(units) == min(count, room)
        again = min(len(units), len(waiting))
        assert units[:again] == waiting[:again], "what came back goes out first, lowest first"
        assert units[again:] == list(range(fresh, fresh + len(units) - again)), "then 0, 1, 2, ... without a gap"
        assert not set(units) & set(leased), "a unit went to two holders"
        self.model.update(dict.fromkeys(units, holder))

    @rule(data=st.data())
    def record_applied(self, data):
        units = self.where(*HOLDERS, WAITING, "applied", "dropped")
        if not units:
            return
        chosen = data.draw(st.lists(st.sampled_from(units), min_size=1, max_size=4))
        for _ in range(2):  # repeating it is harmless
            self.ledger.record_applied([(unit, unit + 1) for unit in chosen])
        self.model.update({unit: "applied" for unit in chosen if self.model[unit] != "dropped"})

    @rule(data=st.data())
    def record_dropped(self, data):
        units = self.where(*HOLDERS, WAITING, "applied", "dropped")
        if not units or len(self.where("dropped")) > 5:
            return
        unit = data.draw(st.sampled_from(units))
        assert self.ledger.record_dropped(unit) == (self.model[unit] != "dropped")
        assert not self.ledger.record_dropped(unit)
        self.model[unit] = "dropped"

    @rule(holder=st.sampled_from(HOLDERS))
    def release(self, holder):
        units = self.where(holder)
        assert self.ledger.release(holder) == len(units)
        self.model.update(dict.fromkeys(units, WAITING))

    @rule(data=st.data())
    def restore(self, data):
        """The holder of the newest state is asked: it may know less than was reported, or more."""
        before = self.where("applied")
        candidates = st.sampled_from(range(len(self.model) + 3))
        held = data.draw(st.sets(candidates, max_size=12))
        gone = data.draw(st.sets(candidates, max_size=3)) - held
        lost = self.ledger.restore([(unit, unit + 1) for unit in held], [(unit, unit + 1) for unit in gone])
        assert lost == len(set(before) - held - gone), "what is dropped is no loss"
        issued = max([len(self.model), *(unit + 1 for unit in held | gone)])
        self.model = dict.fromkeys(range(issued), WAITING)
        self.model.update(dict.fromkeys(held, "applied"))
        self.model.update(dict.fromkeys(gone, "dropped"))

    @rule(holder=st.sampled_from(HOLDERS), data=st.data())
    def adopt(self, holder, data):
        """A worker that another chief gave units to tells which it has in hand."""
        units = data.draw(st.sets(st.integers(0, WORKLOAD + 4), min_size=1, max_size=6))
        self.ledger.adopt(holder, [(unit, unit + 1) for unit in sorted(units)])
        for unit in range(len(self.model), max(units) + 1):
            self.model[unit] = WAITING
        self.model.update(dict.fromkeys(units & set(self.where(WAITING)), holder))

    @rule()
    def restart(self):
        """A checkpoint keeps what was applied and dropped; everything in flight is outstanding again."""
        saved = self.ledger.to_json(self.ledger.applied().ranges(), self.ledger.dropped().ranges())
        self.ledger = Ledger.from_json(saved)
        self.model.update(dict.fromkeys(self.where(*HOLDERS), WAITING))

    @invariant()
    def accounts_for_every_unit(self):
        counts = self.ledger.counts()
        assert counts.issued == counts.applied + counts.dropped + counts.outstanding == len(self.model)
        assert sorted(self.ledger.applied()) == self.where("applied")
        assert sorted(self.ledger.dropped()) == self.where("dropped")
        assert counts.outstanding == self.ledger.num_outstanding == len(self.where(WAITING, *HOLDERS))
        assert self.ledger.holders() == {h: len(self.where(h)) for h in HOLDERS if self.where(h)}


TestLedgerMachine = LedgerMachine.TestCase


def test_no_more_units_go_out_than_can_end_up_applied():
    ledger = Ledger(10)
    assert units_of(ledger.lease("a", 8, limit=5)) == [0, 1, 2, 3, 4]
    assert ledger.lease("b", 1, limit=5) == ()
    assert units_of(ledger.lease("b", 9, limit=6)) == [5]


def test_a_fresh_unit_replaces_a_dropped_one():
    ledger = Ledger(3)
    ledger.lease("a", 3, limit=3)
    ledger.record_dropped(1)
    assert units_of(ledger.lease("b", 5, limit=3)) == [3]
    ledger.record_applied([(0, 1), (2, 4)])
    assert ledger.counts().to_json() == {
        "workload": 3,
        "issued": 4,
        "applied": 3,
        "dropped": 1,
        "outstanding": 0,
        "rolled_back": 0,
    }


def test_a_late_report_takes_a_reissued_unit_away_from_its_new_holder():
    ledger = Ledger(4)
    ledger.lease("a", 2, limit=4)
    ledger.release("a")
    assert units_of(ledger.lease("b", 2, limit=4)) == [0, 1]
    ledger.record_applied([(0, 1)])
    assert ledger.holders() == {"b": 1}
    assert ledger.room(4) == 2


def test_nobody_gets_a_unit_twice_that_waits_for_others_too_nor_a_fresh_one_in_its_place():
    ledger = Ledger(6)
    had = ledger.lease("a", 4, limit=4)
    ledger.record_applied([(0, 1)])
    ledger.release("a")
    assert ledger.lease("a", 9, 4, had) == ()
    assert units_of(ledger.lease("a", 9, 6, had)) == [4, 5]
    assert units_of(ledger.lease("b", 9, limit=6)) == [1, 2, 3]


def test_the_end_of_a_unit_that_another_chief_issued_leaves_those_before_it_outstanding():
    ledger = Ledger(10)
    ledger.record_applied([(3, 5)])
    ledger.record_dropped(7)
    counts = ledger.counts()
    assert (counts.issued, counts.applied, counts.dropped, counts.outstanding) == (8, 2, 1, 5)
    assert units_of(ledger.lease("a", 6, limit=10)) == [0, 1, 2, 5, 6, 8]


def test_a_restore_gives_the_units_back_that_were_counted_too_early():
    ledger = Ledger(20)
    ledger.lease("a", 6, limit=20)
    ledger.lease("b", 4, limit=20)
    ledger.record_applied([(0, 4), (6, 8)])
    assert ledger.restore([(0, 2), (6, 7)], []) == 3
    assert ledger.holders() == {}
    assert units_of(ledger.lease("c", 20, limit=20)) == [2, 3, 4, 5, 7, 8, 9, *range(10, 20)]


def test_a_restore_that_knows_more_than_was_reported_loses_nothing():
    ledger = Ledger(20)
    ledger.lease("a", 2, limit=20)
    assert ledger.restore([(0, 9)], [(9, 10)]) == 0
    counts = ledger.counts()
    assert (counts.issued, counts.applied, counts.dropped, counts.outstanding) == (10, 9, 1, 0)


def test_an_adopted_stream_is_not_given_to_others_and_what_has_an_end_already_is_not_adopted():
    ledger = Ledger(20, issued=2, applied=[(0, 2)])
    ledger.adopt("worker 0", [(1, 3), (6, 8)])
    assert ledger.holders() == {"worker 0": 3}
    assert units_of(ledger.lease("worker 1", 4, limit=20)) == [3, 4, 5, 8]


def test_two_workers_that_claim_the_same_unit_do_not_both_get_it():
    ledger = Ledger(20)
    ledger.adopt("worker 0", [(0, 3)])
    ledger.adopt("worker 1", [(2, 5)])
    assert ledger.holders() == {"worker 0": 3, "worker 1": 2}
    ledger.check()


def test_a_restored_ledger_hands_out_first_what_was_in_flight():
    ledger = Ledger(10, issued=6, applied=[(0, 2), (4, 5)], dropped=[(2, 3)])
    assert units_of(ledger.lease("a", 4, limit=10)) == [3, 5, 6, 7]


def test_the_newest_unit_applied_is_the_highest_whatever_was_applied_last():
    ledger = Ledger(20)
    assert ledger.newest_applied == -1
    ledger.lease("worker 0", 12, 20)
    ledger.record_applied([(8, 10)])
    ledger.record_applied([(0, 4)])
    assert ledger.newest_applied == 9


def test_streams_of_very_many_ranges_are_adopted_and_released_in_one_pass():
    """One by one, each would move all that lie behind it: many seconds under the chief's lock."""
    count, ledger = 60_000, Ledger(1_000_000)
    began = time.thread_time()
    for worker in range(2):
        ledger.adopt(
            f"worker {worker}", [(6 * index + 3 * worker, 6 * index + 3 * worker + 1) for index in range(count)]
        )
    assert ledger.holders() == {"worker 0": count, "worker 1": count}
    assert [ledger.release(f"worker {worker}") for worker in range(2)] == [count, count]
    assert time.thread_time() - began < 5.0


def test_a_phase_gets_no_waiting_units_of_a_later_stage_that_was_rolled_back():
    ledger = Ledger(100)
    ledger.lease("worker 0", 60, limit=60)
    ledger.record_dropped(3)
    ledger.restore([(0, 3), (4, 10)], [(3, 4)])
    assert ledger.lease("worker 0", 8, limit=40, had=[(10, 41)]) == (), "a server refuses unit 41: the phase has 40"
    assert units_of(ledger.lease("worker 1", 50, limit=40)) == [*range(10, 41)]
