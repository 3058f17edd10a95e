"""What a run of a search left behind tells of its ending."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.lab.tuning.run_ending import converged_in
from hybridsync.telemetry.events import EventLog
from tests.telemetry.clocks import ManualClock


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([(100, 0.5), (200, 0.75), (300, 0.75), (400, 0.75), (500, 0.75), (600, 0.75)], 0.75),
        ([(100, 0.75), (100, 0.75), (200, 0.75), (300, 0.75), (400, 0.75)], None),
        ([(100, 0.75), (200, 0.75), (300, None), (400, 0.75), (500, 0.75), (600, 0.75)], 0.75),
        ([], None),
    ],
    ids=["five alike", "a place measured twice", "one without an accuracy", "none"],
)
def test_where_a_run_converged_is_read_from_its_evaluations(
    tmp_path: Path, measured: list[tuple[int, float | None]], expected: float | None
) -> None:
    events = EventLog(tmp_path, ManualClock())
    for examples, accuracy in measured:
        events.write("evaluation", phase=1, examples=examples, accuracy=accuracy, loss=None)
    events.close()
    assert converged_in(tmp_path) == expected
