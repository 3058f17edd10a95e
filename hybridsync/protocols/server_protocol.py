"""Implements what protocols of the SERVER mode have in common: the worker's program, and whom a rule waits for."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.protocols.base import (
    BFLOAT16,
    FLOAT32,
    Action,
    Arrival,
    Compensation,
    Compute,
    Lease,
    Program,
    Protocol,
    Pull,
    PushPull,
    ServerRule,
)
from hybridsync.protocols.modes import SERVER, SyncMode
from hybridsync.protocols.scaling import check_scaling
from hybridsync.protocols.staleness import Bounded, Damped, Scaled

STALENESS_RULES = ("none", "rate", "cut", "dc", "dc_adaptive")
STRENGTHS = {"dc": 0.04, "dc_adaptive": 2.0}
"""Of the compensation, where none is given."""


@dataclass(frozen=True, kw_only=True)
class ServerProtocol(Protocol):
    """A protocol whose workers push gradients to the parameter server, one unit each, and get parameters back.

    Args:
      staleness_rule: treatment of stale pushes: none, rate, cut, dc or dc_adaptive (see `staleness.py`).
      max_delay: with `cut`, the staleness from which a push is dropped; 0 is the number of workers.
      compensation: with `dc` and `dc_adaptive`, their lambda; 0 is .04 and 2.
      scaling: growth of the learning rate with the units of an update, "linear" or "sqrt".
      wire: number format of gradients and parameters between processes: float32, or bfloat16, which is half the bytes
        and rounds both.
    """

    staleness_rule: str = "none"
    max_delay: int = 0
    compensation: float = 0.0
    scaling: str = "linear"
    wire: str = FLOAT32
    mode: ClassVar[SyncMode] = SERVER

    def __post_init__(self) -> None:
        check_scaling(self.name, self.scaling)
        if self.staleness_rule not in STALENESS_RULES:
            raise PlanError(
                f"{self.name}(staleness_rule={self.staleness_rule}) names no rule; known: {', '.join(STALENESS_RULES)}"
            )
        if self.max_delay < 0 or (self.max_delay and self.staleness_rule != "cut"):
            raise PlanError(
                f"{self.name}(max_delay={self.max_delay}) with staleness_rule={self.staleness_rule} says nothing; give "
                "a max_delay of 1 or more with staleness_rule=cut, or leave it out"
            )
        if not 0 <= self.compensation < math.inf or (self.compensation and self.staleness_rule not in STRENGTHS):
            raise PlanError(
                f"{self.name}(compensation={self.compensation}) with staleness_rule={self.staleness_rule} says "
                f"nothing; give a positive one with staleness_rule={' or '.join(STRENGTHS)}, or leave it out"
            )

        if self.wire not in (FLOAT32, BFLOAT16):
            raise PlanError(f"{self.name}(wire={self.wire}) is no type that travels; known: {FLOAT32}, {BFLOAT16}")
        if self.wire != FLOAT32 and self.staleness_rule in STRENGTHS:
            raise PlanError(
                f"{self.name}(wire={self.wire}) with staleness_rule={self.staleness_rule} would compensate what "
                "rounding did; leave one of both out"
            )

    @property
    def wire_dtype(self) -> str:
        return self.wire

    @property
    def compensated(self) -> Compensation | None:
        if self.staleness_rule not in STRENGTHS:
            return None
        strength = self.compensation or STRENGTHS[self.staleness_rule]
        return Compensation(strength, adaptive=self.staleness_rule == "dc_adaptive")

    def worker_program(self, num_workers: int) -> Program:
        parameters, lease = (yield Pull()), Lease()
        while (units := (yield lease)) is not None:
            # In no variable: a gradient would stay until the next one is computed.
            parameters = yield PushPull((yield Compute(units, parameters)))

    @abstractmethod
    def rule(self, members: tuple[int, ...]) -> ServerRule:
        """Return a fresh rule for a phase with `members`, before anything judges the staleness of its pushes.

        Raises:
          ConfigError: the arguments cannot work with these members (a rule that could deadlock).
        """

    def rule_bound(self, num_workers: int) -> int | None:
        """Return how many updates the rule lets lie between a gradient's parameters and its update; None: any."""
        return None

    def server_rule(self, members: tuple[int, ...]) -> ServerRule:
        rule, bound = self.rule(members), self.staleness_bound(len(members))
        if self.scaling != "linear":
            rule = Scaled(rule, self.scaling)
        if self.staleness_rule == "rate":
            rule = Damped(rule)
        return rule if bound is None else Bounded(rule, bound)

    def staleness_bound(self, num_workers: int) -> int | None:
        bounds = [self.rule_bound(num_workers)]
        if self.staleness_rule == "cut":
            bounds.append((self.max_delay or num_workers) - 1)
        return min((bound for bound in bounds if bound is not None), default=None)


class WaitingRule(ServerRule):
    """A rule under which pushes wait for other workers: it knows who is present, and who has something to do.

    A subclass takes pushes and forgets workers; after each change `ready_actions` returns what may continue now.

    Args:
      members: worker ids of all members of the phase; all are expected from the start.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._present = dict.fromkeys(members)
        self._idle: dict[int, None] = {}

    @property
    def awaited(self) -> list[int]:
        """Workers from whom a push is to be expected, ascending."""
        return sorted(worker for worker in self._present if worker not in self._idle)

    @abstractmethod
    def add_push(self, arrival: Arrival) -> list[Action]:
        """Return what to do with a push by itself; its worker is present and busy."""

    @abstractmethod
    def ready_actions(self) -> list[Action]:
        """Return what may go on, given who is awaited now."""

    def begin(self, worker: int) -> None:
        """Note that `worker` takes part, for the first time or again after it was gone or idle."""

    def forget_worker(self, worker: int) -> None:
        """Forget what is held of a worker that is gone."""

    def on_push(self, arrival: Arrival) -> list[Action]:
        self._enter(arrival.worker)
        return [*self.add_push(arrival), *self.ready_actions()]

    def on_join(self, worker: int) -> list[Action]:
        self._enter(worker)
        return self.ready_actions()

    def on_leave(self, worker: int) -> list[Action]:
        self._present.pop(worker, None)
        self._idle.pop(worker, None)
        self.forget_worker(worker)
        return self.ready_actions()

    def on_idle(self, worker: int) -> list[Action]:
        self._idle[worker] = None
        return self.ready_actions()

    def _enter(self, worker: int) -> None:
        if worker not in self._present or worker in self._idle:
            self._idle.pop(worker, None)
            self._present.pop(worker, None)
            self.begin(worker)
            self._present[worker] = None


def check_not_negative(protocol: str, **values: int) -> None:
    """Refuse arguments below 0.

    Raises:
      ConfigError: an argument is below 0.
    """
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{protocol}({name}={value}) is below 0; give a {name} of 0 or more")
