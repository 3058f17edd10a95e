"""What every protocol owes on every runtime; a new one of either is tested here without a line of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridsync import protocols
from hybridsync.checkpoint import CheckpointStore
from hybridsync.config import apply_overrides, load_config
from hybridsync.layout import Layout
from hybridsync.protocols.base import Outer
from hybridsync.state import abstract_state
from tests.compilations import count_compilations
from tests.conformance.drivers import DRIVERS, Summary, counting
from tests.trainers import events_of, is_exact, lines_of

ROOT = Path(__file__).resolve().parents[2]
DIGITS, TALLY = str(ROOT / "configs/digits_mlp.py"), str(ROOT / "configs/tally.py")
WORKERS = 4
PROGRAMS = ("_unit_gradient", "_total", "_update_program")

Run = Callable[..., tuple[Summary, Path]]


@pytest.fixture(params=sorted(protocols.REGISTRY))
def name(request: pytest.FixtureRequest) -> str:
    """Name each registered protocol."""
    return request.param


@pytest.fixture(params=sorted(DRIVERS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a configuration on each runtime; returns its summary and workdir."""

    def go(config_path: str, plan: str, *overrides: str) -> tuple[Summary, Path]:
        workdir = tmp_path / "run"
        given = [f"plan={plan}", f"workers={WORKERS}", "checkpoint.secs=3600.0", *overrides]
        return DRIVERS[request.param](config_path, given, workdir), workdir

    return go


def test_the_loss_falls(run, name):
    summary, workdir = run(DIGITS, f"{name}:10%,{name}", "workload=600", "unit_size=16", "optimizer.learning_rate=0.01")
    early, *_, late = [event["loss"] for event in events_of(workdir, "evaluation")]
    assert late < 0.7 * early
    assert any(line["loss"] is not None for line in lines_of(workdir / "metrics.jsonl"))
    assert summary["final"]["accuracy"] >= 0.85


@pytest.mark.parametrize("plan", ["{0}", "bsp:30%,{0}", "{0}:30%,bsp", "asp:30%,{0}:30%,bsp:20%,{0}"])
def test_every_unit_is_applied_exactly_once(run, name, plan):
    summary, _ = run(TALLY, plan.format(counting(name)), "workload=203")
    assert summary["exit"] == "completed"
    assert is_exact(summary["final"])
    units: dict[str, Any] = summary["units"]
    assert units["applied"] == units["workload"] == 203
    assert units["issued"] == units["applied"] + units["dropped"] + units["outstanding"]
    assert units["outstanding"] == units["rolled_back"] == 0


def test_staleness_is_reported_where_there_is_any(run, name):
    summary, workdir = run(TALLY, name, "workload=80", "emulation.compute_secs=0.01", "telemetry.log_secs=0.05")
    staleness = summary["staleness"]
    assert all(0 <= staleness[of] <= staleness["max"] for of in ("mean", "p95"))  # few stale ones: a mean above p95
    protocol = protocols.parse(name)
    bound = protocol.staleness_bound(WORKERS) if protocol.path.is_served else 0
    assert staleness["max"] <= (math.inf if bound is None else bound)
    cautious = bound is not None and bound <= 1
    assert cautious or staleness["max"] > 0, "so many equal workers are never in step by themselves"
    lines = lines_of(workdir / "metrics.jsonl")
    assert max(line["staleness"]["max"] for line in lines) <= staleness["max"]


def test_a_second_phase_and_a_second_step_compile_nothing(run, name):
    """Programs are compiled once for the whole run; on other runtimes a switch says what it compiled."""
    with count_compilations() as compiled:
        summary, workdir = run(TALLY, f"{name}:30%,bsp:20%,{name}:20%,asp:10%,{name}", "workload=100")
    assert not compiled or any(PROGRAMS[0] in fun for fun in compiled), "what this process compiles has other names"
    for program in PROGRAMS:
        assert len([fun for fun in compiled if program in fun]) <= 1
    assert len(summary["switches"]) == 4
    first = {}
    for event in events_of(workdir, "phase_entered"):
        first.setdefault(event["protocol"], event["epoch"])
    again = [s for s in summary["switches"] if s["to"] == name and s["epoch"] != first[name]]
    assert again
    assert all(switch["compile_secs"] == 0 for switch in again)


def test_the_state_keeps_its_shapes_and_types(run, name):
    overrides = ("workload=40", "unit_size=8")
    _, workdir = run(DIGITS, f"{name}:50%,bsp:25%,{name}", *overrides)
    loaded = load_config(DIGITS)
    config = apply_overrides(loaded.config, overrides)
    change = protocols.parse(name).change(WORKERS)
    kept = (change.name,) if isinstance(change, Outer) else ()
    expected = Layout.of(abstract_state(loaded.module.task(config), loaded.module.optimizer(config), kept))
    store = CheckpointStore(workdir / "checkpoints")
    try:
        restored = store.newest()
    finally:
        store.close()
    assert restored is not None
    assert restored.units == 40
    found = Layout.of(restored.state)
    assert {leaf.path: str(leaf) for leaf in found.leaves} == {leaf.path: str(leaf) for leaf in expected.leaves}


def test_a_captured_state_is_the_one_the_next_phase_starts_from(run, name):
    _, workdir = run(DIGITS, f"bsp:25%,{name}:50%,bsp", "workload=64", "unit_size=8")
    entered, ended = events_of(workdir, "phase_entered"), events_of(workdir, "phase_ended")
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    assert [event["units"] for event in entered] == [0, 16, 48]
