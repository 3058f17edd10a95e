import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.progress import (
    NOTEBOOK_LINES,
    PLAIN_SECS,
    NotebookProgress,
    PlainProgress,
    RichProgress,
    open_progress,
)
from tests.telemetry.clocks import ManualClock

METRICS = Metrics(1_000, 32_000, 2, "asp", 0.25, 0.05, 6_400.0, {"mean": 2.96, "p95": 4, "max": 7}, {0: 3e3, 3: 3.1e3})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _drawn(metrics: Metrics, stragglers: Sequence[int] = ()) -> str:
    stream = Terminal()
    progress = open_progress(4_000, stream, ManualClock())
    assert isinstance(progress.sink, RichProgress)
    progress.update(metrics, stragglers)
    progress.show_line("switch [bsp] -> asp")
    progress.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_pipe_gets_a_plain_line_every_few_seconds_and_the_last_one_at_the_end() -> None:
    clock, stream = ManualClock(), io.StringIO()
    progress = open_progress(4_000, stream, clock)
    assert isinstance(progress.sink, PlainProgress)
    progress.update(METRICS)
    clock.advance(PLAIN_SECS / 2)
    progress.update(replace(METRICS, units=2_000))
    clock.advance(PLAIN_SECS / 2)
    progress.update(replace(METRICS, units=3_000, loss=None))
    progress.update(replace(METRICS, units=4_000))
    progress.show_line("done")
    progress.close()
    assert stream.getvalue().splitlines() == [
        "asp: 1,000/4,000 units, 6,400 examples/s, loss 0.2500, staleness 3.0 max 7, phase 2",
        "asp: 3,000/4,000 units, 6,400 examples/s, loss -, staleness 3.0 max 7, phase 2",
        "done",
        "asp: 4,000/4,000 units, 6,400 examples/s, loss 0.2500, staleness 3.0 max 7, phase 2",
    ]


def test_the_slowest_worker_is_named_when_it_falls_behind_and_stragglers_always() -> None:
    stream = io.StringIO()
    progress = open_progress(4_000, stream, ManualClock())
    progress.update(replace(METRICS, workers={0: 3_000.0, 2: 1_900.0, 3: 2_990.0}), [1, 3])
    progress.update(replace(METRICS, workers={0: 3_000.0, 3: 900.0}), [3])
    progress.close()
    marked_and_slow, slow_because_marked = stream.getvalue().splitlines()
    assert marked_and_slow.endswith(", stragglers 1 3 (2,990/s), slowest worker 2 (1,900/s), phase 2")
    assert slow_because_marked.endswith(", stragglers 3 (900/s), phase 2")


def test_a_terminal_shows_protocol_phase_units_examples_rate_loss_and_staleness() -> None:
    shown = _drawn(METRICS)
    assert "switch [bsp] -> asp" in shown
    first, second = shown.splitlines()[-2:]
    assert all(part in first for part in ("phase 2 asp", "1,000/4,000 units", "32,000 examples", "left"))
    assert second.strip() == "6,400 examples/s  loss 0.2500  staleness 3.0 max 7"


@pytest.mark.parametrize("columns", [60, 80])
def test_two_lines_stay_two_lines_on_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    slow = replace(METRICS, workers={0: 3_000.0, 12: 1.0}, protocol="asp(rule=cut)")
    last = _drawn(slow, stragglers=range(12)).splitlines()[-2:]
    assert last[0].startswith("phase 2")
    assert last[1].startswith("6,400 examples/s")
    assert max(map(len, last)) <= columns


def test_a_long_note_is_not_broken_so_that_its_path_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    progress = open_progress(4_000, stream, ManualClock())
    progress.show_line("everything is in /a/long/way/down/to/the/place/where/the/run/is")
    progress.close()
    assert "everything is in /a/long/way/down/to/the/place/where/the/run/is" in stream.getvalue()


class Refusing(io.StringIO):
    """A stream that takes `room` writes, and refuses the others."""

    def __init__(self, room: int, error: Exception, terminal: bool) -> None:
        super().__init__()
        self.room, self.error, self.terminal = room, error, terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.room -= 1
        if self.room < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_a_stream_that_fails_is_not_written_to_again_and_ends_nothing(error: OSError, terminal: bool) -> None:
    stream = Refusing(2, error, terminal)
    progress = open_progress(4_000, stream, ManualClock())
    for _ in range(3):
        progress.update(METRICS)
        progress.show_line("a switch")
    progress.close()
    assert stream.room == -1, "one write was refused, and no other was tried"


def test_a_stream_that_was_closed_ends_nothing() -> None:
    stream = io.StringIO()
    progress = open_progress(4_000, stream, ManualClock())
    stream.close()
    progress.update(METRICS)
    progress.close()
    open_progress(4_000, stream, ManualClock()).show_line("done")


class Cell:
    """The output of a notebook's cell: what IPython's `display` is given, and what replaces it."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> "Cell":
        assert raw and display_id
        self.outputs.append(content)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1] = content


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Make this process look like the kernel of a notebook."""
    cell = Cell()
    shell = SimpleNamespace(kernel=object())
    ipython: Any = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=cell.display))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return cell


def test_a_notebook_gets_one_output_with_a_bar_and_the_lines_below_it(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    progress = open_progress(4_000, sys.stderr, clock)
    assert isinstance(progress.sink, NotebookProgress) and cell.outputs == []
    progress.show_line("phase 1: bsp <from> unit 0")
    progress.update(replace(METRICS, units=1_000))
    clock.advance(10.0)
    progress.update(replace(METRICS, units=2_000), [3])
    progress.show_line("almost done")
    (output,) = cell.outputs
    assert output["text/plain"].splitlines() == [
        "phase 2 asp: 2,000/4,000 units, 20 s left",
        "6,400 examples/s, loss 0.2500, staleness 3.0 max 7, stragglers 3 (3,100/s)",
        "phase 1: bsp <from> unit 0",
        "almost done",
    ]
    assert output["text/html"].startswith('<progress value="2000" max="4000"></progress> phase 2 asp: 2,000/4,000')
    assert "phase 1: bsp &lt;from&gt; unit 0\nalmost done</pre>" in output["text/html"]
    progress.update(replace(METRICS, units=4_000))
    progress.close()
    (output,) = cell.outputs
    assert output["text/plain"].startswith("phase 2 asp: 4,000/4,000 units\n")
    assert capsys.readouterr().err == ""


def test_a_notebook_s_output_keeps_the_newest_lines(cell: Cell) -> None:
    progress = open_progress(4_000, sys.stderr, ManualClock())
    for number in range(NOTEBOOK_LINES + 5):
        progress.show_line(f"line {number}")
    assert cell.outputs[0]["text/plain"].splitlines() == [f"line {number}" for number in range(5, NOTEBOOK_LINES + 5)]


def test_ipython_in_a_terminal_or_a_file_is_no_notebook(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_progress(4_000, io.StringIO(), ManualClock()).sink, PlainProgress)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert isinstance(open_progress(4_000, sys.stderr, ManualClock()).sink, PlainProgress)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert isinstance(open_progress(4_000, sys.stderr, ManualClock()).sink, PlainProgress)
