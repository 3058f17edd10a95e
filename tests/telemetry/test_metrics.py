import json
from pathlib import Path

import pytest

from hybridsync.telemetry.events import EventLog, read_events
from hybridsync.telemetry.metrics import Metrics, MetricsLog, Staleness
from tests.telemetry.clocks import ManualClock

LINE = Metrics(
    units=64,
    examples=2048,
    phase=2,
    protocol="asp",
    loss=0.5,
    learning_rate=0.05,
    examples_per_sec=4000.0,
    staleness={"mean": 2.5, "p95": 4, "max": 5},
    workers={0: 1000.0, 3: 900.0},
    compute_secs={0: 0.75, 3: 0.875},
    read_secs={3: 0.5},
    wait_secs={0: 0.25, 3: 0.0},
    mfu={0: 0.41},
    sent_bytes={0: 640},
    applied_by={"a": {0: 8, 3: 7}},
    secs=1.5,
)


def test_a_line_holds_exactly_the_promised_fields(tmp_path: Path) -> None:
    clock = ManualClock()
    events = EventLog(tmp_path, clock)
    log = MetricsLog(tmp_path, events.elapsed)
    events.elapsed.begin(clock.monotonic())
    clock.advance(3.0)
    log.write(LINE)
    log.close()
    events.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "t": 3.0,
        "units": 64,
        "examples": 2048,
        "phase": 2,
        "protocol": "asp",
        "loss": 0.5,
        "learning_rate": 0.05,
        "examples_per_sec": 4000.0,
        "staleness": {"mean": 2.5, "p95": 4, "max": 5},
        "workers": {"0": 1000.0, "3": 900.0},
        "compute_secs": {"0": 0.75, "3": 0.875},
        "read_secs": {"3": 0.5},
        "wait_secs": {"0": 0.25, "3": 0.0},
        "mfu": {"0": 0.41},
        "sent_bytes": {"0": 640},
        "received_bytes": {},
        "applied_by": {"a": {"0": 8, "3": 7}},
        "secs": 1.5,
    }


def test_a_resume_continues_the_file_on_the_runs_own_time(tmp_path: Path) -> None:
    for _ in range(2):
        clock = ManualClock()
        events = EventLog(tmp_path, clock)
        log = MetricsLog(tmp_path, events.elapsed)
        events.elapsed.begin(clock.monotonic())
        clock.advance(4.0)
        events.write("run_started", phase=0)
        log.write(LINE)
        log.close()
        events.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["t"] for line in lines] == [4.0, 8.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"mean": 0.0, "p95": 0, "max": 0}),
        ([3], {"mean": 3.0, "p95": 3, "max": 3}),
        ([0] * 95 + [7] * 5, {"mean": 0.35, "p95": 0, "max": 7}),
        ([0] * 94 + [7] * 6, {"mean": 0.42, "p95": 7, "max": 7}),
    ],
)
def test_staleness_is_summed_up_by_mean_nearest_rank_p95_and_max(values: list[int], expected: dict[str, float]) -> None:
    counts = Staleness()
    counts.add(values)
    assert counts.summary() == pytest.approx(expected)


def test_staleness_counted_in_two_parts_is_summed_up_as_one() -> None:
    counts, later = Staleness(), Staleness()
    counts.add([9, 1])
    later.add([2])
    counts.add(later)
    assert counts.summary() == {"mean": 4.0, "p95": 9, "max": 9}


def test_the_time_of_a_resume_goes_on_where_the_later_of_both_files_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    for _ in range(2):
        events = EventLog(tmp_path, clock)
        log = MetricsLog(tmp_path, events.elapsed)
        events.elapsed.begin(clock.monotonic())
        clock.advance(1.0)
        events.write("run_started", phase=0)
        clock.advance(9.0)
        log.write(LINE)
        log.close()
        events.close()
    assert [event["t"] for event in read_events(tmp_path)] == [1.0, 11.0]
