import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.switch_stalls import main
from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.stalls import percentile, read_stalls, switch_stalls


def _entered(phase: int, protocol: str, reason: str = "planned", units_per_update: int = 1) -> dict[str, Any]:
    return {
        "kind": "phase_entered",
        "phase": phase,
        "protocol": protocol,
        "reason": reason,
        "members": [0, 1],
        "units_per_update": units_per_update,
    }


def _span(name: str, cat: str, pid: int, phase: int, start: float, secs: float) -> dict[str, Any]:
    args = {"phase": phase, "units": 1}
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "pid": pid,
        "ts": start * 1e6,
        "dur": secs * 1e6,
        "args": args,
    }


def _steps(phase: int, start: float, count: int) -> list[dict[str, Any]]:
    """Two workers in lock-step, a step every 0.1 s."""
    return [
        _span("step", "sync", worker, phase, start + 0.1 * index, 0.1) for worker in (0, 1) for index in range(count)
    ]


def _applies(phase: int, start: float, count: int) -> list[dict[str, Any]]:
    """Two workers, 0.2 s a unit each, whose pushes arrive together."""
    return [
        _span("apply", "server", 9, phase, start + 0.2 * (index // 2) + 0.01 * (index % 2), 0.005)
        for index in range(count)
    ]


EVENTS = [_entered(1, "bsp", "start", 2), _entered(2, "asp"), _entered(3, "bsp", units_per_update=2)]


def test_a_stall_is_the_gap_between_two_phases_less_one_workers_unit_time() -> None:
    trace = _steps(1, 0.0, 10) + _applies(2, 1.5, 20) + _steps(3, 4.0, 10)
    there, back = switch_stalls(trace, EVENTS)
    # Last step ends at 1.0, first apply at 1.505; a worker's unit takes 0.2 s.
    assert (there.before, there.after) == ("bsp", "asp")
    assert there.unit_secs == pytest.approx(0.2)
    assert there.stall_secs == pytest.approx(0.305)
    # Last apply ends at 3.315, first step at 4.1; a step takes 0.1 s.
    assert back.unit_secs == pytest.approx(0.1)
    assert back.stall_secs == pytest.approx(0.685)
    assert back.event_stall_secs is None


def test_a_switch_events_own_figures_stand_beside_the_timelines() -> None:
    trace = _steps(1, 0.0, 10) + _applies(2, 1.5, 20)
    switch = {"kind": "switch", "phase": 2, "stall_secs": 0.31, "compile_secs": 1.25}
    (stall,) = switch_stalls(trace, [*EVENTS[:2], switch])
    assert (stall.event_stall_secs, stall.compile_secs) == (0.31, 1.25)


def test_a_resume_is_no_switch_and_a_seamless_one_costs_nothing() -> None:
    trace = _steps(1, 0.0, 10) + _steps(2, 1.0, 10) + _steps(3, 60.0, 10)
    events = [
        _entered(1, "bsp", "start", 2),
        _entered(2, "bsp", "planned", 2),
        _entered(3, "bsp", "resume", 2),
    ]
    (stall,) = switch_stalls(trace, events)
    assert (stall.phase, stall.stall_secs) == (2, pytest.approx(0.0, abs=1e-9))


def test_a_phase_without_updates_has_no_stall_to_read() -> None:
    assert switch_stalls(_steps(1, 0.0, 3), EVENTS) == []


@pytest.mark.parametrize(("share", "expected"), [(0.5, 10.0), (0.95, 19.0), (1.0, 20.0), (0.0, 1.0)])
def test_percentiles_are_values_that_occurred(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(20, 0, -1)], share) == expected


def test_the_command_prints_each_switch_and_the_percentiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _steps(1, 0.0, 10) + _applies(2, 1.5, 20) + _steps(3, 4.0, 10)
    (tmp_path / "timeline.json").write_text(json.dumps({"traceEvents": trace}))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "bsp->asp: 1 switches, stall p50 305.0 ms, p95 305.0 ms" in printed
    assert "all: 2 switches, stall p50 305.0 ms, p95 685.0 ms" in printed


def test_a_run_without_a_timeline_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkdirError, match=r"timeline\.json does not exist"):
        read_stalls(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "error: " in capsys.readouterr().err
