"""Defines a transport: how roles serve each other and reach each other, whatever carries it.

A worker has a `ServerLink` (`hybridsync.worker.link`): trees of arrays. Between processes it is a `PackedLink`
(`hybridsync.transport.packed_link`) over a `ParameterLink` and `BlockLink`s: byte buffers. A transport carries these
buffers; it knows neither their content nor the rule that decides. All calls raise the named errors of the ports, and
`RoleLost` and `WaitTimeout` where the other role does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import (
    BufferView,
    ChiefPort,
    Evaluate,
    OptimizerPort,
    ParameterPort,
    ServerPort,
    ShardPort,
    SnapshotSource,
)

if TYPE_CHECKING:  # both load jax, which a supervisor does without
    from hybridsync.server.partition import Part
    from hybridsync.worker.link import ServerLink

P = TypeVar("P")


@dataclass(frozen=True)
class Link(Generic[P]):
    """The way to another role.

    Attributes:
      port: the role.
      close: ends the calls under way, with RoleLost, and refuses later ones.
    """

    port: P
    close: Callable[[], None]


class ParameterLink(Protocol):
    """The primary, as a worker reaches it; buffers are uint8 and C-contiguous (see `ParameterPort`).

    One call at a time, except `close`. The parameters that a call returns are lent until the next `pull` or
    `push_pull`: the gradient that is pushed then has read them.
    """

    @property
    def contribution(self) -> np.ndarray:
        """The buffer of the next contribution; unchanged from the call of `push_pull` until its end."""
        ...

    def pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """Return the current parameters."""
        ...

    def push_pull(self, push: Push) -> tuple[PushReply, np.ndarray]:
        """Offer what lies in `contribution`; returns the parameters of its release, and anything with `push_only`."""
        ...

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...

    def close(self) -> None:
        """End the calls under way, with RoleLost, and refuse later ones."""
        ...


class BlockLink(Protocol):
    """A server that is not the primary, as a worker reaches it; buffers as in `ParameterLink` (see `ShardBackend`)."""

    @property
    def contribution(self) -> np.ndarray:
        """The buffer of this server's part of the next contribution."""
        ...

    def stage(self, push: Push) -> str:
        """Stage what lies in `contribution`; returns its first entry that is no finite number, or ""."""
        ...

    def pull_at(self, push: Push) -> np.ndarray:
        """Return the parameters after update `push.base`, lent until the next call of this."""
        ...

    def close(self) -> None:
        """End the calls under way, with RoleLost, and refuse later ones."""
        ...


class SnapshotBackend(SnapshotSource, Protocol):
    """A holder at its own end of a link: it streams a captured state to others without copying it first."""

    def lend(self, snapshot_id: int) -> BufferView:
        """Lend the canonical buffer of that snapshot; the next snapshot waits for its return.

        Raises:
          StalePhase: the holder no longer keeps that snapshot.
        """
        ...


class ShardBackend(ShardPort, Protocol):
    """A server that is not the primary, at its own end of a link; what workers call has byte buffers in and out."""

    def stage(self, push: Push, block: BufferView) -> str:
        """Keep this server's part of a contribution until the primary decides; `block` is released then.

        Returns:
          the first entry that is not a finite number, of a contribution which is not kept then; "" where all are.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
        """
        ...

    def pull_at(self, push: Push) -> BufferView:
        """Lend the parameters after update `push.base`, waiting for it.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          WaitTimeout: the update did not come.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """Lists what a role offers to others; None of what it does not.

    Every port is called by several threads at a time.

    Args:
      holder: the training state; takes snapshots of it and lends them.
      state_bytes: size of a whole state in bytes; calls that move one may take accordingly long.
      chief: the chief, for all roles.
      server: a parameter server, for the chief.
      parameters: the primary, for workers. A buffer it is handed is 64-byte aligned and its own until the call returns.
      shard: another server, for the primary and for workers. A block is its own until it releases it.
      optimizer: any server, for workers with local updates. A buffer it is handed is its own from then on.
      evaluate: measures states for the chief, at a worker.
      contribution_bytes: size in bytes of each contribution, or part of one, that it takes; any other size is refused
        before it is received.
      narrow_bytes: smaller sizes that it takes as well, of phases with a narrow wire.
      num_buffers: contributions that may be held at a time, at least the number of workers. Twice that number for
        blocks, and those that the rule answers early: a lost worker's stays until the chief has noticed.
      opt_state_bytes: size in bytes of the optimizer state, or its part, that it takes; any other size is refused
        before it is received.
    """

    holder: SnapshotBackend
    state_bytes: int = 0
    chief: ChiefPort | None = None
    server: ServerPort | None = None
    parameters: ParameterPort | None = None
    shard: ShardBackend | None = None
    optimizer: OptimizerPort | None = None
    evaluate: Evaluate | None = None
    contribution_bytes: int = 0
    narrow_bytes: tuple[int, ...] = ()
    num_buffers: int = 0
    opt_state_bytes: int = 0


class Serving(Protocol):
    """A role that is served."""

    @property
    def address(self) -> str:
        """Address at which others reach it."""
        ...

    def stop(self, grace_secs: float | None = None, wait_secs: float = 0.0) -> None:
        """Refuse new calls, and end those under way after `grace_secs`, at once if None; wait for them up to a time."""
        ...


class Transport(Protocol):
    """Lets roles of one kind of runtime serve and reach each other."""

    def allocate(self, num_bytes: int) -> np.ndarray:
        """Return a new buffer for what this process lends out, of a kind that is carried with as few copies as can be.

        Returns:
          uint8[num_bytes], zeroed, its first byte at a multiple of 64.

        Raises:
          HybridSyncError: there is no memory for it.
        """
        ...

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        """Serve a role from now on.

        Args:
          services: services of the role.
          address: address to serve at; a transport may choose a part of it, and returns the whole.
          calls: maximum number of calls at a time. A long poll or a held push occupies one for as long as it lasts, so
            each caller may need several.
          watchdog: watchdog of the process; it watches the calls.

        Raises:
          AddressError: the role cannot be served there.
        """
        ...

    def chief(self, address: str, deadline_secs: float) -> ChiefPort:
        """Return the way to a chief, which may start later; each call gives up after `deadline_secs`."""
        ...

    def holder(self, address: str, state_bytes: int = 0) -> Link[SnapshotSource]:
        """Return the way to a holder; `state_bytes` of the whole state, if it is to capture one."""
        ...

    def server(self, address: str, state_bytes: int) -> Link[ServerPort]:
        """Return the chief's way to a parameter server."""
        ...

    def peer(self, address: str, state_bytes: int) -> Link[ShardPort]:
        """Return the primary's way to another server."""
        ...

    def evaluator(self, address: str, state_bytes: int) -> Evaluate:
        """Return the chief's way to a worker that measures states."""
        ...

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """Return a worker's way to the servers at these addresses, the primary's first, for one phase.

        Args:
          servers: their addresses.
          parts: part of the trees at each server.
        """
        ...
