"""Pushes that are held, and what is decided about them: values that pass between a sequencer and its owner. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridsync.interfaces.messages import Push, PushInUpdate, PushReply


@dataclass(slots=True, eq=False)
class Ticket:
    """A push that is held until it is decided (applied or dropped) and released, whether or not a call waits for it.

    Args:
      push: the push, as it arrived.
      contribution: contribution of the push; None once its end is decided.
      reply: reply to the push; None while the rule holds it.
      decided: whether its units were applied or dropped.
      reason: reason why they were dropped; "" if they were not.
      fenced: its worker is gone: no caller waits for it, and it must have no effect.
      push_id: number of the push in the rule's actions; 0 if the rule was not asked.
    """

    push: Push
    contribution: Any
    reply: PushReply | None = None
    decided: bool = False
    reason: str = ""
    fenced: bool = False
    push_id: int = 0


class HeldPushes:
    """The pushes that are held.

    Attributes:
      by_id: pushes by their number; read-only.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Ticket] = {}
        self._by_unit: dict[int, Ticket] = {}
        self._next_id = 1

    def __iter__(self) -> Iterator[Ticket]:
        """Go through those that are held now; they may be forgotten meanwhile."""
        return iter([*self.by_id.values()])

    def of_unit(self, unit: int) -> Ticket | None:
        """Return the push that was offered last with `unit`."""
        return self._by_unit.get(unit)

    def add(self, push: Push, contribution: Any) -> Ticket:
        """Hold a push from now on."""
        push_id = self._next_id
        self._next_id = push_id + 1
        ticket = self.by_id[push_id] = Ticket(push, contribution, push_id=push_id)
        by_unit = self._by_unit
        for unit in push.units:
            by_unit[unit] = ticket
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """Forget a push of which nothing is to come any more; a repeat is told by its units.

        A push that is decided, and whose reply the rule still holds, is kept, for repeats of it.
        """
        del self.by_id[ticket.push_id]
        by_unit = self._by_unit
        for unit in ticket.push.units:
            if by_unit.get(unit) is ticket:
                del by_unit[unit]

    def clear(self) -> None:
        """Forget all of them."""
        self.by_id.clear()
        self._by_unit.clear()


@dataclass(slots=True)
class Decided:
    """One update to carry out.

    Args:
      pushes: pushes of the update, in the order of their sum.
      contributions: contribution of each push.
      units: units of all pushes.
      base: oldest sequence that one of them was computed on.
      lr_factor: the protocol's factor on the schedule's learning rate.
      blend: share of the new float model statistics.
      weights: factor on each push's gradient in the sum; () is 1 each.
      local_updates: whether its workers make local updates.
    """

    pushes: tuple[Push, ...]
    contributions: tuple[Any, ...]
    units: tuple[int, ...]
    base: int
    lr_factor: float
    blend: float
    weights: tuple[float, ...] = ()
    local_updates: bool = False

    @classmethod
    def of(
        cls, tickets: Sequence[Ticket], rate: float, blend: float, weights: tuple[float, ...], local_updates: bool
    ) -> Decided:
        """Return the update that these pushes make up."""
        pushes = tuple(ticket.push for ticket in tickets)
        units = tuple(unit for push in pushes for unit in push.units)
        base = min(push.base for push in pushes)
        return cls(
            pushes,
            tuple(ticket.contribution for ticket in tickets),
            units,
            base=base,
            lr_factor=rate,
            blend=blend,
            weights=weights,
            local_updates=local_updates,
        )

    @property
    def parts(self) -> tuple[PushInUpdate, ...]:
        """Parts of the update, as the apply log has them; () where all were computed on `base` and weigh 1."""
        pushes, weights = self.pushes, self.weights
        if self.local_updates or (not weights and (len(pushes) == 1 or all(push.base == self.base for push in pushes))):
            return ()
        return tuple(
            PushInUpdate(push.units, push.base, weight)
            for push, weight in zip(pushes, weights or (1.0,) * len(pushes), strict=True)
        )

    @property
    def stepped(self) -> tuple[tuple[int, int, int, int, int, int], ...]:
        """Return what the log says of each push of local updates (see `Stepped` of `storage/apply_log_entries.py`)."""
        if not self.local_updates:
            return ()
        return tuple(
            (push.worker, push.incarnation, push.restart_count, push.base, len(push.units), push.newest)
            for push in self.pushes
        )


@dataclass(slots=True)
class Dropped:
    """A push that will not be applied."""

    push: Push


Decision = Decided | Dropped


def missing_uploads(last: Mapping[int, Push], uploads: Mapping[int, Push]) -> list[int]:
    """Return the workers from whose process that pushed last no optimizer state has come, whether it is usable or not.

    Args:
      last: each worker's last push that was applied.
      uploads: worker -> its last push before the state that it uploaded last.
    """
    return [
        worker
        for worker in sorted(last)
        if worker not in uploads or uploads[worker].incarnation < last[worker].incarnation
    ]


def usable_uploads(last: Mapping[int, Push], uploads: Mapping[int, Push]) -> list[int]:
    """Return the workers whose optimizer state is the one after their last push that was applied, ascending."""
    usable = []
    for worker, push in sorted(uploads.items()):
        end = last.get(worker)
        if end is not None and end.incarnation == push.incarnation and push.units == end.units[-1:]:
            usable.append(worker)
    return usable
