"""What the protocols of the SERVER path have in common: the worker's program, and who a rule has to wait for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.protocols.base import (
    Action,
    Arrival,
    Compute,
    Drop,
    Lease,
    Path,
    Program,
    Protocol,
    Pull,
    PushPull,
    Release,
    ServerRule,
)

TOO_STALE = "stale"
"""How the reason begins for which a push is dropped that was computed on parameters of too long ago."""


@dataclass(frozen=True)
class ServerProtocol(Protocol):
    """A protocol whose workers push gradients to the parameter server, one unit each, and get parameters back."""

    path: ClassVar[Path] = Path.SERVER

    def worker_program(self, num_workers: int) -> Program:
        parameters, lease = (yield Pull()), Lease()
        while (units := (yield lease)) is not None:
            gradient = yield Compute(units, parameters)
            parameters = yield PushPull(gradient)

    @abstractmethod
    def rule(self, members: tuple[int, ...]) -> ServerRule:
        """Return a fresh rule for a phase with `members`, before anything judges the staleness of its pushes.

        Raises:
          ConfigError: the arguments cannot work with these members (a rule that could deadlock).
        """

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        rule, bound = self.rule(members), self.staleness_bound(len(members))
        return rule if bound is None else Bounded(rule, bound)


class Bounded(ServerRule):
    """Keeps a protocol's promise: a push beyond its bound is dropped, and its worker goes on from what is new.

    The rule itself keeps the bound among workers that it waits for. One that came back from idleness, was given up or
    taken for gone had nobody wait for it.

    Args:
      rule: that is asked about all other pushes.
      bound: updates that may lie between a gradient's parameters and its update.
    """

    def __init__(self, rule: ServerRule, bound: int) -> None:
        self._rule, self._bound = rule, bound
        self.on_join, self.on_leave = rule.on_join, rule.on_leave
        self.on_idle, self.on_last = rule.on_idle, rule.on_last

    def on_push(self, arrival: Arrival) -> list[Action]:
        if arrival.staleness <= self._bound:
            return self._rule.on_push(arrival)
        reason = f"{TOO_STALE}: {arrival.staleness} updates old, at most {self._bound} are allowed"
        return [Drop(arrival.push_id, reason), Release(arrival.push_id), *self._rule.on_join(arrival.worker)]


class WaitingRule(ServerRule):
    """A rule under which pushes wait for other workers: it knows who is present, and who has something to do.

    A subclass takes pushes and forgets workers; after each change `settle` says what may go on now.

    Args:
      members: everybody of the phase; all are expected from the start.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._present = dict.fromkeys(members)
        self._idle: dict[int, None] = {}

    @property
    def awaited(self) -> list[int]:
        """Workers from whom a push is to be expected, ascending."""
        return sorted(worker for worker in self._present if worker not in self._idle)

    @abstractmethod
    def take(self, arrival: Arrival) -> list[Action]:
        """Return what to do with a push by itself; its worker is present and busy."""

    @abstractmethod
    def settle(self) -> list[Action]:
        """Return what may go on, given who is awaited now."""

    def begin(self, worker: int) -> None:
        """Note that `worker` takes part, for the first time or again after it was gone or idle."""

    def forget(self, worker: int) -> None:
        """Forget what is held of a worker that is gone."""

    def on_push(self, arrival: Arrival) -> list[Action]:
        self._enter(arrival.worker)
        return [*self.take(arrival), *self.settle()]

    def on_join(self, worker: int) -> list[Action]:
        self._enter(worker)
        return self.settle()

    def on_leave(self, worker: int) -> list[Action]:
        self._present.pop(worker, None)
        self._idle.pop(worker, None)
        self.forget(worker)
        return self.settle()

    def on_idle(self, worker: int) -> list[Action]:
        self._idle[worker] = None
        return self.settle()

    def _enter(self, worker: int) -> None:
        if worker not in self._present or worker in self._idle:
            self._idle.pop(worker, None)
            self._present.pop(worker, None)
            self.begin(worker)
            self._present[worker] = None
