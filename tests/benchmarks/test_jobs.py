import json

import pytest

from benchmarks.jobs import Row, phase_rates, steady_rate
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.timeline import TIMELINE_FILE

MEMBERS = (0, 1)


def _run(workdir, ends):
    """A lock-step phase of two members whose steps ended at `ends`; both keep a span of each."""
    spans = [
        {
            "ph": "X",
            "name": "step",
            "cat": "sync",
            "pid": 10_000 + member,
            "ts": end * 1e6 - 5.0,
            "dur": 5.0,
            "args": {"phase": 1, "units": 2},
        }
        for member in MEMBERS
        for end in ends
    ]
    (workdir / TIMELINE_FILE).write_text(json.dumps({"traceEvents": spans}))
    common = {"wall": 0.0, "phase": 1}
    entered = {"t": 1.0, "kind": "phase_entered", "protocol": "bsp", "units": 0, "units_per_update": 2}
    ended = {"t": 21.0, "kind": "phase_ended", "units": 200}
    lines = [json.dumps({**event, **common}) + "\n" for event in (entered, ended)]
    (workdir / EVENTS_FILE).write_text("".join(lines))


def test_the_steady_rate_leaves_out_a_slow_start_and_end(tmp_path):
    _run(tmp_path, [2.0, *(10.0 + 0.1 * step for step in range(1, 99)), 21.0])

    (phase,) = phase_rates(tmp_path)

    assert (phase.protocol, phase.units) == ("bsp", 200)
    assert phase.steady == pytest.approx(20.0)
    assert phase.whole == pytest.approx(10.0)


def test_the_steady_rate_counts_updates_that_the_timeline_has_not_kept():
    ends = [0.5 * step for step in range(1000)]

    assert steady_rate(ends[:50] + ends[-50:], 1000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("figure", "bound", "met"),
    [(1.0, ">=", True), (0.9, ">=", False), (1.0, "<=", True), (1.1, "<=", False), (5.0, "", None)],
)
def test_a_row_is_met_by_its_bound(figure, bound, met):
    assert Row("x", figure, "s", bound, 1.0).met is met
