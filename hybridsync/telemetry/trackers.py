"""Callbacks that show a run in experiment trackers: `WandB` (the `wandb` extra) and `MLflow` (the `mlflow` extra).

The tags are those of TensorBoard: `train/loss`, `train/learning_rate`, `eval/accuracy`; the axis is units. A run that
is resumed goes on in the tracker's same run.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from hybridsync.config import flattened, to_json
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.extras import imported
from hybridsync.interfaces.callbacks import Callback, CallbackRun, Values
from hybridsync.telemetry.events import NO_FIGURES
from hybridsync.telemetry.summary import read_identity

_MOST_CHARS = 500
"""Characters of a parameter that MLflow's servers have taken in all versions."""


def parameters(run: CallbackRun) -> dict[str, Any]:
    """Return the run's configuration as JSON holds it, with the optimizer that trains.

    That of the configuration is the default where `Trainer` was given an optimizer.
    """
    return {**to_json(run.config), "optimizer": dict(run.optimizer)}


class _Tracker(Callback):
    """Hands figures on to `_log` until the run's end, once it is known by the tracker."""

    _is_started = False

    def on_metrics(self, run: CallbackRun, metrics: Values) -> None:
        names = ("loss", "learning_rate", "examples_per_sec")
        figures = {f"train/{name}": metrics[name] for name in names}
        figures |= {f"train/staleness_{name}": value for name, value in metrics["staleness"].items()}
        self._take(metrics, figures)

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        figures = {f"eval/{name}": value for name, value in evaluation.items() if name not in NO_FIGURES}
        self._take(evaluation, figures)

    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        self._take(phase, {"phase": phase["phase"]})

    def _take(self, line: Values, figures: Mapping[str, float | None]) -> None:
        known = {name: value for name, value in figures.items() if value is not None}
        if self._is_started and known:  # else its `on_start` has failed, and was reported
            self._log(line["units"], line["t"], known)

    @abstractmethod
    def _log(self, units: int, secs: float, figures: Mapping[str, float]) -> None:
        """Log figures of the state at `units`, at `secs` of the run's time."""


class WandB(_Tracker):
    """Shows the run in Weights & Biases; with `mode="offline"`, or `WANDB_MODE=offline`, in files of the workdir.

    Args:
      project: project of the run; None leaves it to W&B.
      **init: further arguments of `wandb.init`.

    Raises:
      ConfigError: wandb is not installed.
    """

    def __init__(self, project: str | None = None, **init: Any) -> None:
        self._wandb, self._init = imported("wandb", "wandb"), {"project": project, **init}
        self._run: Any = None

    def on_start(self, run: CallbackRun) -> None:
        options: dict[str, Any] = {"config": parameters(run), "settings": {"console": "off", "silent": True}}
        if run.workdir is not None:
            known = read_identity(run.workdir)
            options |= {"dir": str(run.workdir), "name": run.workdir.name, "id": known, "resume": "allow"}
        self._run = self._wandb.init(**{**options, **self._init})
        self._run.define_metric("units")
        self._run.define_metric("*", step_metric="units")  # evaluations come late: W&B's own steps may not go back
        self._is_started = True

    def _log(self, units: int, secs: float, figures: Mapping[str, float]) -> None:
        self._run.log({"units": units, "secs": secs, **figures})

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        if self._is_started:
            ended = {name: summary[name] for name in ("exit", "seconds", "plan", "stop_reason", "error")}
            self._run.summary.update({**ended, **{f"final/{name}": value for name, value in summary["final"].items()}})
            self._run.finish(exit_code=int(summary["exit"] == "failed"))


class MLflow(_Tracker):
    """Shows the run in MLflow.

    Args:
      experiment: name of the experiment, which is made where there is none.
      tracking_uri: address of the server; None leaves it to MLflow (`MLFLOW_TRACKING_URI`).
      run_name: name of the run; None takes the workdir's.

    Raises:
      ConfigError: mlflow is not installed.
    """

    def __init__(
        self, experiment: str = "hybridsync", tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        self._mlflow = imported("mlflow", "mlflow")
        self._experiment, self._tracking_uri, self._run_name = experiment, tracking_uri, run_name
        self._client: Any = None
        self._run_id = ""

    def on_start(self, run: CallbackRun) -> None:
        self._client = client = self._mlflow.MlflowClient(self._tracking_uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment_id = client.create_experiment(self._experiment) if known is None else known.experiment_id
        identity = read_identity(run.workdir) if run.workdir is not None else None
        earlier = client.search_runs([experiment_id], f"tags.hybridsync_run = '{identity}'") if identity else []
        if earlier:
            self._run_id = earlier[0].info.run_id
            client.set_terminated(self._run_id, "RUNNING")
        else:
            name = self._run_name or (run.workdir.name if run.workdir is not None else None)
            tags = {"hybridsync_run": identity} if identity else {}
            self._run_id = client.create_run(experiment_id, tags=tags, run_name=name).info.run_id
            for key, value in flattened(parameters(run)).items():
                client.log_param(self._run_id, key, str(value)[:_MOST_CHARS])
        self._is_started = True

    def _log(self, units: int, secs: float, figures: Mapping[str, float]) -> None:
        now = int(SYSTEM_CLOCK.wall() * 1000)
        metric = self._mlflow.entities.Metric
        lines = [metric(name, value, now, units) for name, value in {**figures, "secs": secs}.items()]
        self._client.log_batch(self._run_id, metrics=lines)

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        if self._is_started:
            self._client.set_tag(self._run_id, "exit", summary["exit"])
            final = {name: value for name, value in summary["final"].items() if value is not None}
            for name, value in {**final, "seconds": summary["seconds"]}.items():
                if math.isfinite(value):
                    self._client.log_metric(self._run_id, f"final/{name}", value)
            ends = {"failed": "FAILED", "preempted": "KILLED", "restarting": "KILLED"}
            self._client.set_terminated(self._run_id, ends.get(summary["exit"], "FINISHED"))
