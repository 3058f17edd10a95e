"""Everything that a chief records, opened together so that all of it shares the run's time."""

import os
from dataclasses import dataclass

from absl import logging

from hybridsync.core.clock import Clock
from hybridsync.telemetry.events import EventLog, Events, NullEventLog
from hybridsync.telemetry.metrics import MetricsLog, MetricsSink, NullMetrics
from hybridsync.telemetry.progress import NullProgress, ProgressSink
from hybridsync.telemetry.tensorboard import Board, NullBoard, open_board
from hybridsync.telemetry.timeline import NullTimeline, Timeline, TimelineSink


@dataclass(frozen=True)
class Recorder:
    """Events, metrics, timeline, progress and TensorBoard of one run."""

    events: Events
    metrics: MetricsSink
    timeline: TimelineSink
    progress: ProgressSink
    board: Board

    @classmethod
    def open(
        cls,
        workdir: str | os.PathLike[str],
        clock: Clock,
        *,
        timeline: bool = True,
        progress: ProgressSink | None = None,
        restarted: bool = False,
    ) -> "Recorder":
        """Open the files of a workdir, fresh or used.

        Args:
            workdir: existing directory, locked by this process.
            clock: time source.
            timeline: whether to keep timeline.json.
            progress: where to show how far the run is; None for nowhere.
            restarted: another process recorded this run, which went on when that one ended.

        Raises:
            OSError: the disk refuses.
        """
        events = EventLog(workdir, clock, restarted=restarted)
        metrics = MetricsLog(workdir, events.elapsed)
        spans = Timeline(workdir, events.elapsed) if timeline else NullTimeline()
        return cls(events, metrics, spans, progress or NullProgress(), open_board(workdir, clock))

    @classmethod
    def null(cls, clock: Clock, progress: ProgressSink | None = None) -> "Recorder":
        """Return a recorder that leaves nothing: a run without a workdir."""
        return cls(NullEventLog(clock), NullMetrics(), NullTimeline(), progress or NullProgress(), NullBoard())

    def close(self) -> None:
        """Write the timeline and close everything; what the disk refuses is logged, the run's result stands."""
        closings = (self.progress.close, self.timeline.write, self.board.close, self.metrics.close, self.events.close)
        for close in closings:
            try:
                close()
            except OSError as error:
                logging.error("the run's record is incomplete: %s", error)
