"""Deals the units of a lock-step step out to the members of its mesh. Pure.

A member with a share of c takes c units of a step, a whole step has as many places as the shares sum to, and place p of
a step belongs to the same member in every step: so the owner of a unit follows from its position in the stream alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class StepAssignment:
    """Assigns each place of a step to a member.

    The r-th of a member's c units counts as due at r / c of the step, and places are in the order in which they are
    due, members in their own where that is the same: so a step that is short of units leaves out those that would have
    ended last, however many units each member takes. With one unit each that is the order of the members.

    Args:
      shares: units a step of each member, in mesh order, none below 0 and one above it.

    Raises:
      ValueError: a share is below 0, or no share is above 0.

    >>> StepAssignment((2, 2, 1)).turns, StepAssignment((1, 1, 1)).turns
    ((0, 1, 0, 1, 2), (0, 1, 2))
    >>> assignment = StepAssignment((2, 2, 1))
    >>> assignment.num_places, assignment.num_rounds, [assignment.of(member, (7, 8, 9, 12)) for member in range(3)]
    (5, 2, [(7, 9), (8, 12), ()])
    """

    shares: tuple[int, ...]
    turns: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.shares, default=0) < 0 or not sum(self.shares):
            raise ValueError(f"shares of a step are 0 or more, and not all of them 0; got {list(self.shares)}")
        due = sorted(
            (Fraction(unit, share), member) for member, share in enumerate(self.shares) for unit in range(1, share + 1)
        )
        object.__setattr__(self, "turns", tuple(member for _, member in due))

    @property
    def num_places(self) -> int:
        """Units of a whole step."""
        return len(self.turns)

    @property
    def num_rounds(self) -> int:
        """Units that one member takes at most."""
        return max(self.shares)

    def places(self, member: int) -> tuple[int, ...]:
        """Return the places of the member at this index of the mesh, ascending."""
        return tuple(place for place, whose in enumerate(self.turns) if whose == member)

    def of(self, member: int, units: Sequence[int]) -> tuple[int, ...]:
        """Return those of a step's units that a member takes, in its order."""
        return tuple(units[place] for place in self.places(member) if place < len(units))

    def divide(self, placed: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        """Return the units of each member, in its order, of (place, unit) pairs in ascending order.

        >>> StepAssignment((2, 1)).divide([(0, 5), (2, 9)])
        ((5,), (9,))
        """
        found: list[list[int]] = [[] for _ in self.shares]
        for place, unit in placed:
            found[self.turns[place]].append(unit)
        return tuple(map(tuple, found))

    def by_place(self, told: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return in the order of the places what each member has told of its own, one text a unit.

        >>> StepAssignment((2, 1)).by_place([("a", "b"), ("c", "")])
        ('a', 'b', 'c')
        """
        own = [iter(texts) for texts in told]
        return tuple(next(own[member]) for member in self.turns)


class Outcome(NamedTuple):
    """Lists a step's applied and dropped units.

    Args:
      units: units in the step's total.
      slots: places of those; () where they are the first ones.
      dropped: the other units, each with the reason.
    """

    units: tuple[int, ...]
    slots: tuple[int, ...] = ()
    dropped: tuple[tuple[int, str], ...] = ()


def outcome_of(units: tuple[int, ...], reasons: Sequence[str]) -> Outcome:
    """Return what became of a step's `units`, by why each one's contribution is missing.

    Args:
      units: units of the step, in the order of the places.
      reasons: reason of each missing contribution, in the same order; "" where the contribution is there; () where all
        are.

    >>> outcome_of((7, 8, 9), ()), outcome_of((7, 8), ("a NaN", "", ""))
    (Outcome(units=(7, 8, 9), slots=(), dropped=()), Outcome(units=(8,), slots=(1,), dropped=((7, 'a NaN'),)))
    """
    if not any(reasons):
        return Outcome(units)
    kept = [(slot, unit) for slot, unit in enumerate(units) if not reasons[slot]]
    dropped = tuple((unit, reasons[slot]) for slot, unit in enumerate(units) if reasons[slot])
    return Outcome(tuple(unit for _, unit in kept), tuple(slot for slot, _ in kept), dropped)


class Computing(Protocol):
    """Computes a step again: the compiled programs, or a simulation's arithmetic."""

    @property
    def zero(self) -> Any: ...

    def gradient(self, parameters: Any, unit: int) -> Any: ...

    def sum(self, contributions: Sequence[Any]) -> Any: ...


def contribution_of(computing: Computing, parameters: Any, units: Sequence[int]) -> Any:
    """Return what a member with these `units` brings to a step: their sum in their order, zeros without any."""
    gradients = [computing.gradient(parameters, unit) for unit in units]
    if len(gradients) > 1:
        return computing.sum(gradients)
    return gradients[0] if gradients else computing.zero
