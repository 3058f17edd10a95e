"""A worker that is left out of lock-step measures itself, so that it is known when it is well again.

It computes the gradient of a unit that is not its own, as a member would, and throws it away: only the seconds count,
with those that its link is emulated to take for its part in a collective. Between two of them it rests, so that DUTY of
its time goes there, but for a burst at first and when it seems to be well.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

import jax
import numpy as np

from hybridsync.core.work_deadlines import COMPILE_SECS
from hybridsync.emulation.device import Emulation
from hybridsync.training.compiled_programs import Programs
from hybridsync.worker.replica import Replica
from hybridsync.worker.stats import WorkerRecorder

DUTY = 0.25
"""Share of the time of who is left out that measuring takes: others may share its processor."""
BURST = 50
"""So many measures follow one another at first, and when they become better: four windows are to be full soon."""
BETTER = 0.9
"""Share of the seconds that it took a worker while it was slow, below which it may be well."""
RECENT = 3
"""Measures whose median counts for what it takes: one that took long by chance is nothing."""


class Rhythm:
    """Decides how long a worker rests between two measurements of itself.

    >>> rhythm = Rhythm()
    >>> [rhythm.rest_secs(0.2) for _ in range(BURST + 2)][-3:], rhythm.rest_secs(0.1), rhythm.rest_secs(0.25)
    ([0.0, 0.6000000000000001, 0.6000000000000001], 0.0, 0.75)
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._slow_secs = 0.0
        self._count = self._in_a_row = 0

    def rest_secs(self, secs: float) -> float:
        """Return for how long to rest after a measure that took `secs`."""
        self._recent.append(secs)
        self._slow_secs = max(self._slow_secs, statistics.median(self._recent))
        self._in_a_row = self._in_a_row + 1 if secs < BETTER * self._slow_secs else 0
        self._count += 1
        goes_on = self._count <= BURST or 0 < self._in_a_row <= BURST
        return 0.0 if goes_on else secs * (1.0 / DUTY - 1.0)


class Measuring:
    """Measures one worker.

    Args:
      worker: id of the worker.
      programs: the compiled programs.
      replica: replica with the parameters that gradients are computed on; zeros if it holds none.
      recorder: collects times, and has the clock.
      emulation: emulates a slow device.
    """

    def __init__(
        self, worker: int, programs: Programs, replica: Replica, recorder: WorkerRecorder, emulation: Emulation
    ) -> None:
        self._worker, self._programs, self._replica = worker, programs, replica
        self._recorder, self._emulation = recorder, emulation
        self._rests_until, self._rhythm = 0.0, Rhythm()
        self._zeros: Any = None

    @property
    def rest_secs(self) -> float:
        """For how long from now on it rests; 0 when it may measure."""
        return max(0.0, self._rests_until - self._recorder.clock.monotonic())

    def measure(self, unit: int) -> None:
        """Compute `unit` for nothing, and note what it took."""
        clock = self._recorder.clock
        parameters = self._parameters()
        started = clock.monotonic()
        with self._recorder.watchdog.work(f"the measurement with unit {unit}", COMPILE_SECS):
            jax.block_until_ready(self._programs.gradient(parameters, unit, worker=self._worker))
            if self._emulation.active:
                self._emulation.finish(self._worker, unit, started, clock)
                self._emulation.send(self._worker, unit, self._programs.contribution_layout.nbytes)
        ended = clock.monotonic()
        self._recorder.probe(started, ended)
        self._rests_until = ended + self._rhythm.rest_secs(ended - started)

    def begin(self) -> None:
        """Begin anew: the worker takes part again, and may be left out for another reason."""
        self._rests_until, self._rhythm = 0.0, Rhythm()

    def _parameters(self) -> Any:
        if self._replica.holds:
            return self._replica.parameters(self._worker)
        if self._zeros is None:
            zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), self._programs.parameters)
            self._zeros = self._programs.placement.at_worker(jax.device_put(zeros), self._worker)
        return self._zeros
