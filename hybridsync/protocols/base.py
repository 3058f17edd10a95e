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
from typing import Any, ClassVar

Handle = Any
"""A value that only the driver looks into: parameters, a gradient, a mean."""


class Path(Enum):
    """How a protocol's gradients travel."""

    SYNC = "sync"
    SERVER = "server"


# One of each is made for every unit: a frozen dataclass takes far longer to make, a tuple with names half as long
# again. Nobody changes them.

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """Ask for this worker's next work.

    Result: a tuple of units; under lock-step it may be empty (idle in a short step). None when the phase is over.
    """

    count: int = 1


@dataclass(slots=True)
class Pull:
    """Fetch the server's current parameters. Result: a parameters handle."""


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
    """Apply `mean` to this replica's own state. Result: None."""

    mean: Handle


@dataclass(slots=True)
class PushPull:
    """Push a gradient and wait for the server's release. Result: a parameters handle, newest at the release."""

    gradient: Handle


Effect = Lease | Pull | Compute | Average | LocalUpdate | PushPull
Program = Generator[Effect, Handle, None]


# --- server rule -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrival:
    """A push as the rule sees it.

    Args:
      push_id: names the push in actions; unique in the phase.
      worker: who pushed.
      units: what it offers.
      staleness: updates applied since the parameters it was computed on.
    """

    push_id: int
    worker: int
    units: tuple[int, ...]
    staleness: int


@dataclass(slots=True)
class Apply:
    """Run one optimizer update on the mean of `pushes`, at `rate` times the schedule's learning rate."""

    pushes: tuple[int, ...]
    rate: float


@dataclass(slots=True)
class Drop:
    """Drop `push` for good; its units are final and the ledger issues fresh ones."""

    push: int
    reason: str


@dataclass(slots=True)
class Release:
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
        """Return the actions to carry out now that `worker` takes part."""
        return []

    def on_leave(self, worker: int) -> list[Action]:
        """Return the actions to carry out now that `worker` is gone; its held pushes may no longer be named."""
        return []


# --- protocol ----------------------------------------------------------------------------------------------------


class Protocol(ABC):
    """A synchronisation protocol.

    Subclasses are frozen dataclasses: their fields are the arguments a plan may give, with their defaults.
    """

    name: ClassVar[str]
    path: ClassVar[Path]

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
