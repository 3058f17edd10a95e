"""Everything that a chief records, opened together so that all of it shares the run's time."""

import os
from dataclasses import dataclass, field
from typing import Any

from absl import logging

from hybridsync.core.clock import Clock
from hybridsync.core.errors import WorkdirTaken
from hybridsync.storage.durable import Fence, unfenced
from hybridsync.telemetry.events import EventLog, Events, NullEventLog, read_events
from hybridsync.telemetry.metrics import MetricsLog, MetricsSink, NullMetrics, read_metrics
from hybridsync.telemetry.progress import NullProgress, ProgressSink
from hybridsync.telemetry.run_figures import FollowedEvents, FollowedMetrics, RunFigures, follow
from hybridsync.telemetry.tensorboard import Board, open_board
from hybridsync.telemetry.timeline import Timeline, TimelineSink


@dataclass(frozen=True)
class RecordedLines:
    """Events and metrics of a run that has no files for them, as those would hold them."""

    events: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Recorder:
    """Events, metrics, timeline, progress and TensorBoard of one run, and the newest figures of what goes there.

    `fence` is asked before a whole file of the record is written (see `write_durable`).
    """

    events: Events
    metrics: MetricsSink
    timeline: TimelineSink
    progress: ProgressSink
    board: Board
    figures: RunFigures = field(default_factory=RunFigures)
    fence: Fence = unfenced

    @classmethod
    def open(
        cls,
        workdir: str | os.PathLike[str],
        clock: Clock,
        *,
        timeline: bool = True,
        progress: ProgressSink | None = None,
        restarted: bool = False,
        opened: float | None = None,
        fence: Fence = unfenced,
    ) -> "Recorder":
        """Open the files of a workdir, fresh or used.

        Args:
            workdir: existing directory, locked by this process.
            clock: time source.
            timeline: whether to keep timeline.json.
            progress: shows how far the run is; None shows nothing.
            restarted: another process recorded this run, which continued when that process ended.
            opened: monotonic seconds at which the session's start-up began; None for now.
            fence: see `write_durable`.

        Raises:
            OSError: the disk refuses.
        """
        events = EventLog(workdir, clock, restarted=restarted, opened=opened)
        metrics = MetricsLog(workdir, events.elapsed)
        spans = Timeline(workdir, events.elapsed, fence=fence) if timeline else TimelineSink()
        figures = RunFigures(events.elapsed)
        follow(read_events(workdir), read_metrics(workdir), figures)
        return cls(
            FollowedEvents(events, figures),
            FollowedMetrics(metrics, figures),
            spans,
            progress=progress or NullProgress(),
            board=open_board(workdir, events.elapsed.wall),
            figures=figures,
            fence=fence,
        )

    @classmethod
    def null(
        cls,
        clock: Clock,
        progress: ProgressSink | None = None,
        opened: float | None = None,
        lines: RecordedLines | None = None,
    ) -> "Recorder":
        """Return a recorder that leaves no file: a run without a workdir. `lines` takes events and metrics."""
        events = NullEventLog(clock, opened, lines.events if lines else None)
        metrics = NullMetrics(events.elapsed, lines.metrics if lines else None)
        return cls(events, metrics, TimelineSink(), progress or NullProgress(), Board())

    def close(self) -> None:
        """Write the timeline and close everything; what the disk refuses is logged, the run's result stands."""
        closings = (self.progress.close, self.timeline.write, self.board.close, self.metrics.close, self.events.close)
        for close in closings:
            try:
                close()
            except (OSError, WorkdirTaken) as error:
                logging.error("the run's record is incomplete: %s", error)
