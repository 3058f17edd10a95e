"""Pushes that are held, and what is decided about them: values that pass between a sequencer and its owner. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybridsync.messages import Part, Push, PushReply
from hybridsync.plan import Epoch

DEPOSIT_SECS = 5.0
"""How long the end of a phase waits for the optimizer states of workers that stepped by themselves."""

# The classes do the same in three times as long: these are for what is made for every unit.
whole_push: Callable[[tuple[Epoch, int, int, tuple[int, ...], int, str, int]], Push] = partial(tuple.__new__, Push)
"""Makes a push of all its fields."""
whole_reply: Callable[[tuple[int, bool, str, int, int, int, tuple[int, ...]]], PushReply]
whole_reply = partial(tuple.__new__, PushReply)
"""Makes a reply of all its fields."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A push that is held: until it is decided (applied or dropped) and released, whoever waits for it meanwhile.

    Args:
      push: as it arrived.
      contribution: what it brought; None once its end is decided.
      reply: what it is answered; None while the rule holds it.
      decided: whether its units were applied or dropped.
      reason: why they were dropped; "" if they were not.
      fenced: its worker is gone, nobody waits for it and nothing may come of it.
      push_id: names it in the rule's actions; 0 where the rule was not asked.
    """

    push: Push
    contribution: Any
    reply: PushReply | None = None
    decided: bool = False
    reason: str = ""
    fenced: bool = False
    push_id: int = 0


@dataclass(slots=True)
class Decided:
    """One update to carry out, or, without tickets, nothing but the drop of one push.

    Args:
      tickets: whose contributions make the update up, in the order of their sum.
      units: of all of them.
      base: oldest sequence that one of them was computed on.
      rate: the protocol's factor on the schedule's learning rate.
      blend: share of the new float model statistics.
      weights: of each ticket's gradient in the sum; () is 1 each.
      parts: what each ticket brings, as the apply log has it; () where all were computed on `base` and weigh 1.
      stepped: of workers that step by themselves, what the apply log says of each push (`hybridsync.applylog.Stepped`).
      dropped: a push that will not be applied.
    """

    tickets: Sequence[Ticket]
    units: tuple[int, ...] = ()
    base: int = 0
    rate: float = 0.0
    blend: float = 0.0
    weights: tuple[float, ...] = ()
    parts: tuple[Part, ...] = ()
    stepped: tuple[tuple[int, int, int, int, int], ...] = ()
    dropped: Push | None = None


def missing_deposits(last: Mapping[int, Push], deposits: Mapping[int, Push]) -> list[int]:
    """Return the workers from whose process that pushed last no optimizer state has come, whether it is usable or not.

    Args:
      last: each worker's last push that was applied.
      deposits: worker -> behind which push the state that came last was left.
    """
    return [
        worker
        for worker in sorted(last)
        if worker not in deposits or deposits[worker].incarnation < last[worker].incarnation
    ]


def usable_deposits(last: Mapping[int, Push], deposits: Mapping[int, Push]) -> list[int]:
    """Return the workers whose optimizer state is the one after their last push that was applied, ascending."""
    usable = []
    for worker, push in sorted(deposits.items()):
        end = last.get(worker)
        if end is not None and end.incarnation == push.incarnation and push.units == end.units[-1:]:
            usable.append(worker)
    return usable


def stepped_of(ticket: Ticket) -> tuple[int, int, int, int, int]:
    """Return what the apply log says of a push of a worker that steps by itself (`hybridsync.applylog.Stepped`)."""
    push = ticket.push
    return push.worker, push.incarnation, push.life, push.base, len(push.units)


def parts_of(tickets: Sequence[Ticket], base: int, weights: tuple[float, ...]) -> tuple[Part, ...]:
    """Return what each push of an update brings; () where all were computed on `base` and weigh 1."""
    if not weights and all(ticket.push.base == base for ticket in tickets):
        return ()
    pushes = [ticket.push for ticket in tickets]
    return tuple(
        Part(push.units, push.base, weight)
        for push, weight in zip(pushes, weights or (1.0,) * len(pushes), strict=True)
    )
