"""One line that says how far a run is: drawn in place on a terminal, else printed every few seconds."""

from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hybridsync.clock import Clock
from hybridsync.telemetry.metrics import Metrics

PLAIN_SECS = 5.0


class ProgressSink(Protocol):
    """Where a person looks."""

    def update(self, metrics: Metrics) -> None:
        """Show how far the run is."""
        ...

    def note(self, text: str) -> None:
        """Show one line that stays: a switch, a loss of a role, the end."""
        ...

    def close(self) -> None:
        """Leave the last line standing and give the terminal back."""
        ...


class RichProgress:
    """Draws one line in place; it is drawn by `update` alone, no thread runs behind it.

    Args:
        workload: units of the whole run.
        stream: a terminal.
    """

    def __init__(self, workload: int, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} units"),
            TextColumn("{task.fields[rate]:,.0f} ex/s  loss {task.fields[loss]}  epoch {task.fields[epoch]}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("starting", total=workload, rate=0.0, loss="-", epoch=0)
        self._progress.start()

    def update(self, metrics: Metrics) -> None:
        self._progress.update(
            self._task,
            description=metrics.protocol,
            completed=metrics.units,
            rate=metrics.examples_per_sec,
            loss=_loss(metrics),
            epoch=metrics.epoch,
            refresh=True,
        )

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


class PlainProgress:
    """Prints a line at most every PLAIN_SECS.

    Args:
        workload: units of the whole run.
        stream: a file or pipe.
        clock: time source.
    """

    def __init__(self, workload: int, stream: TextIO, clock: Clock) -> None:
        self._workload = workload
        self._stream = stream
        self._clock = clock
        self._next = clock.monotonic()
        self._pending: Metrics | None = None

    def update(self, metrics: Metrics) -> None:
        self._pending = metrics
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + PLAIN_SECS
            self._print()

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._pending is None:
            return
        metrics, self._pending = self._pending, None
        self.note(
            f"{metrics.protocol}: {metrics.units:,}/{self._workload:,} units, "
            f"{metrics.examples_per_sec:,.0f} examples/s, loss {_loss(metrics)}, epoch {metrics.epoch}"
        )


class NullProgress:
    """Shows nothing: an embedded run."""

    def update(self, metrics: Metrics) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def open_progress(workload: int, stream: TextIO, clock: Clock) -> ProgressSink:
    """Return the line that suits `stream`: drawn when it is a terminal, printed otherwise."""
    return RichProgress(workload, stream) if stream.isatty() else PlainProgress(workload, stream, clock)


def _loss(metrics: Metrics) -> str:
    return "-" if metrics.loss is None else f"{metrics.loss:.4f}"
