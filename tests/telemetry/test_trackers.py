"""The values that every experiment tracker gets; `tests/integration` has the real packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from hybridsync import Callback, MLflow, Optimizer, RunConfig, TelemetryConfig, WandB
from hybridsync.config import OptimizerConfig, ScheduleConfig, flattened, to_json
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.callbacks import CallbackRun
from hybridsync.telemetry.trackers import _Tracker, parameters
from hybridsync.training.optimizer import from_config
from tests.trainers import events_of, lines_of, mlp_trainer


class Following(_Tracker):
    """Keeps what it is to log, from its start on."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, float, Mapping[str, float]]] = []
        self.parameters: Mapping[str, Any] = {}

    def on_start(self, run: CallbackRun) -> None:
        self._is_started = True
        self.parameters = parameters(run)

    def _log(self, units: int, secs: float, figures: Mapping[str, float]) -> None:
        self.logged.append((units, secs, figures))


class Failing(Following):
    def on_start(self, run: CallbackRun) -> None:
        raise OSError("the tracker cannot be reached")


def test_trackers_are_handed_all_figures_under_the_names_that_people_look_for(tmp_path: Path) -> None:
    kept, failing, workdir = Following(), Failing(), tmp_path / "run"
    telemetry = TelemetryConfig(evaluate_units=16, log_secs=0.05)
    mlp_trainer("bsp:50%,asp", 64, workdir=workdir, telemetry=telemetry, callbacks=[kept, failing]).fit()
    logged = {tag: [(units, secs, found[tag]) for units, secs, found in kept.logged if tag in found] for tag in TAGS}
    metrics, evaluations = lines_of(workdir / "metrics.jsonl"), events_of(workdir, "evaluation")
    for name in ("loss", "learning_rate", "examples_per_sec"):
        told = [(line["units"], line["t"], line[name]) for line in metrics if line[name] is not None]
        assert logged[f"train/{name}"] == told != []
    for name in ("accuracy", "loss"):
        assert logged[f"eval/{name}"] == [(line["units"], line["t"], line[name]) for line in evaluations] != []
    assert [phase for _, _, phase in logged["phase"]] == [1, 2]
    (failed,) = events_of(workdir, "user_code_failed")
    assert failed["code"] == "the callback Failing.on_start" and failing.logged == []


def test_parameters_name_the_optimizer_that_trains_not_the_default_of_the_configuration() -> None:
    kept = Following()
    optimizer = Optimizer(optax.adamw, learning_rate=0.002, weight_decay=0.1, mask=np.ndim)
    mlp_trainer("asp", 8, callbacks=[kept], optimizer=optimizer).fit()
    assert kept.parameters["workload"] == 8
    found = dict(kept.parameters["optimizer"])
    assert "ndim" in found.pop("mask")
    assert found == {"name": "adamw", "learning_rate": 0.002, "weight_decay": 0.1}


def test_parameters_of_a_configured_optimizer_have_its_name_schedule_and_clip() -> None:
    schedule = ScheduleConfig(kind="cosine", warmup=0.1)
    configured = OptimizerConfig("adamw", learning_rate=0.001, weight_decay=0.01, clip=1.0, schedule=schedule)
    config = RunConfig(workload=8, plan="asp", optimizer=configured)
    shown = from_config(configured, 8, unit_size=4).shown_values(4, workload=8)
    found = flattened(parameters(CallbackRun(config, None, stop=print, say=print, optimizer=shown)))
    asked = {name: value for name, value in flattened(to_json(config)).items() if value is not None}
    assert {name: found[name] for name in asked if name not in EMPTY} == {
        name: value for name, value in asked.items() if name not in EMPTY
    }


EMPTY = ("optimizer.schedule.boundaries", "optimizer.schedule.factors")
TAGS = ("train/loss", "train/learning_rate", "train/examples_per_sec", "eval/accuracy", "eval/loss", "phase")


@pytest.mark.parametrize(("tracker", "package"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    tracker: type[Callback], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package} cannot be imported .*hybridsync\[{package}\]"):
        tracker()
