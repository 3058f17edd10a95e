"""Declares sums and means among workers: one interface, whatever carries the bytes.

A backend between processes is joined once, before JAX has its devices. Joining returns what makes the collectives of
the run's programs, and those make a communicator for each phase. Threads of one process have nothing to join: they
begin with their collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import GroupReply

if TYPE_CHECKING:
    from hybridsync.training.averaging import AveragedPart
    from hybridsync.training.compiled_programs import Programs


NO_GROUP = "none"
"""In place of a service's address where none is served: the run's plan has no sums among workers."""
JointGradient = Callable[[int, int, Any, Any], Any]
"""(place in the mesh, unit, its raw examples, the replica's parameters) -> the contribution of this member, to be
packed and summed as any other; None where the members' units are not alike, so that each has to compute its own."""
STOP_SECS = 20.0
"""How long the end of a service is waited for. jaxlib gives calls in progress 5 s, and then waits without a limit."""


class Communicator(Protocol):
    """Sums and averages among the members of one phase. A lock-step phase sums, a group phase averages in groups."""

    @property
    def met_at(self) -> float:
        """Monotonic seconds at which all members had come to this thread's last sum or mean; its end at the latest.

        From then on an emulated link carries what they have brought.
        """
        ...

    @property
    def joint_gradient(self) -> JointGradient | None:
        """Computes a step's gradients, one of each member, in one program; None where each member runs its own."""
        ...

    def enter(self) -> None:
        """Meet the other members, before the first sum. Group means need no introduction.

        Raises:
          PhaseRevoked: a member is gone, or the phase was broken off.
          WaitTimeout: a member did not come in time.
        """
        ...

    def pack(self, contribution: Any) -> bool:
        """Write the contribution that `sum` will deliver next where that reads it, if there is such a place.

        Returns whether it was found finite at a glance on the way; False proves nothing.

        Raises:
          HybridSyncError: the host has too little memory.
        """
        ...

    def sum(self, index: int, contribution: Any) -> Any:
        """Deliver the contribution of the member at `index`; returns the sum of all, in the members' order.

        This member's next sum may write over it, once a program that has read it has ended.

        Raises:
          PhaseRevoked: a member is gone, or the phase was broken off.
          WaitTimeout: a member did not deliver in time.
        """
        ...

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why the member at `index` contributed nothing for its units, "" where it did; returns what all say.

        Called only after a sum that lacks a contribution, which all members see alike.

        Args:
          index: place of the member in the mesh.
          reasons: the reason for each of its units, padded with "" to the length that all members use.

        Raises:
          PhaseRevoked: a member is gone, or the phase was broken off.
          WaitTimeout: a member did not answer in time.
        """
        ...

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        """Bring the part of `worker`; returns the mean of the members of its group.

        Raises:
          PhaseRevoked: a member is gone, or the phase was broken off.
          WaitTimeout: a member did not come in time.
        """
        ...

    def break_off(self, reason: str) -> None:
        """Make every pending call, in any thread, and every later one raise PhaseRevoked."""
        ...


class CommunicatorPhase(Protocol):
    """Declares what a communicator has to know of a phase; a `Phase` has it."""

    @property
    def id(self) -> PhaseId:
        """Fencing token of the phase, which no other one has."""
        ...

    @property
    def members(self) -> tuple[int, ...]:
        """Workers in the order that decides the rounding of a sum."""
        ...

    @property
    def device_choice(self) -> int:
        """Number of this one among the possible communicators of these members (see `device_choice`)."""
        ...


class Collectives(Protocol):
    """Makes communicators, for the programs of one run."""

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Compile what the first phases will run, and take its memory, as far as that needs no other worker.

        Args:
          sums: whether the run's plan has lock-step phases.
          groups: whether it has group phases.

        Raises:
          HybridSyncError: the host has too little memory.
        """
        ...

    def communicator(self, phase: CommunicatorPhase) -> Communicator:
        """Return the communicator of a phase; a process asks once a phase."""
        ...

    def rest(self) -> None:
        """Let go of memory that sums alone need: the phase that begins has none."""
        ...


class Service(Protocol):
    """Lets the workers of a run find each other."""

    @property
    def address(self) -> str:
        """Address that a worker joins."""
        ...

    def stop(self, wait_secs: float = STOP_SECS) -> bool:
        """Stop serving, and wait up to `wait_secs` for the end; a second call only waits.

        Returns whether it has ended.
        """
        ...


@dataclass(frozen=True)
class Place:
    """A worker's place among the others.

    Attributes:
      address: address of the service; `NO_GROUP` if none is served.
      worker: number of the worker.
      slots: numbers of all workers that have a place, ascending.
      host: address that carries the collectives.
      num_devices: local devices of each worker, among which a communicator chooses.
      reborn: an earlier process had this place.
      timeout_secs: longest wait for the service, and for the other workers, in seconds.
    """

    address: str
    worker: int
    slots: tuple[int, ...]
    host: str
    num_devices: int
    reborn: bool = False
    timeout_secs: float = 60.0


class Backend(Protocol):
    """Collectives between processes."""

    @property
    def num_devices(self) -> int:
        """Local devices of each worker among which a communicator chooses; beyond all counting where none wears out."""
        ...

    def serve(self, slots: tuple[int, ...], address: str) -> Service:
        """Start what workers will join. The supervisor calls it, so it loads no jax.

        Args:
          slots: numbers of the workers that will have a place, ascending.
          address: `host:0`, or `unix:` and the path of a socket.

        Raises:
          HybridSyncError: it cannot be served there, or the installed packages are unsuited.
        """
        ...

    def join(self, place: Place) -> Callable[[Programs], Collectives]:
        """Take a worker's place, before any other JAX call of its process.

        A backend whose workers have to meet returns when all have taken their places once.

        Returns:
          What makes the collectives of the run's programs.

        Raises:
          WaitTimeout: the service does not answer, or not all workers came.
          HybridSyncError: JAX was used before, or the installed packages are unsuited.
        """
        ...
