"""Messages of roles to each other: plain values, the same in one process and over gRPC (`hybridsync.proto`).

Every mutating message carries the phase and the incarnation of the sender; the receiver refuses older ones by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.interfaces.phase import Phase

MOST_CHARS, MOST_REASON_CHARS = 256, 4000
"""Characters that a name in a message may have, and those of a text that says why."""


@dataclass(frozen=True)
class RoleState:
    """Tells a restarted chief, which hears of a role for the first time, what that role is in the middle of.

    Args:
      phase: phase that the role takes part in.
      open: whether it still does: a server takes pushes, a worker has not come back.
      stream: units leased to it in this phase so far, in order (workers).
      completed: number of these units that are done (workers).
    """

    phase: Phase
    open: bool
    stream: tuple[Range, ...] = ()
    completed: int = 0


Process = tuple[str, int, int, int]
"""Tells a process from all others of a run: role, number, restart count, process id. Hosts have the same process ids,
and each start of a run counts restarts from 0."""


@dataclass(frozen=True)
class Hello:
    """A role's first words to a chief.

    Args:
      role: "server" or "worker".
      id: number of the role, from 0.
      pid: process id; 0 for a thread.
      host: host name, for the event log.
      address: address at which the role serves its own state.
      schema: `Layout.schema_hash` of the training state it was built for.
      version: version of the package.
      restart_count: number of processes that had this place before; makes the incarnation.
      role_state: state of the role in its phase; None in its own first message.
      process_group: address of the process group that a worker has joined; "" if absent. Only workers of one group can
        form a mesh.
      devices: accelerators that a worker computes on, by names that are one device's alone on its host.
      frozen: digest of each leaf of a worker's model that is not trained, in the order of their paths.
    """

    role: str
    id: int
    pid: int
    host: str
    address: str
    schema: str
    version: str
    restart_count: int = 0
    role_state: RoleState | None = None
    process_group: str = ""
    devices: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def process(self) -> Process:
        """Return the process that says this."""
        return self.role, self.id, self.restart_count, self.pid


@dataclass(frozen=True)
class Welcome:
    """The chief's answer: the role's incarnation (unique per process start) and the beat it has to keep."""

    incarnation: int
    heartbeat_secs: float
    lease_secs: float


@dataclass(frozen=True)
class StateVersion:
    """A state that a role holds in memory.

    Args:
      phase_id: phase in which it was reached.
      units: units applied to it in the whole run.
      sequence: updates applied to it in the whole run.
      fingerprint: fingerprint of the whole training state.
    """

    phase_id: PhaseId
    units: int
    sequence: int
    fingerprint: str

    def is_before(self, other: StateVersion) -> bool:
        """Return whether the run went on to `other` later; the phase decides, as a rollback sets units back."""
        return (self.phase_id.number, self.sequence) < (other.phase_id.number, other.sequence)


@dataclass(frozen=True)
class Snapshot:
    """A consistent copy of the training state that its holder keeps until the next snapshot.

    Args:
      snapshot_id: names the copy in `read`.
      held: phase, units, sequence, fingerprint.
      applied: all units ever applied to it.
      dropped: all units ever finally dropped.
      num_bytes: size of the canonical buffer (`Layout.nbytes`).
      first_applied: monotonic seconds of the phase's first update; 0 before it.
      last_applied: monotonic seconds of the phase's last update; 0 before the first.
    """

    snapshot_id: int
    held: StateVersion
    applied: tuple[Range, ...]
    dropped: tuple[Range, ...]
    num_bytes: int
    first_applied: float
    last_applied: float


@dataclass(frozen=True)
class EvaluationRequest:
    """Names a captured state that is to be measured.

    Args:
      source: address of the role that keeps it.
      snapshot_id: number of the snapshot.
      fingerprint: fingerprint of the snapshot.
    """

    source: str
    snapshot_id: int
    fingerprint: str


@dataclass(frozen=True)
class PhaseRequest:
    """A worker asks for the phase after `after`.

    Args:
      held: the state it brings along, if any.
      failure: reason why it left that phase before its end; "" if it did not.
      rest_secs: seconds for which the worker must not be asked to measure itself, if it is left out; 0 for no such
        time.
    """

    worker: int
    incarnation: int
    after: PhaseId
    held: StateVersion | None
    failure: str = ""
    rest_secs: float = 0.0


@dataclass(frozen=True)
class PhaseReply:
    """Names the `phase` to enter, or a unit to measure (`probe` >= 0), or says the run is `done`; or: ask again."""

    phase: Phase | None
    done: bool = False
    probe: int = -1


@dataclass(frozen=True)
class LeaseRequest:
    """A worker asks for units behind the `known` ones it has received in this phase.

    Repeating the request is harmless: the answer is a pure extension of what the chief has already given.

    Args:
      known: units received so far in this phase (the mesh's common stream under lock-step).
      completed: number of these units that are done.
      at_once: whether to answer though there is nothing to give, instead of waiting for it.
      wanted: units that the worker takes at a time.
    """

    worker: int
    incarnation: int
    phase_id: PhaseId
    known: int
    completed: int
    at_once: bool = False
    wanted: int = 1


@dataclass(frozen=True)
class LeaseReply:
    """Units to append to the stream; `final` when none will follow.

    Args:
      join_group: all members are called to a full synchronisation, which comes before these units.
    """

    ranges: tuple[Range, ...]
    final: bool
    join_group: bool = False


class AppliedUnit(NamedTuple):
    """A unit that a worker applied to its own replica; `base` is the group round that it was computed behind."""

    unit: int
    base: int


@dataclass(frozen=True)
class GroupRequest:
    """A worker has come to a group round, and asks whom to average with; or it is there for others while it computes.

    Args:
      number: number of the worker's group rounds in this phase; the same number asks for the same answer again.
      serves: counts the groups of others that the worker serves before this group round; 0 where it has come itself.
      applied: units applied to its replica since its last group round.
      dropped: (unit, reason) finally dropped since then.
      last: it has no work any more.
      logs: whether the worker wants to receive every update at a full synchronisation.
      average_secs: duration of its last average in seconds; 0 before the first.
    """

    worker: int
    incarnation: int
    phase_id: PhaseId
    number: int
    applied: tuple[AppliedUnit, ...] = ()
    dropped: tuple[tuple[int, str], ...] = ()
    last: bool = False
    logs: bool = False
    average_secs: float = 0.0
    serves: int = 0


@dataclass(frozen=True)
class GroupUpdate:
    """Records a group round: its members' own updates since their last ones, then an average.

    Args:
      sequence: number of the group round.
      units: units applied by the members in `slots`, computed after the group rounds in `bases`.
      slots: positions in the phase.
      group: positions of all members, in the order of their sum.
      optimizer: whether the optimizer's state was averaged too.
    """

    sequence: int
    units: tuple[int, ...]
    slots: tuple[int, ...]
    bases: tuple[int, ...]
    group: tuple[int, ...]
    optimizer: bool


@dataclass(frozen=True)
class GroupReply:
    """Names the group to average with.

    Args:
      members: all of the group, in the order of their sum; one alone does not average. () while it has to wait.
      missing: members that the group waits for.
      sequence: counts the group rounds of the run, in the order in which they began.
      units: units applied in the whole run by the members of the groups up to this one; a member that still waits does
        not count.
      optimizer: whether the optimizer's state is averaged too.
      is_full_sync: whether all members are in it, and all replicas become one state.
      applied, dropped: units of that state; only of a full synchronisation.
      updates: group rounds since the last full synchronisation, this one included; only in a reply to such a
        synchronisation, and if the worker wants them.
      again: the worker comes back at once: the group that it asked for comes after this one.
      over: the worker serves no further group, because it has come to its own group round.
    """

    members: tuple[int, ...]
    missing: tuple[int, ...] = ()
    sequence: int = 0
    units: int = 0
    optimizer: bool = False
    is_full_sync: bool = False
    applied: tuple[Range, ...] = ()
    dropped: tuple[Range, ...] = ()
    updates: tuple[GroupUpdate, ...] = ()
    again: bool = False
    over: bool = False


class Push(NamedTuple):
    """A set of units offered to the server, all or nothing; the payload is the contribution buffer.

    Args:
      units: the units whose mean gradient is offered.
      base: sequence of the parameters that the gradient was computed on; where a server other than the primary is
        asked for parameters, the sequence that is wanted.
      non_finite: the first entry of the contribution that is not a finite number, as another server than the primary
        named it to the worker; "" where it named none.
      restart_count: number of times that the worker's program was begun anew in this phase, for replays.
      newest: sequence of the newest version that the worker's program knew, where that made its rate, for replays; 0
        elsewhere.
      push_only: no parameters are to come with the reply: the worker pulls them in the background.
    """

    phase_id: PhaseId
    worker: int
    incarnation: int
    units: tuple[int, ...]
    base: int
    non_finite: str = ""
    restart_count: int = 0
    newest: int = 0
    push_only: bool = False


class PushInUpdate(NamedTuple):
    """One push in an update: its units, the sequence of its parameters, and the weight of its gradient in the sum."""

    units: tuple[int, ...]
    base: int
    weight: float = 1.0


@dataclass(frozen=True)
class Update:
    """One update that the primary decided, for the other servers to apply in the order of `sequence`.

    Args:
      sequence: sequence of the parameters after the update.
      pushes: pushes of the update, in the order of their sum.
      rate: the protocol's factor on the schedule's learning rate.
      wanted: sequences before this one whose parameters a worker may still ask for.
      weights: factor on each push's gradient in the sum; () is 1 each.
    """

    sequence: int
    pushes: tuple[Push, ...]
    rate: float
    wanted: tuple[int, ...]
    weights: tuple[float, ...] = ()


NON_FINITE = "non_finite"
"""Prefix of the drop reason of a contribution with an infinite or NaN entry."""


class PushReply(NamedTuple):
    """Answers a push: whether it was applied, dropped, or known already.

    Args:
      sequence: sequence of the newest parameters, which come with the reply to a pull, or to a push computed on older
        ones that asks for them.
      duplicate: the units had already been applied or dropped; nothing was done now.
      dropped: reason, when the units were finally dropped; "" otherwise.
      units, own, fastest: progress of those parameters (see `protocols.base.Version`); 0 if no caller asks for it.
      settled: units of a duplicate that had been applied or dropped; the others are still undecided.
    """

    sequence: int
    duplicate: bool = False
    dropped: str = ""
    units: int = 0
    own: int = 0
    fastest: int = 0
    settled: tuple[int, ...] = ()

    def brings_parameters(self, push: Push) -> bool:
        """Return whether parameters come with the reply: not those that `push` was computed on, which it has."""
        return self.sequence != push.base and not push.push_only


STARTED_FIRST = "start"
"""The reason of a process that takes nobody's place."""


@dataclass(frozen=True)
class RoleEvent:
    """A supervisor tells of a process it started or lost.

    Args:
      unit: unit that a lost worker was computing; -1 for none.
      quarantined: no process takes the place of this worker in this session of the run.
      restart_count: number of processes that had this place before.
      is_refusal: the process has met a mistake of the run's user, which ends the run.
    """

    role: str
    id: int
    pid: int
    reason: str
    wall: float
    unit: int = -1
    quarantined: bool = False
    restart_count: int = 0
    is_refusal: bool = False

    @property
    def process(self) -> Process:
        """Return the process that it tells of."""
        return self.role, self.id, self.restart_count, self.pid
