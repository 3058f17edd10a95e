"""Measures the stages of the phase change under way."""

from __future__ import annotations

from collections.abc import Callable

from hybridsync.core.clock import Clock
from hybridsync.telemetry.switch_costs import StageTimes


class StageTimer:
    """Measures each stage, and puts it on the timeline.

    Args:
      clock: for intervals.
      span: puts a named stretch of time on the timeline, from its start to its end.

    Attributes:
      times: of the stages since the last `restart`.
    """

    def __init__(self, clock: Clock, span: Callable[[str, float, float], None]) -> None:
        self._clock, self._span = clock, span
        self.times = StageTimes()

    def start(self) -> float:
        """Return the time now, which `record` takes as a stage's start."""
        return self._clock.monotonic()

    def restart(self) -> None:
        """Forget the stages measured so far: another phase change begins."""
        self.times = StageTimes()

    def record(self, stage: str, started: float) -> None:
        """Note that `stage`, begun at `started`, ends now."""
        ended = self._clock.monotonic()
        self.times.secs[stage] = ended - started
        self._span(stage, started, ended)
