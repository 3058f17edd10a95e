"""Emulated accelerators and injected stragglers: the gradient is really computed, the rest of the time is waited.

This module delays the work that one worker does by itself: its units, and its part in a collective or an average. The
primary delays pushes and pulls (`hybridsync.emulation.link_delays`), because it knows which workers share the port.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.config import EmulationConfig, Stragglers
from hybridsync.core.clock import Clock, pause


class Emulation:
    """Stretches a worker's units and transfers to what the emulated device and link would take.

    Args:
      config: `compute_secs` a unit, and stragglers by worker and share of the workload.
      workload: units of the run.
      wait: blocks for some seconds.

    Attributes:
      active: whether any unit is stretched.
    """

    def __init__(self, config: EmulationConfig, workload: int, wait: Callable[[float], None] = pause) -> None:
        self._compute_secs = config.compute_secs
        self._stragglers = Stragglers(config.stragglers, workload)
        self._wait = wait
        self.active = bool(self._compute_secs or self._stragglers)

    def finish(self, worker: int, unit: int, started: float, clock: Clock) -> None:
        """Block until the emulated device would have finished `unit`, which began at `started`.

        A slow device is a multiple of the emulated one, and of this machine where none is emulated.
        """
        slow = self._stragglers.of(worker, unit)
        now = clock.monotonic()
        like_others = self._compute_secs or now - started
        self._wait(max(0.0, started + slow.factor * like_others - now) + slow.delay_secs)

    def send(self, worker: int, unit: int, num_bytes: int) -> bool:
        """Block for what `num_bytes` take on a slow worker's link; returns whether there was anything to wait for.

        Args:
          worker: worker that takes part in the collective or the average.
          unit: unit that the worker computed last.
          num_bytes: size in bytes of its part.
        """
        secs = self._stragglers.of(worker, unit).transfer_secs(num_bytes)
        if secs:
            self._wait(secs)
        return secs > 0
