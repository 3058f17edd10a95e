"""The ledger against a plain dictionary unit -> what became of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hybridsync.chief.ledger import Ledger
from hybridsync.units import Range

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
    def lease(self, holder, count, limit):
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


def test_an_end_of_a_unit_that_was_never_issued_is_our_fault():
    with pytest.raises(AssertionError, match="only 0 were issued"):
        Ledger(4).record_applied([(0, 1)])


def test_a_restored_ledger_hands_out_first_what_was_in_flight():
    ledger = Ledger(10, issued=6, applied=[(0, 2), (4, 5)], dropped=[(2, 3)])
    assert units_of(ledger.lease("a", 4, limit=10)) == [3, 5, 6, 7]
