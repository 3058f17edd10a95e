"""The ledger: which units were issued, and what became of each.

`issued = applied + dropped + outstanding` holds at all times; units are issued as 0, 1, 2, ... so the number issued is
also the next fresh unit. Outstanding units are leased to a holder, or wait to be leased again because their holder is
gone. A dropped unit is final: a fresh one takes its place, until the units applied make up the workload.

The holder of the state owns the truth about applied and dropped units; this is the chief's cache of it.

    >>> ledger = Ledger(workload=10)
    >>> ledger.lease("worker 0", count=4, limit=10)
    ((0, 4),)
    >>> ledger.record_applied([(0, 2)])
    >>> ledger.release("worker 0")
    2
    >>> ledger.lease("worker 1", count=3, limit=10)
    ((2, 4), (4, 5))
    >>> ledger.counts()
    Counts(workload=10, issued=5, applied=2, dropped=0, outstanding=3, rolled_back=0)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hybridsync.core.units import Range, UnitMap, UnitSet, num_units


@dataclass(frozen=True)
class Counts:
    """The accounting of a run, in units; `rolled_back` counts applied units whose effect was lost and redone."""

    workload: int
    issued: int
    applied: int
    dropped: int
    outstanding: int
    rolled_back: int

    def to_json(self) -> dict[str, int]:
        """Return the fields by name."""
        return asdict(self)


class Ledger:
    """Issues units and follows them to their end.

    Args:
      workload: units to be applied in the whole run.
      issued: units issued before; those neither applied nor dropped are outstanding and go out first.
      applied, dropped: ranges of the units that were applied, and of those that were dropped.
      rolled_back: carried over from before.
    """

    def __init__(
        self,
        workload: int,
        *,
        issued: int = 0,
        applied: Iterable[Range] = (),
        dropped: Iterable[Range] = (),
        rolled_back: int = 0,
    ) -> None:
        self.workload = workload
        self.rolled_back = rolled_back
        self._issued = issued
        self._applied = UnitSet(applied)
        self._dropped = UnitSet(dropped)
        self._quarantined = UnitSet()
        self._leased = UnitMap()
        self._credits: dict[str, int] = {}
        whole = UnitSet([(0, issued)]) if issued else UnitSet()
        self._waiting = whole.difference(self._applied).difference(self._dropped)
        self.check()

    @property
    def num_dropped(self) -> int:
        """Units finally dropped so far."""
        return len(self._dropped)

    @property
    def num_applied(self) -> int:
        """Units applied so far."""
        return len(self._applied)

    @property
    def newest_applied(self) -> int:
        """The highest unit applied so far; -1 where none was."""
        return max((stop for _, stop in self._applied.ranges()), default=0) - 1

    @property
    def num_waiting(self) -> int:
        """Outstanding units that nobody has leased."""
        return len(self._waiting)

    @property
    def num_outstanding(self) -> int:
        """Units issued whose end is open."""
        return len(self._waiting) + len(self._leased)

    def room(self, limit: int) -> int:
        """Return how many more units may be leased so that no more than `limit` can end up applied."""
        return max(0, limit - len(self._applied) - len(self._leased))

    def lease(self, holder: str, count: int, limit: int, had: Iterable[Range] = ()) -> tuple[Range, ...]:
        """Hand up to `count` units to `holder`, outstanding ones first, then fresh ones.

        Args:
          holder: name of the stream that gets the units, such as "worker 0".
          count: maximum number of units.
          limit: applied units at which the phase ends; no lease lets applied plus leased exceed it.
          had: units that `holder` got before and may still compute, though they wait for others too: it gets none of
            them again, and nothing in their place. Not looked at where no units wait.
        """
        room = self.room(limit)
        count = min(count, room)
        if count <= 0:
            return ()
        waiting = self._waiting_below(limit + len(self._dropped))
        num_waiting = len(waiting)
        ranges = self._take_waiting(count, waiting.difference(UnitSet(had))) if waiting else ()
        missing = min(count - num_units(ranges), max(0, room - num_waiting))
        if missing:
            ranges += ((self._issued, self._issued + missing),)
            self._issued += missing
        for start, stop in ranges:
            self._leased.assign(start, stop, holder)
        return ranges

    def _waiting_below(self, stop: int) -> UnitSet:
        """Return the waiting units below `stop`; a rollback to an earlier stage leaves some that are a later one's."""
        return self._waiting if self._issued <= stop else self._waiting.intersection(UnitSet([(0, stop)]))

    def _take_waiting(self, count: int, waiting: UnitSet) -> tuple[Range, ...]:
        ranges = waiting.pop_lowest(count)
        for start, stop in ranges:
            self._waiting.discard_range(start, stop)
        return ranges

    def record_applied(self, ranges: Iterable[Range]) -> None:
        """Note units as applied; units already noted, or dropped, are ignored."""
        ranges = [*ranges]
        if self._waiting or any(stop > self._issued for _, stop in ranges):
            for start, stop in ranges:
                self._stop_waiting(start, stop)
        self._credit(self._leased.discard(ranges))
        if not self._dropped:
            self._applied.update(ranges)
            return
        units = UnitSet(ranges)
        if known := units.intersection(self._quarantined):  # by a process that had it too
            self._quarantined = self._quarantined.difference(known)
            self._dropped = self._dropped.difference(known)
        self._applied.update(units.difference(self._dropped))

    def _credit(self, counts: dict[str, int]) -> None:
        for holder, count in counts.items():
            self._credits[holder] = self._credits.get(holder, 0) + count

    def take_credits(self) -> dict[str, int]:
        """Return and forget how many units of each holder were applied while it had them leased."""
        taken, self._credits = self._credits, {}
        return taken

    def record_dropped(self, unit: int) -> bool:
        """Note a unit as finally dropped; returns whether that is news.

        It may be noted as applied: a mesh's position reports how far it is, not what became of each unit.
        """
        if unit in self._dropped:
            return False
        self._stop_waiting(unit, unit + 1)
        self._leased.discard_range(unit, unit + 1)
        self._applied.discard_range(unit, unit + 1)
        self._dropped.add(unit)
        return True

    def quarantine(self, unit: int) -> bool:
        """Drop an issued unit, whatever a state's holder says that does not know of it; tells if that is news."""
        if unit >= self._issued or unit in self._applied or not self.record_dropped(unit):
            return False
        self._quarantined.add(unit)
        return True

    def all_dropped(self, applied: Iterable[Range], dropped: Iterable[Range]) -> tuple[Range, ...]:
        """Return the finally dropped units beside a state that `applied` and `dropped` are said of."""
        gone = self._quarantined.difference(UnitSet(applied))
        gone.update(dropped)
        return gone.ranges()

    def release(self, holder: str) -> int:
        """Take back what `holder` had leased; returns how many units wait to be leased again."""
        ranges = self._leased.release(holder)
        self._waiting.update(ranges)
        return num_units(ranges)

    def release_all(self) -> None:
        """Take every lease back."""
        for holder in self.holders():
            self.release(holder)

    def restore(self, applied: Iterable[Range], dropped: Iterable[Range]) -> int:
        """Take over what the holder of the newest state says: nothing else was applied, and nobody has a lease.

        Returns:
          how many units had been noted as applied that were not; they wait to be leased again.
        """
        held, gone = UnitSet(applied), UnitSet(self.all_dropped(applied, dropped))
        lost = len(self._applied.difference(held).difference(gone))
        self._credit(self._leased.discard(held.difference(self._applied).ranges()))
        self._issued = max([self._issued, *(stop for _, stop in (*held.ranges(), *gone.ranges()))])
        self._applied, self._dropped, self._leased = held, gone, UnitMap()
        whole = UnitSet([(0, self._issued)]) if self._issued else UnitSet()
        self._waiting = whole.difference(held).difference(gone)
        self.check()
        return lost

    def adopt(self, holder: str, ranges: Iterable[Range]) -> None:
        """Note that `holder` has `ranges` in hand, which another ledger leased; units that have ended are left out."""
        units = UnitSet(ranges)
        stop = max((stop for _, stop in units.ranges()), default=0)
        if stop > self._issued:
            self._waiting.add_range(self._issued, stop)
            self._issued = stop
        free = units.intersection(self._waiting)
        self._waiting = self._waiting.difference(units)
        self._leased.assign_all(free.ranges(), holder)

    def owners(self, start: int, stop: int) -> dict[str, int]:
        """Return who has how many of the units `start <= u < stop` leased."""
        return self._leased.owners(start, stop)

    def leased(self, holder: str) -> tuple[Range, ...]:
        """Return what `holder` has leased."""
        return self._leased.of(holder)

    def holders(self) -> dict[str, int]:
        """Return who has how many units leased."""
        return self._leased.counts()

    def counts(self) -> Counts:
        """Return the accounting; the identity is checked."""
        self.check()
        return Counts(
            self.workload,
            self._issued,
            len(self._applied),
            dropped=len(self._dropped),
            outstanding=self.num_outstanding,
            rolled_back=self.rolled_back,
        )

    def applied(self) -> UnitSet:
        """Return a copy of the applied units."""
        return self._applied.copy()

    def dropped(self) -> UnitSet:
        """Return a copy of the finally dropped units."""
        return self._dropped.copy()

    def check(self) -> None:
        """Assert issued = applied + dropped + outstanding."""
        total = len(self._applied) + len(self._dropped) + self.num_outstanding
        assert self._issued == total, (
            f"ledger: issued {self._issued} != applied {len(self._applied)} + dropped {len(self._dropped)}"
            f" + outstanding {self.num_outstanding}"
        )

    def to_json(self, applied: Iterable[Range], dropped: Iterable[Range]) -> dict[str, Any]:
        """Return what a checkpoint stores beside a state to which `applied` units were applied, `dropped` dropped."""
        return {
            "workload": self.workload,
            "issued": self._issued,
            "applied": [list(r) for r in applied],
            "dropped": [list(r) for r in self.all_dropped(applied, dropped)],
            "rolled_back": self.rolled_back,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Ledger:
        """Return the ledger of a checkpoint; units in flight when it was taken are outstanding."""
        return cls(
            saved["workload"],
            issued=saved["issued"],
            applied=[(start, stop) for start, stop in saved["applied"]],
            dropped=[(start, stop) for start, stop in saved["dropped"]],
            rolled_back=saved["rolled_back"],
        )

    def _stop_waiting(self, start: int, stop: int) -> None:
        """Have units wait no longer to be leased: their end is known."""
        if stop > self._issued:  # issued by a chief that was lost, to a worker that this one has not heard of
            self._waiting.add_range(self._issued, stop)
            self._issued = stop
        self._waiting.discard_range(start, stop)
