"""Runs the collectives of workers that hold the state, in virtual time: the last delivery ends one for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridsync.interfaces.messages import GroupReply

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
    from hybridsync.lab.simulator.simulated_process import Process

Reasons = tuple[str, ...]


class Total:
    """The ordered contributions of a step, and the states that their update has led to."""

    def __init__(self, simulated: SimulatedCluster, contributions: list[Any]) -> None:
        self._simulated, self._contributions = simulated, contributions
        self._after: dict[str, Any] = {}
        self._first: tuple[Any, Any] | None = None

    def applied_to(self, state: Any, *, units: int, factor: float) -> Any:
        """Return the state after the update; the members' states are equal, so it is computed once."""
        if self._first is not None and self._first[0] is state:
            return self._first[1]
        key = self._simulated.arithmetic.fingerprint(state) if self._first is not None else ""
        if key not in self._after:
            self._after[key] = self._simulated.arithmetic.update(
                state, self._contributions, units=units, factor=factor, blend=1.0
            )
        if self._first is None:
            self._first = state, self._after[key]
        return self._after[key]


class VirtualAllReduce:
    """Lets the members of one phase meet, step by step.

    Args:
      simulated: the simulated run, for time and costs.
      members: members of the phase.
    """

    def __init__(self, simulated: SimulatedCluster, members: tuple[int, ...]) -> None:
        self._simulated, self._members = simulated, members
        self._arrived: dict[int, tuple[Any, int, Process, Callable[[tuple[Total, int]], object]]] = {}
        self._told: dict[int, tuple[Reasons, Callable[[tuple[Reasons, ...]], object]]] = {}
        self._num_bytes = simulated.arithmetic.sizes.gradient

    def deliver(
        self,
        index: int,
        contribution: Any,
        num_units: int,
        member: Process,
        then: Callable[[tuple[Total, int]], object],
    ) -> None:
        """Deliver the contribution of the member at `index`; `then` gets the total of all and the units in it."""
        self._arrived[index] = contribution, num_units, member, then
        if len(self._arrived) == len(self._members):
            network = self._simulated.network
            secs, machines = network.cluster.costs.step_secs, network.cluster.colocated
            if machines is not None:
                secs = machines.transfer_secs(secs, len(self._members))
            network.all_reduce(self._members, self._num_bytes, secs, self._end)

    def _end(self) -> None:
        arrived, self._arrived = self._arrived, {}
        if any(member.dead or member.stopped for _, _, member, _ in arrived.values()):
            return  # no total without a member that died: all are called back
        order = sorted(arrived)
        total = Total(self._simulated, [arrived[index][0] for index in order])
        num_units = sum(arrived[index][1] for index in order)
        self._simulated.network.num_bytes += 2 * (len(self._members) - 1) * self._num_bytes
        for index in order:
            arrived[index][3]((total, num_units))

    def gather_reasons(self, index: int, reasons: Reasons, then: Callable[[tuple[Reasons, ...]], object]) -> None:
        """Tell why units of the member at `index` are missing; `then` gets what all have told, in no time."""
        self._told[index] = reasons, then
        if len(self._told) == len(self._members):
            told, self._told = self._told, {}
            of_all = tuple(told[each][0] for each in sorted(told))
            for each in sorted(told):
                told[each][1](of_all)


class GroupAverage:
    """One group's average: the last member ends it for all, after the time of the transfers.

    Args:
      simulated: the simulated run, for time and costs.
      reply: reply that names the group.
    """

    def __init__(self, simulated: SimulatedCluster, reply: GroupReply) -> None:
        self._simulated, self._reply = simulated, reply
        self._arrived: dict[int, tuple[Any, Process, Callable[[Any], object]]] = {}

    def deliver(self, state: Any, member: Process, then: Callable[[Any], object]) -> None:
        """Bring a member's replica; `then` gets it back averaged."""
        self._arrived[member.id] = state, member, then
        members = self._reply.members
        if len(self._arrived) == len(members):
            simulated, sizes = self._simulated, self._simulated.arithmetic.sizes
            size = sizes.state if self._reply.optimizer else sizes.parameters
            simulated.network.num_bytes += 2 * (len(members) - 1) * size
            simulated.network.all_reduce(members, size, simulated.network.cluster.costs.step_secs, self._end)

    def _end(self) -> None:
        if any(member.dead or member.stopped for _, member, _ in self._arrived.values()):
            return  # no average without a member that died: all are called back
        arrived = [self._arrived[worker] for worker in self._reply.members]
        states = self._simulated.arithmetic.averaged([state for state, _, _ in arrived], self._reply)
        for (_, _, then), state in zip(arrived, states, strict=True):
            then(state)
