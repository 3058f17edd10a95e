"""Defines a synchronisation protocol: a worker program that yields effects, and a server rule. Neither does IO.

A *worker program* is a generator; it yields an effect and is sent the effect's result, an opaque handle the program
only passes on. A *server rule* is a state machine: a push arrives, out come actions. Drivers carry both out: threads in
one process, processes over gRPC, or a simulator in virtual time.

The effects of the list below are the whole vocabulary; an engine that meets any other effect fails at once. A revoked
phase is `PhaseRevoked`, thrown into the program at its next yield and not to be caught by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from hybridsync.protocols.group_generators import GroupRule
from hybridsync.protocols.modes import SyncMode

Handle = Any
"""A value that only the driver looks into: parameters, a gradient, a mean."""


class Version(NamedTuple):
    """Result of a Pull, a PushPull or a PushOnly: a parameters handle, whose progress a program may read.

    The progress is filled in where workers make local updates (`Protocol.local_updates`), and 0 elsewhere.

    Args:
      sequence: updates applied to these parameters, in the whole run.
      parameters: opaque handle that only the driver reads; None of a PushOnly, which brings none.
      units: units applied to them, in the whole run.
      own: units of this worker that are in them, of this phase.
      fastest: the most units of one worker that are in them, of this phase.
    """

    sequence: int
    parameters: Handle
    units: int = 0
    own: int = 0
    fastest: int = 0


class Outer(NamedTuple):
    """An update by an optimizer of the server's own: Nesterov's momentum on the mean contribution.

    Args:
      name: name of the momentum in the training state.
      rate: learning rate of this optimizer.
      momentum: coefficient of the momentum; 0 is plain descent.
    """

    name: str
    rate: float
    momentum: float


Change = Literal["optimizer", "add", "replace"] | Outer
"""How an update uses the mean of its contributions: it hands it to the run's optimizer, subtracts it, or `Outer`.

Under "replace" workers that make local updates push where they came to instead of the way there, and the update takes
that over: for one worker, whose parameters no other worker changes, the same without the rounding of a difference.
"""


# One of each is made for every unit: a frozen dataclass takes far longer to make, a tuple with names half as long
# again. They are never changed.

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """Ask for this worker's next work.

    Result: a tuple of units. It may be empty: under lock-step in a short step, in groups where all members are called
    to a full synchronisation. None when the phase is over.
    """

    count: int = 1


@dataclass(slots=True)
class Pull:
    """Fetch the server's current parameters. Result: a `Version`."""


@dataclass(slots=True)
class Compute:
    """Compute the gradient of `units` on `parameters` (None: this replica's own). Result: a gradient handle."""

    units: tuple[int, ...]
    parameters: Handle = None


@dataclass(slots=True)
class Average:
    """Average gradients with all members of the phase, each weighted by its units. Result: a mean handle."""

    gradient: Handle


@dataclass(slots=True)
class LocalUpdate:
    """Apply `mean`, or a gradient of its own, to this replica's own state. Result: None."""

    mean: Handle


@dataclass(slots=True)
class JoinRound:
    """Ask the group generator whom to average with, and wait until they are there. Result: a group handle.

    Args:
      last: this worker's work is done; it waits until all the others report the same.
    """

    last: bool = False


@dataclass(slots=True)
class AverageReplicas:
    """Average this replica with its group, and with those behind it up to the one that was asked for. Result: None."""

    group: Handle


@dataclass(slots=True)
class PushPull:
    """Push a gradient and wait for the server's release. Result: a `Version`, newest at the release."""

    gradient: Handle


@dataclass(slots=True)
class PushOnly:
    """Push a gradient and wait for the server's release, which brings no parameters. Result: a `Version` without them.

    Args:
      gradient: gradient of one unit or more.
      newest: the version that the program knew last, for replays: what the rate of its step was taken from.
    """

    gradient: Handle
    newest: Version


@dataclass(slots=True)
class Ready:
    """Wait until the server's rule grants the transfer of `gradient`, which is pushed next. Result: None."""

    gradient: Handle


@dataclass(slots=True)
class Received:
    """Say to the server's rule that `version` has arrived, so that the next transfer may begin. Result: None."""

    version: Version


@dataclass(slots=True)
class Step:
    """Let this worker's own optimizer make one update of `parameters`. Result: a parameters handle.

    Args:
      gradient: computed on `parameters`; of no unit, it changes nothing.
      parameters: parameters to step from.
      factor: factor on the learning rate, in addition to the protocol's own.
      alone: whether the schedule reads this worker's own progress, as if the others were as far, not the cluster's.
    """

    gradient: Handle
    parameters: Handle
    factor: float = 1.0
    alone: bool = False


@dataclass(slots=True)
class Difference:
    """Take the sum of the steps from `start` to `end` as a push. Result: a gradient handle of their units."""

    start: Handle
    end: Handle


@dataclass(slots=True)
class Combine:
    """Take differences off a version that holds none of them yet. Result: a parameters handle."""

    parameters: Handle
    differences: tuple[Handle, ...]


@dataclass(slots=True)
class Begin:
    """Begin a transfer, which goes on beside what follows. Result: a handle to await it by.

    One at a time in each direction: a pull may run at the same time as a push.
    """

    effect: Pull | PushOnly


@dataclass(slots=True)
class Await:
    """Wait for a transfer that was begun. Result: the transfer's own."""

    pending: Handle


Effect = (
    Lease
    | Pull
    | Compute
    | Average
    | LocalUpdate
    | PushPull
    | PushOnly
    | Ready
    | Received
    | Step
    | Difference
    | Combine
    | Begin
    | Await
    | JoinRound
    | AverageReplicas
)
Program = Generator[Effect, Handle, None]


# --- server rule -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrival:
    """A push as the rule sees it.

    Args:
      push_id: names the push in actions; unique in the phase.
      worker: id of the worker that pushed.
      units: units of the push.
      staleness: updates applied since the parameters it was computed on.
      at: time of its arrival, in seconds of the server's clock.
    """

    push_id: int
    worker: int
    units: tuple[int, ...]
    staleness: int
    at: float = 0.0


@dataclass(slots=True)
class Apply:
    """Run one optimizer update on the mean of `pushes`, at `lr_factor` times the schedule's learning rate.

    Args:
      pushes: ids of the pushes, in the order of their sum.
      lr_factor: factor on the schedule's learning rate.
      weights: factor on each push's gradient in the sum, which is divided by the units all the same; () is 1 each.
    """

    pushes: tuple[int, ...]
    lr_factor: float
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Compensation:
    """Makes up for the staleness of a gradient g before a server applies it.

        g + strength * g * g * (w_now - w_base);  adaptive: strength / sqrt(mean of g * g so far)

    Args:
      strength: strength of the compensation, lambda.
      adaptive: whether it is divided by the root of the moving mean of squares, per entry.
    """

    strength: float
    adaptive: bool = False


@dataclass(slots=True)
class Drop:
    """Drop `push` for good; its units are final and the ledger issues fresh ones."""

    push: int
    reason: str


@dataclass(slots=True)
class Release:
    """Answer `push` now, with the parameters as they are after the actions before this one."""

    push: int


@dataclass(slots=True)
class Grant:
    """Let `worker`, which is ready, transfer its gradient now."""

    worker: int


Action = Apply | Drop | Release | Grant


class ServerRule(ABC):
    """Decides what the primary does with each push; holds the protocol's state, does no IO.

    A push that no action has named yet is held: it counts as outstanding.

    Attributes:
      at_once: the rate at which every push is applied by itself when it comes, and answered; its `on_push` never
        returns anything else, and asking it changes nothing, so that the caller need not ask. None: it has to be asked.
    """

    at_once: float | None = None

    @abstractmethod
    def on_push(self, arrival: Arrival) -> list[Action]:
        """Return the actions to carry out, in order, now that `arrival` is here."""

    def on_ready(self, worker: int, at: float) -> list[Action]:
        """Return the actions to carry out now, at `at`, that `worker` waits to be granted its next push."""
        return [Grant(worker)]

    def on_received(self, worker: int, at: float) -> list[Action]:
        """Return the actions to carry out now, at `at`, that the parameters of its answer are at `worker`."""
        return []

    def on_join(self, worker: int) -> list[Action]:
        """Return the actions to carry out now that `worker` takes part: the first call of a process of it is here.

        Every member is expected from the start; `on_leave` is called for one that is absent. Called again where a push
        of `worker` came to nothing before `on_push` could hear of it: it is not finite, or its units are settled.
        """
        return []

    def on_leave(self, worker: int) -> list[Action]:
        """Return the actions to carry out now that `worker` is gone; its held pushes may no longer be named."""
        return []

    def on_idle(self, worker: int) -> list[Action]:
        """Return the actions to carry out now that `worker` has nothing to compute: nobody is to wait for it.

        It may be given units again; its next push ends its idleness.
        """
        return []

    def on_last(self) -> list[Action]:
        """Return the actions to carry out now that no push can come but those that are here: let go of all of them.

        Asked again after those actions, until it returns none.
        """
        return []


# --- protocol ----------------------------------------------------------------------------------------------------


FLOAT32, BFLOAT16 = "float32", "bfloat16"
"""Number formats of gradients and parameters on their way between workers and servers (see `training/wire.py`)."""


class Protocol(ABC):
    """A synchronisation protocol.

    Subclasses are frozen dataclasses: their fields are the arguments a plan may give, with their defaults.
    """

    name: ClassVar[str]
    mode: ClassVar[SyncMode]
    awaits_workers: ClassVar[bool] = False
    """Whether its rule may make a worker wait for others; if so, it is told who is idle, and who is absent from the
    start."""
    local_updates: ClassVar[bool] = False
    """Whether workers make local updates, each with an optimizer state of its own (SERVER mode)."""

    def change(self, num_workers: int) -> Change:
        """Return what an update does with its contributions in a phase with `num_workers` members."""
        return "optimizer"

    @abstractmethod
    def worker_program(self, num_workers: int) -> Program:
        """Return a fresh program for one worker of a phase with `num_workers` members."""

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        """Return a fresh rule for a phase with `members`.

        Raises:
          ConfigError: the arguments cannot work with these members (a rule that could deadlock).
        """
        raise AssertionError(f"{self.name} has no server rule: its mode is {self.mode.name}")

    def group_rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        """Return a fresh group generator for a phase with `members`.

        Args:
          members: worker ids.
          seed: random seed of its draws; every phase has another.

        Raises:
          ConfigError: the arguments cannot work with these members.
        """
        raise AssertionError(f"{self.name} has no group rule: its mode is {self.mode.name}")

    @abstractmethod
    def units_per_update(self, num_workers: int) -> int:
        """Return how many units one full update applies."""

    @abstractmethod
    def lr_factor(self, num_units: int, num_workers: int) -> float:
        """Return the factor on the schedule's learning rate of an update with `num_units` units."""

    @property
    def units_between_rounds(self) -> int:
        """Return the number of units that a worker of a group phase computes between two of its group rounds."""
        return 1

    @property
    def serves_averages(self) -> bool:
        """Whether a worker of a group phase takes part in averages that others ask for while it computes."""
        return False

    @property
    def wire_dtype(self) -> str:
        """Return the number format of gradients and parameters on their way between workers and servers."""
        return FLOAT32

    @property
    def compensated(self) -> Compensation | None:
        """Compensation that the servers make for staleness; None for none."""
        return None

    def num_answered_early(self, num_workers: int) -> int:
        """Return how many pushes its rule may go on holding that it has answered."""
        return 0

    def staleness_bound(self, num_workers: int) -> int | None:
        """Return how many updates may lie between a gradient's parameters and its update; None is any number."""
        return None
