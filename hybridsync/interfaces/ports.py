"""The interfaces between roles: what one role may call on another, in one process or over gRPC.

In-process, the objects themselves implement a port; in the process runtime, a client of the same shape does. All calls
raise the named errors of `hybridsync.core.errors`; over gRPC also `WaitTimeout` and `RoleLost` when the other role does
not answer within its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.agents import AgentHello, AgentReply, AgentReport, AgentWelcome
from hybridsync.interfaces.commands import Evaluation, StatusReply, StopReply, StopRequest, SwitchReply, SwitchRequest
from hybridsync.interfaces.messages import (
    EvaluationRequest,
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Push,
    PushReply,
    RoleEvent,
    Snapshot,
    StateVersion,
    Update,
    Welcome,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report, ReportReply


class WorkPort(Protocol):
    """Gives a worker its work."""

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        """Return the phase after `request.after`, waiting for it up to about a second.

        Raises:
          StaleIncarnation: the worker has been replaced.
          NotRegistered: this chief does not know the worker.
        """
        ...

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Extend the caller's stream of units, waiting up to about a second while there is nothing to give.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          NotRegistered: this chief does not know the worker, or not of all the units that it has.
        """
        ...

    def join_group(self, request: GroupRequest) -> GroupReply:
        """Come to a group round, waiting up to about a second for the group; without members: ask again.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          NotRegistered: this chief does not know the worker.
        """
        ...


class CommandPort(Protocol):
    """Declares what a run's user may ask of its chief."""

    def status(self) -> StatusReply:
        """Return where the run stands."""
        ...

    def switch(self, request: SwitchRequest) -> SwitchReply:
        """Have the run go on under another protocol; what was accepted outlives the chief's process.

        Raises:
          PlanError, ConfigError: the protocol cannot be used; nothing has changed.
          NotRunning: no phase is in progress.
        """
        ...

    def stop(self, request: StopRequest) -> StopReply:
        """Have the run save its state and stop.

        Raises:
          NotRunning: the run is over.
        """
        ...


class ChiefPort(WorkPort, CommandPort, Protocol):
    """The chief, at either end of a link: what roles, supervisors and the run's user ask of it."""

    def register(self, hello: Hello) -> Welcome:
        """Take part in the run; a repeat changes nothing.

        Raises:
          SchemaMismatch: the role's state has other leaves than the chief's.
          StaleIncarnation: a later process has this place.
        """
        ...

    def report(self, report: Report) -> ReportReply:
        """Take a heartbeat; the answer waits up to `report.hold_secs` for news.

        Raises:
          StaleIncarnation: the role has been replaced.
          NotRegistered: this chief does not know the role.
        """
        ...

    def role_started(self, event: RoleEvent) -> None: ...

    def role_lost(self, event: RoleEvent) -> None: ...

    def preempt(self) -> None: ...


class HeadPort(Protocol):
    """Takes in the agents of a run's further hosts, and exchanges orders for events with them."""

    def attach(self, hello: AgentHello) -> AgentWelcome:
        """Take part in the run; a repeat of the same session changes nothing.

        A new session takes the place of the host's former one, under which nothing may run any more.

        Raises:
          UnknownRole: the run has no such host.
          VersionMismatch: the agent's package is of another minor series.
          ConfigError: the agent has another configuration.
          InvalidMessage: a number is out of range, or the session no session.
          StaleAgent: the session is over already.
        """
        ...

    def exchange(self, report: AgentReport) -> AgentReply:
        """Take events, and return orders; waits up to `report.hold_secs` while there is nothing to say.

        Raises:
          StaleAgent: the session is over; AgentReplaced: because another agent has its place.
          InvalidMessage: events are missing before these, or a number is out of range.
        """
        ...


class ReaderPort(Protocol):
    """A role that keeps a captured training state."""

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Fill `into` (uint8, `Snapshot.num_bytes`) with the canonical buffer of that snapshot.

        Raises:
          StalePhase: the holder no longer keeps that snapshot.
        """
        ...


class BufferView(Protocol):
    """A buffer lent out for one reply; `release` gives it back."""

    @property
    def buffer(self) -> np.ndarray: ...

    def release(self) -> None: ...


class SnapshotSource(ReaderPort, Protocol):
    """A role that holds the training state and can take a snapshot of it."""

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Keep a consistent copy of the state; `final` also ends the phase for the holder: later pushes are refused.

        A copy that was kept at a place of `Phase.evaluate_units` is returned instead of the newest state, if it has
        `place` units or more and `place` is not 0. Every call drops what was kept: no snapshot is older than the last.

        Raises:
          StalePhase: the holder is in another phase.
        """
        ...


Evaluate = Callable[[EvaluationRequest], Evaluation]
"""Has a worker fetch a captured state and measure it on the task's held-out examples.

Raises:
  StalePhase: the source no longer keeps that snapshot.
  DamagedState: what arrived is not the state that was captured.
  HybridSyncError: the source does not answer.
"""


class ServerPort(SnapshotSource, Protocol):
    """A parameter server, as the chief drives it."""

    def enter(self, phase: Phase) -> StateVersion:
        """Take the phase's starting state from its source and serve the phase; returns what is now held."""
        ...

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Refuse calls of `worker` with an incarnation up to this one."""
        ...


def at_once() -> None:
    """Wait for nothing."""


@dataclass(frozen=True)
class Answer:
    """A parameter server's answer to a pull or a push.

    Args:
      reply: the answer itself, without the parameters.
      parameters: lent with it; a push that was computed on them needs them no more (`PushReply.brings_parameters`).
      await_arrival: blocks until the parameters may have arrived. The transport calls it before it hands over the last
        of them, so that an emulated link counts the time of the real transfer in.
    """

    reply: PushReply
    parameters: Any
    await_arrival: Callable[[], None] = at_once


class ParameterPort(Protocol):
    """A parameter server at its end of a link to workers.

    A contribution is a byte buffer (`np.ndarray`) and parameters are `BufferView`, or trees where the workers are
    threads.
    """

    def pull(self, push: Push) -> Answer:
        """Lend the current parameters (`push.units` is empty).

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
        """
        ...

    def idle(self, push: Push) -> None:
        """Hear that a worker has nothing to compute, so that nobody waits for it (`push.units` is empty).

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
        """
        ...

    def ready(self, push: Push) -> None:
        """Return when the protocol's rule grants the transfer of what the worker would push.

        Without units nothing is granted: the worker reports that the parameters of `push.base` have arrived.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          WaitTimeout: the rule did not grant it in time.
        """
        ...

    def begin_push(self, push: Push) -> Callable[[Any], Answer]:
        """Hear that a push begins to arrive; returns what to call with its contribution when that is whole.

        That call returns when the protocol's rule releases the push, with the parameters then. A contribution's buffer
        may be reused when it has returned. It raises:

          StalePhase, StaleIncarnation: the caller is out of date; nothing was applied.
          SchemaMismatch: the buffer has the wrong size.
          WaitTimeout: the rule did not release the push in time.
        """
        ...


class ShardPort(ReaderPort, Protocol):
    """A parameter server that is not the primary, as the primary drives it: in one order, one call after another."""

    def apply(self, phase_id: PhaseId, updates: tuple[Update, ...]) -> None:
        """Apply staged contributions; updates that were applied before are passed over.

        Raises:
          StalePhase: another phase is served.
          HybridSyncError: an update before these, or a contribution to them, never came.
        """
        ...

    def discard(self, push: Push) -> None:
        """Drop what was staged for a push that will not be applied.

        Raises:
          StalePhase: another phase is served.
        """
        ...

    def forget(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Drop what the worker's incarnations up to this one have staged, and refuse more of it.

        Raises:
          StalePhase: another phase is served.
        """
        ...

    def snapshot_part(self, phase_id: PhaseId, sequence: int, final: bool, left: tuple[int, ...] = ()) -> Snapshot:
        """Keep a copy of this server's part of the state after update `sequence`, which is the last one it was given.

        Args:
          phase_id: id of the served phase.
          sequence: sequence of the copy.
          final: also ends the phase for the server.
          left: workers whose optimizer states, left here, make up the state's; with none of them it stays.

        Raises:
          StalePhase: another phase is served.
          HybridSyncError: the part is at another sequence.
        """
        ...


class OptimizerPort(Protocol):
    """A parameter server whose workers make local updates, as its gRPC service sees it: byte buffers of its part."""

    def download_opt_state(self, push: Push) -> np.ndarray:
        """Return the optimizer state that the phase began with (`push.units` is empty).

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
        """
        ...

    def upload_opt_state(self, push: Push, opt_state: np.ndarray) -> None:
        """Keep the optimizer state that a worker leaves behind, as it was after its push with the unit `push.units`.

        Raises:
          StalePhase: another phase is served.
        """
        ...
