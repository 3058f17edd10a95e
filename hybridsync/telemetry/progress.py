"""Shows how far a run is: two lines on a terminal, a bar in a notebook, else one line printed every few seconds."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from hybridsync.core.clock import Clock
from hybridsync.telemetry.metrics import Metrics

PLAIN_SECS = 5.0

NOTEBOOK_LINES = 100
"""Newest lines below a notebook's bar: each change sends all of them again."""

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
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} units  {task.fields[examples]:,} examples"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._progress = _TwoLines(*columns, console=_Terminal(file=stream), auto_refresh=False)
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


class NotebookProgress:
    """Draws a bar in the output of a notebook's cell, with the run's lines below it.

    A notebook's standard error is shown in red, and `rich` needs ipywidgets there. This needs IPython alone.

    Args:
        workload: units of the whole run.
        display: `IPython.display.display`.
        clock: time source.
    """

    def __init__(self, workload: int, display: Callable[..., Any], clock: Clock) -> None:
        self._workload, self._display, self._clock = workload, display, clock
        self._lines: deque[str] = deque(maxlen=NOTEBOOK_LINES)
        self._newest: Metrics | None = None
        self._stragglers: Sequence[int] = ()
        self._first: tuple[float, int] | None = None
        self._output: Any = None  # the handle of what stands in the cell; none stands there before the first line

    def update(self, metrics: Metrics, stragglers: Sequence[int] = ()) -> None:
        self._first = self._first or (self._clock.monotonic(), metrics.units)
        self._newest, self._stragglers = metrics, stragglers
        self._draw()

    def show_line(self, text: str) -> None:
        self._lines.append(text)
        self._draw()

    def close(self) -> None:
        pass

    def _draw(self) -> None:
        head = self._head(self._newest) if self._newest else []
        bar = f'<progress value="{self._newest.units}" max="{self._workload}"></progress> ' if self._newest else ""
        shown = bar + "<br>".join(map(escape, head))
        lines = escape("\n".join(self._lines))
        content = {
            "text/plain": "\n".join((*head, *self._lines)),
            "text/html": f'{shown}<pre style="max-height:15em;overflow:auto">{lines}</pre>',
        }
        if self._output is None:
            self._output = self._display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)

    def _head(self, metrics: Metrics) -> list[str]:
        """Return the texts beside and below the bar."""
        assert self._first is not None
        began, units = self._first
        secs, done = self._clock.monotonic() - began, metrics.units - units
        rest = self._workload - metrics.units
        left = f", {secs * rest / done:,.0f} s left" if done > 0 and rest > 0 else ""
        head = f"phase {metrics.phase} {metrics.protocol}: {metrics.units:,}/{self._workload:,} units{left}"
        return [head, ", ".join(_now(metrics, self._stragglers))]


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
    """Return what suits `stream`: lines drawn on a terminal, a bar in a notebook, and printed lines elsewhere."""
    if not stream.closed and stream.isatty():
        return LastingProgress(RichProgress(workload, stream))
    display = _notebooks_display() if stream is sys.stderr else None
    if display is not None:
        return LastingProgress(NotebookProgress(workload, display, clock))
    return LastingProgress(PlainProgress(workload, stream, clock))


def _notebooks_display() -> Callable[..., Any] | None:
    """Return IPython's `display` where this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return ipython.display.display if ipython is not None and hasattr(shell, "kernel") else None


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
