"""Tells the checks of a simulation what happens in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridsync.interfaces.commands import SwitchReply
from hybridsync.interfaces.messages import GroupReply, LeaseReply, LeaseRequest, PhaseRequest, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.lab.simulator.simulated_process import Process

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster

Units = tuple[int, ...]


class Watch:
    """Hears of what a simulation does, for those who check it."""

    simulated: SimulatedCluster | None = None
    """The cluster that is watched."""

    def announced(self, request: PhaseRequest, phase: Phase) -> None:
        """Called when the chief tells a worker of a phase."""

    def entered(self, process: Process, phase: Phase, state: Any) -> None:
        """Called when a server, or a member of a mesh, holds the phase's starting state."""

    def granted(self, request: LeaseRequest, reply: LeaseReply) -> None:
        """Called when the chief has given out units."""

    def reported(self, report: Report) -> None:
        """Called when the chief has taken a report."""

    def applied(self, process: Process, phase: Phase, sequence: int, pushes: tuple[Push, ...], units: Units) -> None:
        """Called when a server, or a member of a mesh, which has no pushes, has come to `sequence` by units."""

    def stepped(self, worker: Process, phase: Phase, unit: int) -> None:
        """Called when a member of a group phase has applied a unit to its own replica."""

    def synchronised(self, worker: Process, phase: Phase, reply: GroupReply, state: Any) -> None:
        """Called when a member of a group phase holds what a full synchronisation made of all replicas."""

    def fenced(self, server: Process, worker: int, incarnation: int) -> None:
        """Called when a server is told to refuse a worker's processes up to `incarnation`."""

    def arrived(self, server: Process, push: Push) -> None:
        """Called when a push has come to a server."""

    def acknowledged(self, server: Process, push: Push, reply: PushReply) -> None:
        """Called when a server answers a push or a pull."""

    def served(self, server: Process, phase: Phase) -> None:
        """Called when a server serves a phase."""

    def ordered(self, reply: SwitchReply) -> None:
        """Called when the chief has taken an order of the run's user."""

    def leased(self, worker: Process, phase: Phase, reply: LeaseReply) -> None:
        """Called when a worker was given units."""

    def pushed(self, push: Push, reply: PushReply) -> None:
        """Called when a worker has the answer to a push."""
