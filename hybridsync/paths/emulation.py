"""Emulated accelerators and injected stragglers: the gradient is really computed, the rest of the time is slept."""

from __future__ import annotations

from hybridsync.clock import Clock, pause
from hybridsync.config import EmulationConfig, Straggler


class Emulation:
    """Stretches a unit's computation to what the emulated device would take.

    Args:
      config: `compute_secs` a unit, and stragglers by worker and share of the workload.
      workload: units of the run.
    """

    def __init__(self, config: EmulationConfig, workload: int) -> None:
        self._compute_secs = config.compute_secs
        self._stragglers = Straggler.parse(config.stragglers)
        self._workload = workload

    @property
    def active(self) -> bool:
        """Whether any unit is stretched."""
        return bool(self._compute_secs or self._stragglers)

    def finish(self, worker: int, unit: int, started: float, clock: Clock) -> None:
        """Block until the emulated device would have finished `unit`, which began at `started`."""
        share = unit / self._workload
        delay = sum(s.delay_secs for s in self._stragglers if s.worker == worker and s.start <= share < s.stop)
        pause(started + self._compute_secs + delay - clock.monotonic())
