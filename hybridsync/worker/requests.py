"""Defines an engine's requests: it yields them, and its driver sends back replies or throws errors in. Pure.

An engine is a generator. Its driver carries out one request at a time. A request begun with `Start` runs in the
background of the requests that follow; one "push" may run at the same time as one other call of a server. A driver that
closes the engine kills the worker: no request may follow. A driver that throws an error in may still be asked to join
what was begun, and to upload an optimizer state.

    request                               reply
    LeaseUnits(request)                   LeaseReply
    ComputeUnit(unit, parameters)         contribution
    CallServer(verb, push, body)          (PushReply, what comes with it: parameters, an optimizer state, None)
    Start(request)                        Ticket, at once
    Join(ticket)                          the reply to what was begun, or its error; the same each time
    EnterReplica(phase)                   None, once this worker holds the phase's starting state
    SendPart(unit, what)                  whether a slow link took any time
    AllReduce(contribution, num_units)    (total, units that are in it), once every member has brought its own
    AllGather(reasons)                    the reasons of every member, in their order
    UpdateReplica(step, ...)              None
    CopyReplica()                         the state that this worker's replica holds, for this worker alone
    UpdateOwn(state, unit, ...)           the state after it
    JoinGroup(request)                    GroupReply; without members: ask again
    AverageGroup(reply, state)            the state after the average, once every member has brought its own
    StoreFullSync(reply, state, factor)   None
    RunBeside(io)                         None, once that part of the engine has ended; only to be begun
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hybridsync.interfaces.messages import GroupReply, GroupRequest, LeaseRequest, Push
from hybridsync.interfaces.phase import Phase

Units = tuple[int, ...]


@dataclass(slots=True)
class LeaseUnits:
    """Ask the chief for units."""

    request: LeaseRequest


def nothing_ahead() -> None:
    """Know of no next unit."""


@dataclass(slots=True)
class ComputeUnit:
    """Compute the contribution of one unit.

    Args:
      unit: number of the unit.
      parameters: parameters to compute it on; None takes those of this worker's replica.
      ahead: returns the unit that this worker will probably compute next, whose data may be read meanwhile; None where
        that is not known.
      together: whether each member of the phase computes one unit of this step now, so that one program may do it.
    """

    unit: int
    parameters: Any
    ahead: Callable[[], int | None] = nothing_ahead
    together: bool = False


Verb = Literal["pull", "push_pull", "push", "ready", "idle", "download_opt_state", "upload_opt_state"]


@dataclass(slots=True)
class CallServer:
    """Call the parameter server (see `hybridsync.worker.link.ServerLink`), one call at a time beside its pushes.

    Args:
      verb: one of the link's calls.
      push: push that names the caller and the units.
      body: the contribution of a push, or the optimizer state of an upload.
    """

    verb: Verb
    push: Push
    body: Any = None


@dataclass(slots=True)
class RunBeside:
    """Carry out the requests of another part of the engine, which goes on beside this one."""

    io: IO


@dataclass(slots=True)
class Start:
    """Begin a request, and go on."""

    request: LeaseUnits | CallServer | RunBeside


class Ticket(Protocol):
    """A request that was begun.

    Attributes:
      span: monotonic seconds of its begin and its end, once it is done.
    """

    span: tuple[float, float]

    def done(self) -> bool:
        """Return whether it has ended."""
        ...

    def peek(self) -> Any:
        """Return its reply; None while it is under way, and where it failed."""
        ...


@dataclass(slots=True)
class Join:
    """Wait for the end of what was begun."""

    ticket: Ticket


@dataclass(slots=True)
class EnterReplica:
    """Hold the starting state of a phase, and meet its other members where they have to be met."""

    phase: Phase


@dataclass(slots=True)
class SendPart:
    """Wait for what this worker's part in a collective takes on its way, where its link is emulated to be slow.

    Args:
      unit: unit that was computed last.
      what: content to send: "contribution", "parameters" or "state".
    """

    unit: int
    what: Literal["contribution", "parameters", "state"]


@dataclass(slots=True)
class AllReduce:
    """Sum the contributions of all members to a step.

    Args:
      contribution: contribution of this member.
      num_units: number of units in the contribution.
    """

    contribution: Any
    num_units: int


@dataclass(slots=True)
class AllGather:
    """Tell all members why units of this one are missing, and hear it of theirs (see `Communicator.gather`)."""

    reasons: tuple[str, ...]


@dataclass(slots=True)
class UpdateReplica:
    """Apply a step's total to this worker's replica (see `hybridsync.worker.replica.Replica.update`)."""

    step: int
    units: Units
    total: Any
    factor: float
    slots: Units
    dropped: Units


@dataclass(slots=True)
class CopyReplica:
    """Take a copy of the replica's state, which goes its own way from here."""


@dataclass(slots=True)
class UpdateOwn:
    """Apply the contribution of one unit to a worker's own copy of the state.

    Args:
      state: state before the update.
      unit: unit that was computed.
      contribution: contribution of the unit.
      factor: factor of the protocol on the schedule's learning rate.
    """

    state: Any
    unit: int
    contribution: Any
    factor: float


@dataclass(slots=True)
class JoinGroup:
    """Tell the chief what this worker has done since, and ask whom to average with."""

    request: GroupRequest


@dataclass(slots=True)
class AverageGroup:
    """Average this worker's copy of the state with those of the group's other members."""

    reply: GroupReply
    state: Any


@dataclass(slots=True)
class StoreFullSync:
    """Hold for others what a full synchronisation has made of everybody's copies (see `Replica.store_full_sync`)."""

    reply: GroupReply
    state: Any
    factor: float


Request = (
    LeaseUnits
    | ComputeUnit
    | CallServer
    | Start
    | Join
    | EnterReplica
    | SendPart
    | AllReduce
    | AllGather
    | UpdateReplica
    | CopyReplica
    | UpdateOwn
    | JoinGroup
    | AverageGroup
    | StoreFullSync
    | RunBeside
)
IO = Generator[Any, Any, Any]
"""An engine, or a part of one: yields requests, is sent their replies."""
