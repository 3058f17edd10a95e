"""A worker that is left out of lock-step measures itself, so that it is known when it is well again.

It computes the gradient of a unit that is not its own, as a member would, and throws it away: only the seconds count.
Between two of them it rests, so that DUTY of its time goes there at most.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hybridsync.paths.emulation import Emulation
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.replica import Replica
from hybridsync.step import Programs

DUTY = 0.25
"""Share of the time of who is left out that measuring takes: others may share its processor, and it is not alone."""


def rest_after(secs: float) -> float:
    """Return for how long to rest after a measure that took `secs`.

    >>> rest_after(0.1)
    0.30000000000000004
    """
    return secs * (1.0 / DUTY - 1.0)


class Measuring:
    """Measures one worker.

    Args:
      worker: id.
      programs: the compiled programs.
      replica: whose parameters the gradients are of; zeros where it holds none.
      recorder: what is noted, and the clock.
      emulation: how slow the device pretends to be.
    """

    def __init__(
        self, worker: int, programs: Programs, replica: Replica, recorder: WorkerRecorder, emulation: Emulation
    ) -> None:
        self._worker, self._programs, self._replica = worker, programs, replica
        self._recorder, self._emulation = recorder, emulation
        self._rests_until = 0.0
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
        jax.block_until_ready(self._programs.gradient(parameters, unit))
        if self._emulation.active:
            self._emulation.finish(self._worker, unit, started, clock)
        ended = clock.monotonic()
        self._recorder.probe(started, ended)
        self._rests_until = ended + rest_after(ended - started)

    def _parameters(self) -> Any:
        if self._replica.holds:
            return self._replica.parameters
        if self._zeros is None:
            zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), self._programs.parameters)
            self._zeros = jax.device_put(zeros)
        return self._zeros
