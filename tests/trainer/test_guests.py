"""The user's code in the chief ends no run: hooks, evaluations and what they return."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync import TelemetryConfig, Trainer
from hybridsync.training.task import Task
from tests.tasks import mlp_task, plain_sgd, tally_task
from tests.trainers import NEVER, events_of, is_exact, tally_trainer

WORKLOAD = 64
PLAN = "bsp:50%,asp"


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*told: Any) -> None:
        raise error

    return fail


def trainer_of(task: Task, workdir: Path, workload: int = WORKLOAD, unit_size: int = 1) -> Trainer:
    fields = {"workers": 2, "plan": PLAN, "checkpoint": NEVER, "telemetry": TelemetryConfig(evaluate_units=8)}
    return Trainer(task, plain_sgd(), workload=workload, unit_size=unit_size, workdir=workdir, progress=False, **fields)


@pytest.mark.parametrize("error", [ZeroDivisionError("the hook's own"), SystemExit(1)], ids=["error", "exit"])
def test_a_hook_that_raises_is_reported_and_the_run_completes(error, tmp_path):
    trainer, seen = tally_trainer(PLAN, WORKLOAD, workdir=tmp_path / "run"), []
    trainer.add_hook(raises(error), every=8)
    trainer.add_hook(lambda metrics: seen.append(metrics.units), every=8)
    result = trainer.fit()
    assert result.completed and is_exact(result.summary.final) and result.summary.units.rolled_back == 0
    assert seen and seen[-1] == WORKLOAD
    first, *_ = events_of(tmp_path / "run", "user_code_failed")
    assert type(error).__name__ in first["error"] and f"{__file__}, line " in first["error"]
    assert len(events_of(tmp_path / "run", "run_finished")) == 1


@pytest.mark.parametrize(
    "summarize",
    [
        *[raises(RuntimeError("the judge is out")), raises(SystemExit(2))],
        *[
            lambda *told: None,
            lambda *told: "good",
            lambda *told: np.ones(3),
            lambda *told: {"accuracy": {"top1": 1.0}},
        ],
    ],
    ids=["error", "exit", "none", "text", "array", "nested"],
)
def test_an_evaluation_that_fails_costs_its_figures_alone(summarize, tmp_path):
    task = dataclasses.replace(tally_task(WORKLOAD), summarize=summarize)
    result = trainer_of(task, tmp_path / "run").fit()
    assert result.completed and result.summary.units.rolled_back == 0 and result.accuracy is None
    assert (-np.asarray(result.state.params["tally"])[:WORKLOAD] == 1).all(), "each unit is applied once"
    *_, failed = events_of(tmp_path / "run", "user_code_failed")
    assert failed["code"] == f"the evaluation at unit {WORKLOAD}"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["final"] == {}


def test_a_loss_that_is_not_finite_is_a_figure_like_others(tmp_path):
    task = dataclasses.replace(tally_task(WORKLOAD), summarize=lambda *told: {"loss": float("nan"), "accuracy": 0.5})
    result = trainer_of(task, tmp_path / "run").fit()
    assert result.completed and result.accuracy == 0.5 and str(result.loss) == "nan"
    assert events_of(tmp_path / "run", "user_code_failed") == []


def test_an_evaluation_whose_held_out_examples_cannot_be_read_ends_nothing(tmp_path):
    class Unreadable:
        def __getattr__(self, name: str) -> Any:
            return getattr(mlp_task().source, name)

        def test_batches(self, size: int) -> Any:
            if threading.current_thread().name == "evaluate":  # the run's first look at it is no evaluation
                raise OSError("the test set is gone")
            return mlp_task().source.test_batches(size)

    result = trainer_of(dataclasses.replace(mlp_task(), source=Unreadable()), tmp_path / "run", unit_size=8).fit()
    assert result.completed and result.accuracy is None
    assert "the test set is gone" in events_of(tmp_path / "run", "user_code_failed")[0]["error"]


@pytest.mark.parametrize("where", ["hook", "evaluation"])
def test_an_interrupt_out_of_user_code_saves_and_the_next_run_completes(where, tmp_path):
    task = tally_task(4000)
    broken = dataclasses.replace(task, summarize=raises(KeyboardInterrupt())) if where == "evaluation" else task
    trainer = trainer_of(broken, tmp_path / "run", 4000)
    if where == "hook":
        trainer.add_hook(raises(KeyboardInterrupt()), every=8)
    stopped = trainer.fit().summary
    assert stopped.exit == "preempted" and stopped.units.rolled_back == 0
    result = trainer_of(task, tmp_path / "run", 4000).fit()
    assert result.completed and is_exact(result.summary.final) and result.summary.units.rolled_back == 0
