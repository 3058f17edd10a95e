"""What a synchronisation protocol is: a worker program that yields effects, and a server rule. Neither does IO.

A *worker program* is a generator; what it yields is an effect, what comes back is the effect's result, an opaque
handle the program only passes on. A *server rule* is a state machine: a push arrives, out come actions. Drivers
carry both out: threads in one process, processes over gRPC, or a simulator in virtual time.

The effects of the list below are the whole vocabulary; an engine that meets another one fails at once. A revoked
phase is `PhaseRevoked`, thrown into the program at its next yield and not to be caught by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple

Handle = Any
"""A value that only the driver looks into: parameters, a gradient, a mean."""


class Version(NamedTuple):
    """What a Pull or a PushPull results in: a parameters handle, whose progress a program may read.

    The progress is told where workers step by themselves (`Protocol.local`), and 0 elsewhere.

    Args:
      sequence: updates applied to these parameters, in the whole run.
      parameters: for the driver alone.
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
      name: under which the momentum is kept in the training state.
      rate: its learning rate.
      momentum: its coefficient; 0 is plain descent.
    """

    name: str
    rate: float
    momentum: float


Change = Literal["optimizer", "add", "replace"] | Outer
"""What an update does with the mean of its contributions: hands it to the run's optimizer, subtracts it, or `Outer`.

Under "replace" workers that step by themselves push where they came to instead of the way there, and the update takes
that over: for one worker, whose parameters nobody else changes, the same without the rounding of a difference.
"""


class Path(Enum):
    """How a protocol's gradients travel."""

    SYNC = "sync"
    SERVER = "server"


# One of each is made for every unit, so they are tuples: a frozen dataclass takes five times as long to make.

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """Ask for this worker's next work.

    Result: a tuple of units; under lock-step it may be empty (idle in a short step). None when the phase is over.
    """

    count: int = 1


class Pull(NamedTuple):
    """Fetch the server's current parameters. Result: a `Version`."""


class Compute(NamedTuple):
    """Compute the gradient of `units` on `parameters` (None: this replica's own). Result: a gradient handle."""

    units: tuple[int, ...]
    parameters: Handle = None


class Average(NamedTuple):
    """Average gradients with all members of the phase, each weighted by its units. Result: a mean handle."""

    gradient: Handle


class LocalUpdate(NamedTuple):
    """Apply `mean` to this replica's own state. Result: None."""

    mean: Handle


class PushPull(NamedTuple):
    """Push a gradient and wait for the server's release. Result: a `Version`, newest at the release."""

    gradient: Handle


class Step(NamedTuple):
    """Let this worker's own optimizer make one update of `parameters`. Result: a parameters handle.

    Args:
      gradient: computed on `parameters`; of no unit, it changes nothing.
      parameters: what is stepped from.
      factor: on the learning rate, beside the protocol's own.
      alone: whether the schedule reads this worker's own progress, as if the others were as far, not the cluster's.
    """

    gradient: Handle
    parameters: Handle
    factor: float = 1.0
    alone: bool = False


class Difference(NamedTuple):
    """What the steps from `start` to `end` have taken off the parameters. Result: a gradient handle of their units."""

    start: Handle
    end: Handle


class Combine(NamedTuple):
    """Take a difference off a version that does not hold it yet. Result: a parameters handle."""

    parameters: Handle
    difference: Handle


class Begin(NamedTuple):
    """Begin a transfer, which goes on beside what follows; one at a time. Result: a handle to await it by."""

    effect: Pull | PushPull


class Await(NamedTuple):
    """Wait for a transfer that was begun. Result: the transfer's own."""

    pending: Handle


Effect = (
    Lease | Pull | Compute | Average | LocalUpdate | PushPull | Step | Difference | Combine | Begin | Await
)
Program = Generator[Effect, Handle, None]


# --- server rule -------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """A push as the rule sees it.

    Args:
      push_id: names the push in actions; unique in the phase.
      worker: who pushed.
      units: what it offers.
      staleness: updates applied since the parameters it was computed on.
      at: when it came, in seconds of the server's clock.
    """

    push_id: int
    worker: int
    units: tuple[int, ...]
    staleness: int
    at: float = 0.0


class Apply(NamedTuple):
    """Run one optimizer update on the mean of `pushes`, at `rate` times the schedule's learning rate.

    Args:
      pushes: in the order of their sum.
      rate: factor on the schedule's learning rate.
      weights: factor on each push's gradient in the sum, which is divided by the units all the same; () is 1 each.
    """

    pushes: tuple[int, ...]
    rate: float
    weights: tuple[float, ...] = ()


class Drop(NamedTuple):
    """Drop `push` for good; its units are final and the ledger issues fresh ones."""

    push: int
    reason: str


class Release(NamedTuple):
    """Answer `push` now, with the parameters as they are after the actions before this one."""

    push: int


Action = Apply | Drop | Release


class ServerRule(ABC):
    """Decides what the primary does with each push; holds the protocol's state, does no IO.

    A push that no action has named yet is held: it counts as outstanding.
    """

    @abstractmethod
    def on_push(self, arrival: Arrival) -> list[Action]:
        """Return the actions to carry out, in order, now that `arrival` is here."""

    def on_join(self, worker: int) -> list[Action]:
        """Return the actions to carry out now that `worker` takes part: the first call of a process of it is here.

        Every member is expected from the start; one that is not there is said to leave.
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


class Protocol(ABC):
    """A synchronisation protocol.

    Subclasses are frozen dataclasses: their fields are the arguments a plan may give, with their defaults.
    """

    name: ClassVar[str]
    path: ClassVar[Path]
    awaits_workers: ClassVar[bool] = False
    """Whether its rule lets a worker wait for others: then it hears who is idle, and who is absent from the start."""
    answers_early: ClassVar[bool] = False
    """Whether its rule answers pushes that it goes on holding."""
    local: ClassVar[bool] = False
    """Whether workers step by themselves, each with an optimizer state of its own (SERVER path)."""

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
        raise AssertionError(f"{self.name} has no server rule: its path is {self.path.value}")

    @abstractmethod
    def units_per_update(self, num_workers: int) -> int:
        """Return how many units one full update applies."""

    @abstractmethod
    def rate(self, num_units: int, num_workers: int) -> float:
        """Return the factor on the schedule's learning rate of an update with `num_units` units."""

    def staleness_bound(self, num_workers: int) -> int | None:
        """Return how many updates may lie between a gradient's parameters and its update; None is any number."""
        return None
