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
from typing import Any, ClassVar, NamedTuple

from hybridsync.protocols.groups import GroupRule

Handle = Any
"""A value that only the driver looks into: parameters, a gradient, a mean."""


class Path(Enum):
    """How a protocol's gradients travel."""

    SYNC = "sync"
    SERVER = "server"
    GROUP = "group"

    @property
    def is_served(self) -> bool:
        """Whether servers hold the state; else its workers do, and none of them may be lost."""
        return self is Path.SERVER


# One of each is made for every unit, so they are tuples: a frozen dataclass takes five times as long to make.

# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lease:
    """Ask for this worker's next work.

    Result: a tuple of units. It may be empty: under lock-step in a short step, in groups where everybody is called to
    a full synchronisation. None when the phase is over.
    """

    count: int = 1


class Pull(NamedTuple):
    """Fetch the server's current parameters. Result: a parameters handle."""


class Compute(NamedTuple):
    """Compute the gradient of `units` on `parameters` (None: this replica's own). Result: a gradient handle."""

    units: tuple[int, ...]
    parameters: Handle = None


class Average(NamedTuple):
    """Average gradients with all members of the phase, each weighted by its units. Result: a mean handle."""

    gradient: Handle


class LocalUpdate(NamedTuple):
    """Apply `mean`, or a gradient of its own, to this replica's own state. Result: None."""

    mean: Handle


class Meet(NamedTuple):
    """Ask the group generator whom to average with, and wait until they are there. Result: a group handle.

    Args:
      last: this worker's work is done; it waits for all the others to say so.
    """

    last: bool = False


class Mix(NamedTuple):
    """Average this replica's parameters with those of the group's other members. Result: None."""

    group: Handle


class PushPull(NamedTuple):
    """Push a gradient and wait for the server's release. Result: a parameters handle, newest at the release."""

    gradient: Handle


Effect = Lease | Pull | Compute | Average | LocalUpdate | PushPull | Meet | Mix
Program = Generator[Effect, Handle, None]


# --- server rule -------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
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


class Apply(NamedTuple):
    """Run one optimizer update on the mean of `pushes`, at `rate` times the schedule's learning rate."""

    pushes: tuple[int, ...]
    rate: float


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

    def group_rule(self, members: tuple[int, ...], seed: int) -> GroupRule:
        """Return a fresh group generator for a phase with `members`.

        Args:
          members: worker ids.
          seed: of its draws; every phase has another.

        Raises:
          ConfigError: the arguments cannot work with these members.
        """
        raise AssertionError(f"{self.name} has no group rule: its path is {self.path.value}")

    @abstractmethod
    def units_per_update(self, num_workers: int) -> int:
        """Return how many units one full update applies."""

    @abstractmethod
    def rate(self, num_units: int, num_workers: int) -> float:
        """Return the factor on the schedule's learning rate of an update with `num_units` units."""

    def staleness_bound(self, num_workers: int) -> int | None:
        """Return how many updates may lie between a gradient's parameters and its update; None is any number."""
        return None
