"""Workers that make local updates, driven by an apply log instead of by time: what each of their pushes held. Pure.

A push depends on all that its worker did before: on its optimizer state and, where transfers go on beside the
computation, on its own update that no version held yet. So the worker's program is run again. The log says which units
it was handed, and on which version it was when; in a program the i-th version that arrives is the one that its i-th
push is computed on. Units whose push came to nothing left no trace, because the program was begun anew behind them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hybridsync.interfaces.messages import PushReply
from hybridsync.protocols import base
from hybridsync.protocols.base import (
    Await,
    Begin,
    Combine,
    Compute,
    Difference,
    Lease,
    Pull,
    PushPull,
    Step,
    Version,
)
from hybridsync.storage.apply_log import Entry, Stepped
from hybridsync.training.local_updates import Gradient, Stepper, Stepping, Units

APPLIED = PushReply(0)


class Retracing(Stepping, Protocol):
    """What a worker computes with."""

    def gradient(self, parameters: Any, unit: int) -> Any: ...


class Progress:
    """How far everybody was at each version of a phase.

    Args:
      start: units applied before the phase.
      first: sequence of the version that it began with.
      entries: its updates.
    """

    def __init__(self, start: int, first: int, entries: Sequence[Entry]) -> None:
        self._first = first
        self._units, self._fastest = [start], [0]
        self._done: dict[int, tuple[list[int], list[int]]] = {}
        fastest, counts = 0, dict[int, int]()
        for entry in entries:
            for push in entry.stepped:
                counts[push.worker] = counts.get(push.worker, 0) + push.num_units
                sequences, done = self._done.setdefault(push.worker, ([], []))
                sequences.append(entry.sequence)
                done.append(counts[push.worker])
                fastest = max(fastest, counts[push.worker])
            self._units.append(self._units[-1] + len(entry.units))
            self._fastest.append(fastest)

    def version(self, worker: int, sequence: int, parameters: Any) -> Version:
        """Return a version as `worker` got it."""
        index = sequence - self._first
        sequences, done = self._done[worker]
        known = bisect_right(sequences, sequence)
        own = done[known - 1] if known else 0
        return Version(sequence, parameters, self._units[index], own, self._fastest[index])


class _ProgramRun:
    """One run of a worker's program, from one push to the next."""

    def __init__(
        self, program: base.Program, stepper: Stepper, computing: Retracing, pushes: Sequence[tuple[Units, Stepped]]
    ) -> None:
        self._program, self._stepper, self._computing, self._pushes = program, stepper, computing, pushes
        self._num_leases = self._num_versions = self._num_pushes = 0
        self._arrives = False

    def push(self, progress: Progress, versions: Mapping[int, Any], newest: int) -> Any:
        """Return the contribution of the next push."""
        result: Any = None
        if self._arrives:  # what the last push was answered
            result = self._version(progress, versions, newest)
        elif self._num_pushes:
            result = "pending"
        while True:
            effect = self._program.send(result)
            if isinstance(effect, Begin):
                self._arrives, inner, result = False, effect.effect, "pending"
            else:
                self._arrives, inner = True, effect
            if isinstance(inner, PushPull):
                return self._pushed(inner.gradient)
            if not isinstance(effect, Begin):
                result = self._carry_out(effect, progress, versions, newest)

    def _carry_out(self, effect: Any, progress: Progress, versions: Mapping[int, Any], newest: int) -> Any:
        if isinstance(effect, Pull | Await):
            return self._version(progress, versions, newest)
        if isinstance(effect, Lease):
            units, _ = self._pushes[self._num_leases]
            self._num_leases += 1
            return units
        if isinstance(effect, Compute):
            parameters = effect.parameters
            contribution = self._computing.gradient(parameters.parameters, effect.units[0])
            return Gradient(effect.units, parameters.sequence, contribution)
        own = {Step: self._stepper.step, Difference: self._stepper.difference, Combine: self._stepper.combine}
        return own[type(effect)](effect)

    def _version(self, progress: Progress, versions: Mapping[int, Any], newest: int) -> Version:
        """Return the version that the next push is computed on; behind the last one any will do."""
        index = min(self._num_versions, len(self._pushes) - 1)
        push = self._pushes[index][1]
        sequence = push.base if index == self._num_versions else newest
        self._num_versions += 1
        return progress.version(push.worker, sequence, versions[sequence])

    def _pushed(self, gradient: Gradient) -> Any:
        units, _ = self._pushes[self._num_pushes]
        assert gradient.units == units, f"the log has a push of units {units}, the program pushed {gradient.units}"
        self._num_pushes += 1
        self._stepper.pushed(units, APPLIED)
        return gradient.contribution


class Retracer:
    """All workers of one phase.

    Args:
      protocol: of the phase.
      computing: what they compute with.
      opt_state: that the phase began with.
      num_workers: members of the phase.
      start: units applied before the phase.
      first: sequence of the version that it began with.
      entries: its updates.
    """

    def __init__(
        self,
        protocol: base.Protocol,
        computing: Retracing,
        opt_state: Any,
        num_workers: int,
        start: int,
        first: int,
        entries: Sequence[Entry],
    ) -> None:
        self._protocol, self._computing, self._num_workers = protocol, computing, num_workers
        self._opt_state = opt_state
        self._progress = Progress(start, first, entries)
        self._steppers: dict[tuple[int, int], Stepper] = {}
        self._runs: dict[tuple[int, int, int], _ProgramRun] = {}
        self._pushes: dict[tuple[int, int, int], list[tuple[Units, Stepped]]] = {}
        for entry in entries:
            for part, push in zip(entry.pushes, entry.stepped, strict=True):
                self._pushes.setdefault(push[:3], []).append((part.units, push))

    def contributions(self, entry: Entry, versions: Mapping[int, Any]) -> list[Any]:
        """Return what each push of an update held.

        Args:
          entry: the next update of the phase.
          versions: sequence -> parameters, of all that pushes from here on are computed on, and of the newest.
        """
        return [self._run_of(push).push(self._progress, versions, entry.sequence - 1) for push in entry.stepped]

    def left(self, workers: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
        """Return the optimizer states that these workers, as (worker, incarnation), left behind."""
        return tuple(self._steppers[worker].settled for worker in workers)

    def _run_of(self, push: Stepped) -> _ProgramRun:
        key = push[:3]
        if key not in self._runs:
            whose = push[:2]
            if whose not in self._steppers:
                self._steppers[whose] = Stepper(self._computing, self._protocol, self._num_workers, self._opt_state)
            stepper = self._steppers[whose]
            stepper.rewind()
            program = self._protocol.worker_program(self._num_workers)
            self._runs[key] = _ProgramRun(program, stepper, self._computing, self._pushes[key])
        return self._runs[key]
