"""Which units a process traces, and what becomes of a trace that fails."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from absl import logging

from hybridsync import TelemetryConfig
from hybridsync.worker.unit_tracer import UnitTracer
from tests.traces import units_of
from tests.trainers import mlp_trainer


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what the profiler is asked for."""
    made: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, **_: made.append(f"start {folder}"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: made.append("stop"))
    return made


def begin(tracer: UnitTracer, *units: int) -> None:
    for unit in units:
        tracer.begin(unit)


def test_a_trace_lasts_from_the_first_chosen_unit_to_one_beyond_them(calls: list[str]) -> None:
    tracer = UnitTracer(range(10, 13), Path("trace"))
    begin(tracer, 0, 9)
    assert calls == []
    begin(tracer, 11, 10, 8, 12)  # a unit of a lost worker comes late
    assert calls == ["start trace"]
    begin(tracer, 13)
    tracer.close()
    assert calls == ["start trace", "stop"]
    begin(tracer, 11)
    tracer.close()
    assert calls == ["start trace", "stop"], "one trace a process"


def test_a_process_that_skips_the_units_traces_nothing(calls: list[str]) -> None:
    tracer = UnitTracer(range(10, 12), Path("trace"))
    begin(tracer, 9, 12, 13)
    tracer.close()
    assert calls == []


def test_a_trace_that_runs_at_the_end_is_written(calls: list[str]) -> None:
    tracer = UnitTracer(range(2), Path("trace"))
    begin(tracer, 0)
    tracer.close()
    assert calls == ["start trace", "stop"]


@pytest.mark.parametrize(("call", "said"), [("start_trace", "are not traced"), ("stop_trace", "is lost")])
def test_a_profiler_that_fails_ends_nothing_and_is_named(
    calls: list[str], call: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("only one profile at a time")

    warnings: list[str] = []
    monkeypatch.setattr(jax.profiler, call, fail)
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    tracer = UnitTracer(range(2), Path("trace"))
    begin(tracer, 0, 1, 2)
    tracer.close()
    (warning,) = warnings
    assert said in warning and "0:2" in warning and "only one profile" in warning


@pytest.mark.parametrize("plan", ["bsp", "asp"])
def test_a_run_of_threads_leaves_one_trace_with_its_units(tmp_path: Path, plan: str) -> None:
    telemetry = TelemetryConfig(trace_units="8:16")
    result = mlp_trainer(plan, workload=32, workdir=tmp_path, telemetry=telemetry).fit()
    assert result.summary.exit == "completed"
    traced = units_of(tmp_path / "trace" / "workers")
    assert traced and traced <= {*range(32)}
    if plan == "bsp":  # four workers take a step's units together, and a step ends before the next one begins
        assert {*range(12, 16)} <= traced <= {*range(8, 16)}


def test_a_run_that_asks_for_no_trace_leaves_none(tmp_path: Path) -> None:
    mlp_trainer("bsp", workload=8, workdir=tmp_path).fit()
    assert not (tmp_path / "trace").exists()
