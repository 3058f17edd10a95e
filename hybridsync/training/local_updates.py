"""A worker that makes local updates: its own optimizer state, and what its steps have taken off the parameters. Pure.

The server's version of the parameters is the common ground: a `Local` is such a version, less what this worker has
taken off since, or less those of its pushes that the version does not hold yet. The arrays are opaque here, so that
processes, threads, the simulator and a replay step alike.

A worker uploads its optimizer state as it was at the last push that was applied, so that a unit whose push came to
nothing is in no momentum when another worker computes it again.

The schedule is read at the progress of the whole cluster as far as the worker knows it: the units in its version, and n
for each unit of its own that the version lacks, as if the others were as fast. Where it steps alone, it reads n times
its own progress.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from hybridsync.interfaces.messages import PushReply
from hybridsync.protocols import base
from hybridsync.protocols.base import Combine, Difference, Step, Version

Units = tuple[int, ...]


class Gradient(NamedTuple):
    """Gradient handle: a contribution, its units, and the sequence of the version that it was computed on.

    Without units there is no contribution: nothing was computed, and nothing is to be pushed.
    """

    units: Units
    base: int
    contribution: Any


class Local(NamedTuple):
    """Parameters handle of a worker that makes local updates.

    Args:
      sequence: sequence of the version that it came from.
      parameters: parameters that the next gradient is computed on.
      at: units that the schedule reads in the next step.
      units: units that were stepped through since the version, and not pushed yet.
      moved: difference that those steps took off, or the parameters after them; None without any.
      last: contribution of the last of them.
    """

    sequence: int
    parameters: Any
    at: int
    units: Units = ()
    moved: Any = None
    last: Any = None


class Stepping(Protocol):
    """Computes steps: `hybridsync.training.compiled_programs.Programs`, or a simulator's arithmetic."""

    def local_step(
        self, parameters: Any, opt_state: Any, moved: Any, gradient: Any, *, at: int, factor: float, replaces: bool
    ) -> tuple[Any, Any, Any]: ...

    def difference(self, contribution: Any, moved: Any) -> Any: ...

    def combine(self, parameters: Any, contribution: Any, blend: float, replaces: bool) -> Any: ...


class Stepper:
    """One worker's own optimizer in one phase.

    Args:
      stepping: computes the steps.
      protocol: protocol of the phase: gives the rate of its steps, and the kind of its pushes.
      num_workers: members of the phase, n.
      opt_state: optimizer state that the phase began with.

    Attributes:
      opt_state: optimizer state after the last step.
      applied_opt_state: optimizer state after the last push that was applied.
      last_applied_unit: the last unit of that push; -1 before any.
    """

    def __init__(self, stepping: Stepping, protocol: base.Protocol, num_workers: int, opt_state: Any) -> None:
        self._stepping, self._num_workers = stepping, num_workers
        self._rate, self._replaces = protocol.lr_factor(1, num_workers), protocol.change(num_workers) == "replace"
        self.opt_state = self.applied_opt_state = opt_state
        self.last_applied_unit = -1
        self._first: int | None = None
        self._num_steps = self._num_settled = 0
        self._offered: deque[tuple[Units, Any, int]] = deque()

    def step(self, effect: Step) -> Local:
        """Carry out a Step."""
        gradient: Gradient = effect.gradient
        start = self._local(effect.parameters)
        if not gradient.units:
            return start
        if self._first is None:
            self._first = start.at
        at = self._first + self._num_workers * self._num_steps if effect.alone else start.at
        parameters, self.opt_state, moved = self._stepping.local_step(
            start.parameters,
            self.opt_state,
            start.moved,
            gradient.contribution,
            at=at,
            factor=self._rate * effect.factor,
            replaces=self._replaces,
        )
        self._num_steps += len(gradient.units)
        ahead = start.at + self._num_workers * len(gradient.units)
        units = start.units + gradient.units
        return Local(start.sequence, parameters, ahead, units=units, moved=moved, last=gradient.contribution)

    def difference(self, effect: Difference) -> Gradient:
        """Carry out a Difference; `start` must be what `end` was stepped from."""
        start, end = self._local(effect.start), self._local(effect.end)
        assert start.sequence == end.sequence and not start.units, "a difference is of all steps since a version"
        if not end.units:
            return Gradient((), end.sequence, None)
        self._offered.append((end.units, self.opt_state, self._num_steps))
        return Gradient(end.units, end.sequence, self._stepping.difference(end.last, end.moved))

    def combine(self, effect: Combine) -> Local:
        """Carry out a Combine."""
        version: Version = effect.parameters
        at, parameters, blend = version.units, version.parameters, 1.0 / self._num_workers
        for gradient in effect.differences:
            at += self._num_workers * len(gradient.units)
            if gradient.units:
                parameters = self._stepping.combine(parameters, gradient.contribution, blend, self._replaces)
        return Local(version.sequence, parameters, at)

    def pushed(self, units: Units, reply: PushReply) -> bool:
        """Note what became of a push; returns whether it was applied.

        Where it was not, the steps after it are void: `rewind`, and begin the program anew.
        """
        while self._offered:
            offered, opt_state, num_steps = self._offered.popleft()
            if offered == units:
                break
        else:
            raise AssertionError(f"units {units} were pushed, but no difference was of them")
        if reply.dropped or reply.duplicate:
            return False
        self.applied_opt_state, self.last_applied_unit, self._num_settled = opt_state, units[-1], num_steps
        return True

    def rewind(self) -> None:
        """Go back to the last push that was applied."""
        self.opt_state, self._num_steps = self.applied_opt_state, self._num_settled
        self._first = self._first if self._num_settled else None
        self._offered.clear()

    @staticmethod
    def _local(parameters: Local | Version) -> Local:
        if isinstance(parameters, Local):
            return parameters
        return Local(parameters.sequence, parameters.parameters, parameters.units)
