"""The checkpoint of the best evaluation is kept, and read as any other."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from hybridsync import Callback, CheckpointConfig, EmulationConfig, KeepBest, StopAt, TelemetryConfig, Trainer
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.callbacks import CallbackRun
from hybridsync.trainer import FitResult
from hybridsync.training.task import Task
from tests.doc_pages import blocks
from tests.tasks import plain_sgd, tally_task
from tests.trainers import events_of, goes_on_until_asked

UNITS = 64


def judged(task: Task, best_at: int, metric: str = "accuracy", sign: int = 1) -> Task:
    """Return a task whose states are the better the nearer their units are to `best_at`."""

    def summarize(params: Any, model_state: Any, applied: Any) -> dict[str, float]:
        return {metric: -sign * float(abs(len(applied) - best_at)), "other": float("nan")}

    return dataclasses.replace(task, summarize=summarize)


def trainer(workdir: Path | None, task: Task, callback: Callback) -> Trainer:
    fields: dict[str, Any] = {"workers": 2, "checkpoint": CheckpointConfig(secs=3600.0, keep=1)}
    telemetry = TelemetryConfig(evaluate_units=8)
    options: dict[str, Any] = {"workload": UNITS, "unit_size": 1, "plan": "asp", "progress": False}
    emulation = EmulationConfig(compute_secs=0.05)
    options |= {"telemetry": telemetry, "emulation": emulation, "workdir": workdir, "callbacks": [callback], **fields}
    return Trainer(task, plain_sgd(), **options)


def fit(workdir: Path | None, callback: Callback, task: Task) -> FitResult:
    return trainer(workdir, task, callback).fit()


def restored(best: Path) -> Any:
    """Return the state that the page about checkpoints restores, from the folder `best`."""
    code = blocks("docs/read_checkpoint.md")[0].replace("RUN/checkpoints", str(best))
    names: dict[str, Any] = {"ocp": ocp}
    exec(code, names)  # noqa: S102
    return names["state"]


@pytest.mark.parametrize(
    ("metric", "mode", "sign"),
    [("accuracy", None, 1), ("validation_loss", None, -1), ("regret", "min", -1)],
    ids=["greatest", "loss", "least"],
)
def test_the_best_checkpoint_is_kept_and_read_as_the_page_says(metric: str, mode: Any, sign: int, tmp_path) -> None:
    workdir = tmp_path / "run"
    assert fit(workdir, KeepBest(metric, mode), judged(tally_task(UNITS), 30, metric, sign)).completed
    assert events_of(workdir, "user_code_failed") == []
    measured = {event["units"]: event[metric] for event in events_of(workdir, "evaluation")}
    best = (min if sign < 0 else max)(measured, key=lambda units: measured[units])
    assert 0 < best < UNITS, "another checkpoint than the newest, which is kept anyway"
    told = json.loads((workdir / "best" / "best.json").read_text())
    assert (told["units"], told[metric]) == (best, measured[best])
    state = restored(workdir / "best")
    assert int(state["counters"]["units"]) == best == -np.asarray(state["params"]["tally"]).sum()
    assert [path.name for path in (workdir / "best").glob("*") if path.is_dir()] == [str(told["step"])]


def test_a_run_that_goes_on_keeps_the_best_of_all_its_sessions(tmp_path: Path) -> None:
    workdir, task = tmp_path / "run", judged(tally_task(UNITS), 20)
    kept, has_40 = threading.Event(), threading.Event()

    class Noted(KeepBest):
        def on_evaluation(self, run: CallbackRun, evaluation: Mapping[str, Any]) -> None:
            super().on_evaluation(run, evaluation)
            if (workdir / "best" / "best.json").exists():
                kept.set()

    first = trainer(workdir, task, Noted())
    first.add_hook(lambda metrics: has_40.set() if metrics.units >= 40 else None, every=1)
    stopping = threading.Thread(target=lambda: has_40.wait(60) and kept.wait(60) and first.preempt())
    stopping.start()
    with goes_on_until_asked(first, 40):
        assert first.fit().summary.exit == "preempted"
    stopping.join()
    before = json.loads((workdir / "best" / "best.json").read_text())
    assert (before["metric"], before["mode"]) == ("accuracy", "max")
    assert fit(workdir, KeepBest(), task).completed
    assert json.loads((workdir / "best" / "best.json").read_text()) == before


@pytest.mark.parametrize(
    ("metric", "value", "mode", "sign"),
    [("accuracy", -4, None, 1), ("validation_loss", 4, None, -1), ("regret", 4.0, "min", -1)],
)
def test_a_run_stops_at_the_first_figure_that_has_come_to_the_value(metric, value, mode, sign, tmp_path: Path) -> None:
    stop_at, workdir = StopAt(metric, value, mode), tmp_path / "run"
    result = fit(workdir, stop_at, judged(tally_task(UNITS), 30, metric, sign))
    assert result.summary.exit == "stopped"
    reached = [each for each in events_of(workdir, "evaluation") if each[metric] * sign >= -4]
    first = reached[0]
    assert result.summary.stop_reason == f"{metric} {first[metric]:.4g} at unit {first['units']}"


def test_a_figure_to_stop_at_is_refused_by_name(tmp_path: Path) -> None:
    for value in ("0.9", float("nan"), True):
        with pytest.raises(ConfigError, match=r"StopAt takes a number to stop at, got "):
            StopAt("accuracy", value)  # pyright: ignore[reportArgumentType]
    assert fit(tmp_path / "run", StopAt("acc", 0), judged(tally_task(UNITS), 30)).completed
    failed = events_of(tmp_path / "run", "user_code_failed")[0]["error"]
    assert "evaluations have no 'acc'; name one of accuracy, loss, other to StopAt" in failed
    with pytest.raises(ConfigError, match="the callback StopAt needs evaluations, and the task has no evaluate: give"):
        fit(None, StopAt("accuracy", 0), dataclasses.replace(tally_task(UNITS), summarize=None, evaluate=None))


@pytest.mark.parametrize(
    ("mode", "figure", "is_better"),
    [("max", 0.8, False), ("max", 0.95, True), (None, 0.8, False), ("min", 0.8, True), ("min", 0.95, True)],
)
def test_a_best_of_the_other_mode_is_not_compared_with(tmp_path: Path, mode: Any, figure: float, is_better) -> None:
    (tmp_path / "best").mkdir()
    told = {"metric": "accuracy", "mode": "max", "accuracy": 0.9, "units": 8, "step": 1, "t": 1.0}
    (tmp_path / "best" / "best.json").write_text(json.dumps(told))
    keep_best, run = KeepBest("accuracy", mode), SimpleNamespace(workdir=tmp_path)
    keep_best.on_start(run)  # pyright: ignore[reportArgumentType]
    assert keep_best._is_better(figure) == is_better


def test_what_cannot_be_kept_is_one_line_and_costs_the_run_nothing(tmp_path: Path) -> None:
    assert fit(tmp_path / "run", KeepBest("acuracy"), judged(tally_task(UNITS), 30)).completed
    failed, *again = events_of(tmp_path / "run", "user_code_failed")
    assert "evaluations have no 'acuracy'; name one of accuracy, loss, other" in failed["error"]
    num_evaluations = len(events_of(tmp_path / "run", "evaluation"))  # on a busy machine places are passed over
    assert [event["times"] for event in again] == [num_evaluations] * (num_evaluations > 1)
    with pytest.raises(ConfigError, match="the callback KeepBest needs a workdir, and the run has none; name one"):
        trainer(None, judged(tally_task(UNITS), 30), KeepBest())
    assert fit(tmp_path / "nan", KeepBest("other"), judged(tally_task(UNITS), 30)).completed
    assert not (tmp_path / "nan" / "best" / "best.json").exists(), "a figure that is not finite is never the best"
    with pytest.raises(ConfigError, match="takes mode 'max' or 'min', got 'most'"):
        KeepBest("accuracy", "most")  # pyright: ignore[reportArgumentType]
