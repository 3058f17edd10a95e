"""The use of a worker's devices: what a unit takes at their peak, without another compilation, and in metrics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridsync.devices import peaks
from hybridsync.protocols.base import FLOAT32
from hybridsync.telemetry.metrics import read_metrics
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.state import initial_state
from hybridsync.worker.utilisation import peak_secs
from tests.compilations import count_compilations
from tests.tasks import UNIT_SIZE, mlp_task, plain_sgd, programs_of
from tests.trainers import mlp_trainer


@pytest.fixture
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give CPU devices a peak, of 1 MFLOP a second."""
    monkeypatch.setitem(peaks._TERAFLOPS, "cpu", 1e-6)


@pytest.mark.parametrize("wire", [FLOAT32, "bfloat16"])
def test_a_unit_takes_its_operations_at_the_peak_and_nothing_is_compiled_for_it(known_peak: None, wire: str) -> None:
    programs, state = programs_of(mlp_task(), plain_sgd(0.1)), initial_state(mlp_task(), plain_sgd(0.1), 0)
    parameters = Parameters(state.params, state.model_state)
    contribution = jax.block_until_ready(programs.gradient(parameters, 3, wire))
    batch = programs.batch(4)
    with count_compilations() as compiled:
        secs = peak_secs(programs, contribution, parameters, batch, wire=wire, worker=0)
    assert compiled == []
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params) if leaf.ndim == 2)
    at_least = 4 * UNIT_SIZE * weights / 1e6  # forward, and backward to the weights
    assert at_least < secs < 3 * at_least


def test_of_a_device_without_a_known_peak_xla_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = programs_of(mlp_task(), plain_sgd(0.1))
    monkeypatch.setattr(programs, "gradient_flops", lambda *_: pytest.fail("a CPU has no known peak"))
    assert peak_secs(programs, {"w": jnp.ones(2)}, Parameters({}, {}), {}, wire=FLOAT32, worker=0) == 0.0


def test_a_backend_that_counts_nothing_ends_no_run(known_peak: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> float:
        raise NotImplementedError("no cost analysis here")

    programs = programs_of(mlp_task(), plain_sgd(0.1))
    monkeypatch.setattr(programs, "gradient_flops", fail)
    assert peak_secs(programs, {"w": jnp.ones(2)}, Parameters({}, {}), {}, wire=FLOAT32, worker=0) == 0.0


@pytest.mark.parametrize("plan", ["bsp", "asp"])
def test_metrics_have_the_use_of_each_workers_device_where_its_peak_is_known(
    known_peak: None, tmp_path: Path, plan: str
) -> None:
    mlp_trainer(plan, workload=64, workers=2, workdir=tmp_path).fit()
    lines = read_metrics(tmp_path)
    assert {worker for line in lines for worker in line["mfu"]} == {"0", "1"}
    assert all(share > 0 for line in lines for share in line["mfu"].values())


def test_metrics_of_a_run_on_cpu_devices_say_nothing_of_it(tmp_path: Path) -> None:
    mlp_trainer("asp", workload=16, workers=2, workdir=tmp_path).fit()
    assert all(line["mfu"] == {} for line in read_metrics(tmp_path))
