"""Commands of a run's user to its chief, and what the chief answers: plain values, as in `messages.py`.

The chief alone decides. A command is checked first, and one that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ENDS = ("completed", "stopped")
"""Values of `exit` with which a run is over for good."""

PENDING = -1
"""The stage of an order that no phase has been entered for yet."""


@dataclass(frozen=True)
class SwitchRequest:
    """A user asks for another protocol now.

    A repeat changes nothing: the protocol that it asks for is ordered already. An order of the current protocol counts
    as well: it disables the policy and the trigger for the rest of the stage.

    Args:
      spec: protocol, as written in a plan, without a share.
      reason: reason, in the user's words, for the event log.
    """

    spec: str
    reason: str = ""


@dataclass(frozen=True)
class SwitchReply:
    """An accepted switch: what was ordered is durable.

    Args:
      spec: protocol that was ordered; it may contain how it scales the learning rate, which the request did not.
      before: protocol of the current phase.
      phase: number of that phase.
      units: units applied so far.
      changes: whether another protocol is to be entered; False if `spec` is the current one.
    """

    spec: str
    before: str
    phase: int
    units: int
    changes: bool


@dataclass(frozen=True)
class StopRequest:
    """A user asks the run to save its state and stop; a repeat asks for what is under way.

    Args:
      reason: reason, in the user's words, for the event log.
    """

    reason: str = ""


@dataclass(frozen=True)
class StopReply:
    """The run is going to save and stop; `units` are applied so far."""

    units: int


@dataclass(frozen=True)
class Order:
    """A protocol that takes the place of the plan's for the rest of a stage.

    Args:
      number: counts the orders of a run, from 1.
      spec: protocol, as a phase names it.
      units: units applied when the order was given.
      reason: reason, in the user's words.
      stage: stage of the plan, from 0, that the order is for; `PENDING` until a phase is entered for it.
    """

    number: int
    spec: str
    units: int
    reason: str = ""
    stage: int = PENDING


def highest(orders: Iterable[Order], known: int = 0) -> int:
    """Return the highest number of some orders, `known` at least: a number is given once, though its order is gone."""
    return max([known, *(order.number for order in orders)])


@dataclass(frozen=True)
class Figure:
    """A measured number under its name; finite."""

    name: str
    value: float


@dataclass(frozen=True)
class Evaluation:
    """Holds what the task measured of the state at `units`."""

    units: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class MemberStatus:
    """A place of a run, and who has it.

    Args:
      role: "worker" or "server".
      id: number of the place.
      state: "training", "waiting", "left out", "starting" (lost, or being started), "quarantined" or "gone".
      units_per_sec: units per second of a worker by itself; 0 if unknown.
      restarts: processes that took another's place.
      pid: process id; 0 for a thread, or if there is no process.
      is_slow: whether it is held to be a straggler.
      sent_bytes, received_bytes: bytes of gradients and states, by a worker of this run so far.
      host: host on which a worker runs, or ran last in this session; "" for a run on one host.
    """

    role: str
    id: int
    state: str
    units_per_sec: float = 0.0
    restarts: int = 0
    pid: int = 0
    is_slow: bool = False
    sent_bytes: int = 0
    received_bytes: int = 0
    host: str = ""


@dataclass(frozen=True)
class HostUnits:
    """Units of the run that were applied while `worker` had them on `host`."""

    host: str
    worker: int
    units: int


@dataclass(frozen=True)
class StatusReply:
    """Describes the current state of a run.

    Args:
      exit: how the run ended: "completed", "stopped", "preempted", "restarting" or "failed"; "" while it continues.
      phase: number of the newest phase; 0 before the first.
      protocol: protocol of that phase.
      reason: reason for which the phase was entered.
      end_units: applied units at which it ends.
      ordered: protocol that a user has ordered and that is not entered yet; "" for none.
      is_stopping: whether the run was asked to save and stop.
      workload, issued, applied, dropped, outstanding, rolled_back: units, as in summary.json.
      seconds: duration of the run in seconds, from its first unit leased, pauses between its sessions left out.
      num_switches: number of switches with a known cost.
      stall_secs: total cost of these switches in seconds.
      restarts: processes that took another's place, of all roles.
      checkpoint_units: units applied in the newest checkpoint that this run has written; -1 for none.
      checkpoint_age_secs: seconds since that checkpoint.
      checkpoint_bytes: size of all checkpoints that the run has written, in bytes.
      figures: newest ones: units_per_sec, loss, learning_rate, staleness_mean, staleness_p95, staleness_max.
      evaluations: the newest, the last one last.
      members: servers, then workers.
      hosts: applied units of each host and worker. Empty for a run on one host.
    """

    exit: str
    phase: int
    protocol: str
    reason: str
    end_units: int
    ordered: str
    is_stopping: bool
    workload: int
    issued: int
    applied: int
    dropped: int
    outstanding: int
    rolled_back: int
    seconds: float
    num_switches: int
    stall_secs: float
    restarts: int
    checkpoint_units: int
    checkpoint_age_secs: float
    checkpoint_bytes: int
    figures: tuple[Figure, ...]
    evaluations: tuple[Evaluation, ...]
    members: tuple[MemberStatus, ...]
    hosts: tuple[HostUnits, ...] = ()

    def figure(self, name: str) -> float | None:
        """Return a figure by its name; None where it was not measured."""
        return next((figure.value for figure in self.figures if figure.name == name), None)
