"""Workers that make local updates, driven by an apply log instead of by time: what each of their pushes held. Pure.

A push depends on all that its worker did before: on its optimizer state and, where transfers run in the background of
the computation, on its own update that no version held yet. So the worker's program is run again. The log contains the
units it was handed, and on which version it was when; in a program the i-th version that arrives is the one that its
i-th push is computed on. After the last of them there may be one more, which the last push's rate was made by and
nothing was computed on. Units whose push came to nothing left no trace, because the program was begun anew after them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hybridsync.interfaces.messages import PushReply
from hybridsync.protocols import base
from hybridsync.protocols.base import (
    Await,
    Begin,
    Compute,
    Lease,
    Pull,
    PushOnly,
    PushPull,
    Version,
)
from hybridsync.storage.apply_log_entries import Entry, Stepped
from hybridsync.training.local_updates import Gradient, Stepper, Stepping, Units
from hybridsync.worker.local_engine import own_steps
from hybridsync.worker.member import run_program
from hybridsync.worker.requests import IO

APPLIED = PushReply(0)


class Progress:
    """Counts from a phase's updates how far everybody was at each version.

    Args:
      start: units applied before the phase.
      first: sequence of the version that it began with.
      entries: updates of the phase.
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


class _Logged(NamedTuple):
    """A push as the log has it: its units, what it says of them, and the sequence of its update."""

    units: Units
    stepped: Stepped
    sequence: int


class _ProgramRun:
    """One run of a worker's program: the engines' interpreter runs it, and the log carries out its effects."""

    def __init__(
        self,
        program: base.Program,
        stepper: Stepper,
        gradient: Callable[[Any, int], Any],
        pushes: Sequence[_Logged],
        progress: Progress,
    ) -> None:
        self._stepper, self._gradient, self._pushes, self._progress = stepper, gradient, pushes, progress
        self._num_leases = self._num_versions = self._num_pushes = 0
        self._versions: Mapping[int, Any] = {}
        self._contributions = run_program(
            program,
            {
                Lease: self._lease,
                Compute: self._compute,
                Pull: self._version,
                Await: self._awaited,
                PushPull: self._push_pull,
                Begin: self._begin,
                **own_steps(stepper),
            },
        )

    def push(self, versions: Mapping[int, Any]) -> Any:
        """Return the contribution of the next push."""
        self._versions = versions
        return next(self._contributions)

    def _lease(self, effect: Lease) -> Units:
        units = self._pushes[self._num_leases].units
        self._num_leases += 1
        return units

    def _compute(self, effect: Compute) -> Gradient:
        (unit,), parameters = effect.units, effect.parameters
        return Gradient(effect.units, parameters.sequence, self._gradient(parameters.parameters, unit))

    def _push_pull(self, effect: PushPull) -> IO:
        yield self._pushed(effect.gradient)
        return self._version(effect)

    def _begin(self, effect: Begin) -> IO:
        if isinstance(effect.effect, PushOnly):
            yield self._pushed(effect.effect.gradient)
        return effect.effect

    def _awaited(self, effect: Await) -> Version:
        if isinstance(effect.pending, PushOnly):
            _, push, sequence = self._pushes[self._num_pushes - 1]
            return self._progress.version(push.worker, sequence, None)
        return self._version(effect)

    def _version(self, effect: Pull | PushPull | Await) -> Version:
        """Return the version that the next push is computed on, or which the last one knew as the newest."""
        index = self._num_versions
        self._num_versions += 1
        if index < len(self._pushes):
            push = self._pushes[index].stepped
            return self._progress.version(push.worker, push.base, self._versions[push.base])
        push = self._pushes[-1].stepped
        return self._progress.version(push.worker, push.newest, None)

    def _pushed(self, gradient: Gradient) -> Any:
        units = self._pushes[self._num_pushes].units
        assert gradient.units == units, f"the log has a push of units {units}, the program pushed {gradient.units}"
        self._num_pushes += 1
        self._stepper.pushed(units, APPLIED)
        return gradient.contribution


class Retracer:
    """Computes all workers of one phase again.

    Args:
      protocol: protocol of the phase.
      stepping: computes steps as the workers do.
      gradient: parameters, unit -> the contribution that a worker computes.
      opt_state: optimizer state that the phase began with.
      num_workers: members of the phase.
      start: units applied before the phase.
      first: sequence of the version that it began with.
      entries: updates of the phase.
    """

    def __init__(
        self,
        protocol: base.Protocol,
        stepping: Stepping,
        gradient: Callable[[Any, int], Any],
        opt_state: Any,
        num_workers: int,
        start: int,
        first: int,
        entries: Sequence[Entry],
    ) -> None:
        self._protocol, self._stepping, self._num_workers = protocol, stepping, num_workers
        self._gradient = gradient
        self._opt_state = opt_state
        self._progress = Progress(start, first, entries)
        self._steppers: dict[tuple[int, int], Stepper] = {}
        self._runs: dict[tuple[int, int, int], _ProgramRun] = {}
        self._pushes: dict[tuple[int, int, int], list[_Logged]] = {}
        for entry in entries:
            for part, push in zip(entry.pushes, entry.stepped, strict=True):
                self._pushes.setdefault(push[:3], []).append(_Logged(part.units, push, entry.sequence))

    def contributions(self, entry: Entry, versions: Mapping[int, Any]) -> list[Any]:
        """Return what each push of an update held.

        Args:
          entry: the next update of the phase.
          versions: sequence -> parameters, of all that pushes from here on are computed on.
        """
        return [self._run_of(push).push(versions) for push in entry.stepped]

    def opt_states_left(self, workers: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
        """Return the optimizer states that these workers, as (worker, incarnation), left behind."""
        return tuple(self._steppers[worker].applied_opt_state for worker in workers)

    def _run_of(self, push: Stepped) -> _ProgramRun:
        key = push[:3]
        if key not in self._runs:
            whose = push[:2]
            if whose not in self._steppers:
                self._steppers[whose] = Stepper(self._stepping, self._protocol, self._num_workers, self._opt_state)
            stepper = self._steppers[whose]
            stepper.rewind()
            program = self._protocol.worker_program(self._num_workers)
            self._runs[key] = _ProgramRun(program, stepper, self._gradient, self._pushes[key], self._progress)
        return self._runs[key]
