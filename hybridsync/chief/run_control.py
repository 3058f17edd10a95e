"""The lock of a run, as its controller uses it: the controller takes turns with the roles' calls, and waits here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybridsync.chief.orders import Orders
from hybridsync.chief.run_state import RunState


class RunControl:
    """Gives the controller the run's state in turns, and has it wait for changes of that state between them.

    Args:
      state: the run's state.

    Attributes:
      orders: the orders of the run's user, behind a lock of their own.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.orders: Orders = state.orders

    @contextmanager
    def turn(self) -> Iterator[RunState]:
        """Hold the run's lock for a turn, and give its state: what is read or changed in one turn belongs together.

        Nothing may wait in a turn, and nothing that changes may be kept beyond it: it is copied.
        """
        with self._state.condition:
            yield self._state

    def wait_until(self, ready: Callable[[RunState], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready`, whatever else happens; returns whether it is.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        with self.turn() as chief:
            return chief.waits.wait_until(lambda: ready(chief), secs)

    def watch(self, ready: Callable[[RunState], bool], secs: float) -> bool:
        """Wait up to `secs` for `ready` or a preemption; returns whether `ready`.

        Raises:
          PhaseBroken: the phase cannot go on.
          HybridSyncError: the run cannot go on.
        """
        with self.turn() as chief:
            deadline = chief.clock.monotonic() + secs
            while not ready(chief) and not chief.preempted:
                chief.raise_broken()
                if not chief.waits.wait(deadline):
                    break
            chief.raise_broken()  # also where `ready` holds: units of a broken phase may be rolled back
            return ready(chief)

    def await_all_informed(self, secs: float) -> bool:
        """Wait until every live role has heard that the run is over; returns whether all have."""
        with self.turn() as chief:
            deadline = chief.clock.monotonic() + secs
            while not chief.informed.issuperset(chief.members.live()):
                if not chief.waits.wait(deadline):
                    return False
            return True

    def wake(self) -> None:
        """Have everybody who waits look again: something ended that the chief is not told of."""
        with self.turn() as chief:
            chief.condition.notify_all()

    def finish(self) -> None:
        """Tell everybody that the run is over."""
        with self.turn() as chief:
            was_over, leave = chief.over, chief.leave
        if not was_over:  # outside the turn: it may have to wait for who reads
            leave()  # first: a role that ends before that is known is taken for lost, and replaced
        with self.turn() as chief:
            chief.over = True
            chief.condition.notify_all()
