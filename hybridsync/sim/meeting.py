"""The collective of a lock-step phase in virtual time: whoever delivers last ends the step for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridsync.sim.process import Process
    from hybridsync.sim.world import World

Reasons = tuple[str, ...]


class Total:
    """The ordered contributions of a step, and the states that their update has led to.

    Attributes:
      reasons: why members contributed nothing for their units, "" where they did, in member order.
    """

    def __init__(self, world: World, contributions: list[Any], reasons: tuple[Reasons, ...]) -> None:
        self._world, self._contributions, self.reasons = world, contributions, reasons
        self._after: dict[str, Any] = {}
        self._first: tuple[Any, Any] | None = None

    def applied_to(self, state: Any, *, units: int, factor: float) -> Any:
        """Return the state after the update; the members' states are equal, so it is computed once."""
        if self._first is not None and self._first[0] is state:
            return self._first[1]
        key = self._world.arithmetic.fingerprint(state) if self._first is not None else ""
        if key not in self._after:
            self._after[key] = self._world.arithmetic.update(
                state, self._contributions, units=units, factor=factor, blend=1.0
            )
        if self._first is None:
            self._first = state, self._after[key]
        return self._after[key]


class Meeting:
    """Where the members of one phase meet, step by step.

    Args:
      world: time and costs.
      num_members: of the phase.
    """

    def __init__(self, world: World, num_members: int) -> None:
        self._world, self._num_members = world, num_members
        self._arrived: dict[int, tuple[Any, Reasons, Process, Callable[[Total], object]]] = {}
        costs, sizes = world.network.cluster.costs, world.arithmetic.sizes
        cluster = world.network.cluster
        self._secs = costs.step_secs + cluster.all_reduce_secs(sizes.gradient, num_members)
        if cluster.colocated is not None:
            self._secs += cluster.colocated.step_secs(costs.step_secs)
        self._sent = 2 * (num_members - 1) * sizes.gradient

    def deliver(
        self, index: int, contribution: Any, reasons: Reasons, member: Process, then: Callable[[Total], object]
    ) -> None:
        """Deliver the contribution of the member at `index`, and why it lacks units; `then` gets the total of all."""
        self._arrived[index] = contribution, reasons, member, then
        if len(self._arrived) == self._num_members:
            self._world.loop.after(self._secs, self._end)

    def _end(self) -> None:
        arrived, self._arrived = self._arrived, {}
        if any(member.dead or member.stopped for _, _, member, _ in arrived.values()):
            return  # nobody gets a total that somebody did not live to give: they are called back
        order = sorted(arrived)
        total = Total(self._world, [arrived[index][0] for index in order], tuple(arrived[index][1] for index in order))
        self._world.network.num_bytes += self._sent
        for index in order:
            arrived[index][3](total)
