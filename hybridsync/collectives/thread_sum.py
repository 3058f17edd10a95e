"""The only collective of a lock-step step: the total of the members' contributions.

A step in which a member had nothing finite to contribute has a second, small one: it tells everybody whose unit it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from hybridsync.core.errors import PhaseRevoked, WaitTimeout


class Collective(Protocol):
    """Sums the contributions of a phase's members, in their order."""

    def enter(self) -> None:
        """Meet the other members, before the first total.

        Raises:
          PhaseRevoked: a member is gone, or the collective was broken off.
          WaitTimeout: a member did not come in time.
        """
        ...

    def break_off(self, reason: str) -> None:
        """Make every call under way, in any thread, and every later one raise PhaseRevoked."""
        ...

    def total(self, index: int, contribution: Any) -> Any:
        """Deliver the contribution of the member at `index`; returns the total of all.

        Raises:
          PhaseRevoked: a member is gone.
          WaitTimeout: a member did not deliver in time.
        """
        ...

    def reasons(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why the member at `index` contributed nothing for its units, "" where it did; returns what all say.

        Called only after a total that lacks somebody's contribution, which all members see alike.

        Args:
          index: of the member.
          reasons: one for each of its units, and as many as everybody else's: "" beyond them.

        Raises:
          PhaseRevoked: a member is gone.
          WaitTimeout: a member did not answer in time.
        """
        ...


class Rendezvous:
    """The collective among threads of one process: the last to arrive sums up, in member order.

    The condition guards the slots and the generation; it is notified when a generation completes or breaks.

    Args:
      members: worker ids in mesh order, named when one is missing.
      sum_up: ordered sum of a tuple of contributions.
      deadline_secs: how long to wait for the slowest member.
    """

    def __init__(self, members: tuple[int, ...], sum_up: Callable[[tuple], Any], deadline_secs: float = 600.0) -> None:
        self._members, self._sum_up, self._deadline_secs = members, sum_up, deadline_secs
        self._condition = threading.Condition()
        self._slots: list[Any] = [None] * len(members)
        self._arrived = 0
        self._generation = 0
        self._result: Any = None
        self._broken = ""

    def enter(self) -> None:
        """Nothing: threads of one process need no introduction."""

    def total(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution (see `Collective.total`)."""
        if len(self._members) == 1:
            return contribution
        return self._meet(index, contribution, self._sum_up)

    def reasons(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Collective.reasons`)."""
        if len(self._members) == 1:
            return (reasons,)
        return self._meet(index, reasons, tuple)

    def _meet(self, index: int, item: Any, combine: Callable[[tuple], Any]) -> Any:
        """Put `item` into the member's slot; the last one combines them all, and everybody returns the result."""
        with self._condition:
            if self._broken:
                raise PhaseRevoked(self._broken)
            generation = self._generation
            self._slots[index] = item
            self._arrived += 1
            if self._arrived == len(self._members):
                self._result = combine(tuple(self._slots))
                self._slots = [None] * len(self._members)
                self._arrived = 0
                self._generation += 1
                self._condition.notify_all()
                return self._result
            arrived = self._condition.wait_for(
                lambda: self._generation != generation or self._broken, self._deadline_secs
            )
            if self._broken:
                raise PhaseRevoked(self._broken)
            if not arrived:
                missing = [m for m, slot in zip(self._members, self._slots, strict=True) if slot is None]
                raise WaitTimeout(
                    f"workers {missing} did not deliver their gradients within {self._deadline_secs:g} s; the others "
                    "of the step have"
                )
            return self._result

    def break_off(self, reason: str) -> None:
        """Make every waiting and later call raise PhaseRevoked (see `Collective.break_off`)."""
        with self._condition:
            self._broken = reason
            self._condition.notify_all()
