"""Shows how far a run is: two lines drawn in place on a terminal, else one line printed every few seconds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from hybridsync.core.clock import Clock
from hybridsync.telemetry.metrics import Metrics

PLAIN_SECS = 5.0

EVEN = 0.9
"""Workers are as fast as each other, and none is called the slowest, when all reach this share of the fastest."""


class ProgressSink(Protocol):
    """Shows progress to a person."""

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        """Show how far the run is, and which workers are marked as slow."""
        ...

    def show_line(self, text: str) -> None:
        """Show one line that stays: a switch, a loss of a role, the end."""
        ...

    def close(self) -> None:
        """Leave the last line standing and give the terminal back."""
        ...


class _TwoLines(Progress):
    """The bar, and below it what the run is doing right now."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["now"], no_wrap=True, overflow="ellipsis")


class _Terminal(Console):
    """A terminal whose end is an error like any other; rich would end the program."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls this where it has caught the error


class RichProgress:
    """Draws two lines in place; they are drawn by `update` alone, no thread runs behind them.

    Args:
        workload: units of the whole run.
        stream: terminal to draw on.
    """

    def __init__(self, workload: int, stream: TextIO) -> None:
        self._progress = _TwoLines(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} units  {task.fields[examples]:,} examples"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=_Terminal(file=stream),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("starting", total=workload, examples=0, now="")
        self._progress.start()

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        self._progress.update(
            self._task,
            description=f"phase {metrics.phase} {metrics.protocol}",
            completed=metrics.units,
            examples=metrics.examples,
            now="  ".join(_now(metrics, stragglers)),
            refresh=True,
        )

    def show_line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class PlainProgress:
    """Prints a line at most every PLAIN_SECS.

    Args:
        workload: units of the whole run.
        stream: file or pipe to write to.
        clock: time source.
    """

    def __init__(self, workload: int, stream: TextIO, clock: Clock) -> None:
        self._workload = workload
        self._stream = stream
        self._clock = clock
        self._next = clock.monotonic()
        self._pending: tuple[Metrics, Sequence[int]] | None = None

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        self._pending = metrics, stragglers
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + PLAIN_SECS
            self._print()

    def show_line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._pending is None:
            return
        (metrics, stragglers), self._pending = self._pending, None
        said = ", ".join((*_now(metrics, stragglers), f"phase {metrics.phase}"))
        self.show_line(f"{metrics.protocol}: {metrics.units:,}/{self._workload:,} units, {said}")


class NullProgress:
    """Shows nothing: an embedded run."""

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        pass

    def show_line(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class LastingProgress:
    """Shows what `sink` shows until that fails, and nothing afterwards: no run ends because nobody can look at it.

    Args:
        sink: draws or prints.
    """

    def __init__(self, sink: ProgressSink) -> None:
        self.sink = sink

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        self._try(lambda: self.sink.update(metrics, stragglers))

    def show_line(self, text: str) -> None:
        self._try(lambda: self.sink.show_line(text))

    def close(self) -> None:
        self._try(self.sink.close)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except (OSError, ValueError):  # full, without a reader, or closed, which Python calls a wrong value
            self.sink = NullProgress()


def open_progress(workload: int, stream: TextIO, clock: Clock) -> LastingProgress:
    """Return the line that suits `stream`: drawn when it is a terminal, printed otherwise."""
    drawn = not stream.closed and stream.isatty()
    return LastingProgress(RichProgress(workload, stream) if drawn else PlainProgress(workload, stream, clock))


def _now(metrics: Metrics, stragglers: Sequence[int]) -> list[str]:
    """Return what the run is doing, the most important first: a narrow terminal cuts the end."""
    said = [
        f"{metrics.examples_per_sec:,.0f} examples/s",
        f"loss {'-' if metrics.loss is None else f'{metrics.loss:.4f}'}",
        f"staleness {metrics.staleness['mean']:.1f} max {metrics.staleness['max']:.0f}",
    ]
    if stragglers:
        said.append(" ".join(("stragglers", *(_worker(metrics, worker) for worker in stragglers))))
    slowest = min(metrics.workers, key=metrics.workers.__getitem__, default=None)
    if slowest not in (None, *stragglers) and metrics.workers[slowest] < EVEN * max(metrics.workers.values()):
        said.append(f"slowest worker {_worker(metrics, slowest)}")
    return said


def _worker(metrics: Metrics, worker: int) -> str:
    rate = metrics.workers.get(worker)
    return f"{worker}" if rate is None else f"{worker} ({rate:,.0f}/s)"
