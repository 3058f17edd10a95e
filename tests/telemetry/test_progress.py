import io
from dataclasses import replace

from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.progress import PLAIN_SECS, PlainProgress, RichProgress, open_progress
from tests.telemetry.clocks import ManualClock

METRICS = Metrics(1_000, 32_000, 2, "asp", 0.25, 0.05, 6_400.0, {"mean": 0.0, "p95": 0, "max": 0}, {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_plain_line_every_few_seconds_and_the_last_one_at_the_end() -> None:
    clock, stream = ManualClock(), io.StringIO()
    progress = open_progress(4_000, stream, clock)
    assert isinstance(progress, PlainProgress)
    progress.update(METRICS)
    clock.advance(PLAIN_SECS / 2)
    progress.update(replace(METRICS, units=2_000))
    clock.advance(PLAIN_SECS / 2)
    progress.update(replace(METRICS, units=3_000, loss=None))
    progress.update(replace(METRICS, units=4_000))
    progress.note("done")
    progress.close()
    assert stream.getvalue().splitlines() == [
        "asp: 1,000/4,000 units, 6,400 examples/s, loss 0.2500, epoch 2",
        "asp: 3,000/4,000 units, 6,400 examples/s, loss -, epoch 2",
        "done",
        "asp: 4,000/4,000 units, 6,400 examples/s, loss 0.2500, epoch 2",
    ]


def test_a_terminal_gets_one_line_with_protocol_units_rate_loss_and_epoch() -> None:
    stream = Terminal()
    progress = open_progress(4_000, stream, ManualClock())
    assert isinstance(progress, RichProgress)
    progress.update(METRICS)
    progress.note("switch [bsp] -> asp")
    progress.close()
    shown = stream.getvalue()
    assert "switch [bsp] -> asp" in shown
    last = [line for line in shown.splitlines() if "units" in line][-1]
    assert all(part in last for part in ("asp", "1,000/4,000 units", "6,400 ex/s", "0.2500"))
