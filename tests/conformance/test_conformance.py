"""What every protocol owes on every runtime; a new one of either is tested here without a line of its own.

A run is shared by the tests that read it: two a protocol and runtime.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hybridsync import protocols
from hybridsync.config import apply_overrides, load_config, restore_values
from hybridsync.lab.replay.logged_run import read_record
from hybridsync.lab.replay.verdict import replay
from hybridsync.protocols.base import Outer
from hybridsync.runtime.agent.fork_server import ForkServerClient
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.run import Run
from hybridsync.training.state import abstract_state
from tests.compilations import count_compilations
from tests.conformance.drivers import DRIVERS, Summary, counting
from tests.trainers import events_of, is_exact, lines_of

ROOT = Path(__file__).resolve().parents[2]
DIGITS, TALLY = str(ROOT / "configs/digits_mlp.py"), str(ROOT / "configs/tally.py")
WORKERS = 4
PROGRAMS = ("_unit_gradient", "_total", "_update_program")
SIZES = ("workload=600", "unit_size=16")


@dataclass(frozen=True)
class Done:
    """A run that has ended."""

    name: str
    spec: str
    runtime: str
    summary: Summary
    workdir: Path
    compiled: list[str]


@pytest.fixture(scope="module", params=sorted(DRIVERS))
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=sorted(protocols.REGISTRY))
def name(request: pytest.FixtureRequest) -> str:
    """Name each registered protocol."""
    return request.param


def run(runtime: str, name: str, config_path: str, spec: str, plan: str, workdir: Path, *overrides: str) -> Done:
    given = [f"plan={plan.format(spec)}", f"workers={WORKERS}", "checkpoint.secs=3600.0", *overrides]
    with count_compilations() as compiled:
        summary = DRIVERS[runtime](config_path, given, workdir)
    assert summary["exit"] == "completed"
    return Done(name, spec, runtime, summary, workdir, list(compiled))


@pytest.fixture(scope="module")
def trained(runtime: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A model trained under the protocol, with a little lock-step between."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    plan = "{0}:10%,bsp:5%,{0}"
    values = (
        "optimizer.learning_rate=0.01",
        "model.dropout=0.1",
        "telemetry.apply_log=true",
        "telemetry.log_secs=0.05",
    )
    return run(runtime, name, DIGITS, name, plan, workdir, *SIZES, *values)


@pytest.fixture(scope="module")
def counted(runtime: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A count of units: the protocol first, last, and switched from and to by servers and by lock-step."""
    workdir = tmp_path_factory.mktemp("counted") / "run"
    plan = "{0}:20%,asp:20%,{0}:20%,bsp:20%,{0}"
    return run(runtime, name, TALLY, counting(name), plan, workdir, "workload=203")


def test_the_loss_falls(trained: Done) -> None:
    early, *_, late = [event["loss"] for event in events_of(trained.workdir, "evaluation")]
    assert late < 0.7 * early
    assert any(line["loss"] is not None for line in lines_of(trained.workdir / "metrics.jsonl"))
    assert trained.summary["final"]["accuracy"] >= 0.85


def test_the_state_keeps_its_shapes_and_types(trained: Done) -> None:
    loaded = load_config(DIGITS)
    config = apply_overrides(loaded.config, SIZES)
    change = protocols.parse(trained.name).change(WORKERS)
    kept = (change.name,) if isinstance(change, Outer) else ()
    expected = Layout.of(abstract_state(loaded.module.task(config), loaded.module.optimizer(config), kept))
    store = CheckpointStore(trained.workdir / "checkpoints")
    try:
        restored = store.newest()
    finally:
        store.close()
    assert restored is not None
    assert restored.units == 600
    found = Layout.of(restored.state)
    assert {leaf.path: str(leaf) for leaf in found.leaves} == {leaf.path: str(leaf) for leaf in expected.leaves}


def test_a_captured_state_is_the_one_the_next_phase_starts_from(trained: Done) -> None:
    entered, ended = events_of(trained.workdir, "phase_entered"), events_of(trained.workdir, "phase_ended")
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    assert [event["units"] for event in entered] == [0, 60, 90]


def test_the_apply_log_replays_bit_for_bit(trained: Done) -> None:
    record, loaded = read_record(trained.workdir), load_config(DIGITS)
    config = restore_values(loaded.config, record.config)
    computed = Run(config, loaded.module.task(config), loaded.module.optimizer(config), trained.workdir, Path(DIGITS))
    command = [sys.executable, "-m", "launch.replay", str(trained.workdir)]
    with contextlib.closing(ForkServerClient(command, trained.workdir / "replay-seed.log")) as fork_server_client:
        found = replay(record, computed, fork_server_client)
    assert found.difference is None, found
    assert "bit for bit" in str(found)


def test_every_unit_is_applied_exactly_once(counted: Done) -> None:
    assert is_exact(counted.summary["final"])
    units: dict[str, Any] = counted.summary["units"]
    assert units["applied"] == units["workload"] == 203
    assert units["issued"] == units["applied"] + units["dropped"] + units["outstanding"]
    assert units["outstanding"] == units["rolled_back"] == 0


def test_a_second_phase_and_a_second_step_compile_nothing(counted: Done) -> None:
    """Programs are compiled once for the whole run; on other runtimes a switch says what it compiled."""
    compiled, switches = counted.compiled, counted.summary["switches"]
    assert not compiled or any(PROGRAMS[0] in fun for fun in compiled), "what this process compiles has other names"
    for program in PROGRAMS:
        assert len([fun for fun in compiled if program in fun]) <= 1
    assert len(switches) == 4
    first = {}
    for event in events_of(counted.workdir, "phase_entered"):
        first.setdefault(event["protocol"], event["phase"])
    again = [s for s in switches if s["to"] == counted.spec and s["phase"] != first[counted.spec]]
    assert again
    assert all(switch["compile_secs"] == 0 for switch in again)


def test_staleness_is_reported_where_there_is_any(trained: Done) -> None:
    staleness = trained.summary["staleness"]
    assert all(0 <= staleness[of] <= staleness["max"] for of in ("mean", "p95"))  # few stale ones: a mean above p95
    protocol = protocols.parse(trained.name)
    bound = protocol.staleness_bound(WORKERS) if protocol.mode.is_served else 0
    assert staleness["max"] <= (math.inf if bound is None else bound)
    cautious = bound is not None and bound <= 1
    assert cautious or staleness["max"] > 0, "so many equal workers are never in step by themselves"
    lines = lines_of(trained.workdir / "metrics.jsonl")
    assert max(line["staleness"]["max"] for line in lines) <= staleness["max"]
