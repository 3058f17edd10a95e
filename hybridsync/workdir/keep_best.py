"""Callbacks that follow one figure of the evaluations: `KeepBest` keeps the best checkpoint, `StopAt` stops a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Literal

from hybridsync.core.errors import CheckpointError, ConfigError
from hybridsync.interfaces.callbacks import Callback, CallbackRun, Values
from hybridsync.storage.checkpoints.manifest import Damaged, read_manifest
from hybridsync.storage.durable import make_directory, read_file, sync_directory, write_durable
from hybridsync.telemetry.events import NO_FIGURES
from hybridsync.workdir.resuming import CHECKPOINTS

Mode = Literal["max", "min"]

BEST = "best"
BEST_FILE = "best.json"
"""Says which state it is: `metric` and `mode`, the metric's value under its name, and `units`, `step` and `t`."""
HELD = "partial"
"""Checkpoints whose evaluation has not come yet."""


class StopAt(Callback):
    """Stops the run for good once an evaluation's figure has come to a value.

        Trainer(task, optimizer, callbacks=[StopAt("accuracy", 0.95)], telemetry=TelemetryConfig(evaluate_units=100))

    Workers train while an evaluation is made, so the run ends at a later state than the one that was measured.

    Args:
      metric: figure of the evaluations, such as "accuracy".
      value: the run stops at it or beyond it.
      mode: "max" stops at `value` or more, "min" at `value` or less; None takes "min" where the metric's name contains
        "loss", else "max".

    Raises:
      ConfigError: `mode` is another word, or `value` is not a number.
    """

    needs_evaluations = True

    def __init__(self, metric: str, value: float, mode: Mode | None = None) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"StopAt takes a number to stop at, got {value!r}; correct it")
        self._metric, self._value, self._mode = metric, value, _mode(self, metric, mode)

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        figure = _figure(self, self._metric, evaluation)
        if figure is not None and (figure <= self._value if self._mode == "min" else figure >= self._value):
            run.stop(f"{self._metric} {figure:.4g} at unit {evaluation['units']:,}")


class KeepBest(Callback):
    """Keeps the checkpoint of the state with the best evaluation in `WORKDIR/best`, whatever `checkpoint.keep` is.

    The files are linked, not copied. `best/best.json` says which state it is. Orbax reads `best` as it reads
    `checkpoints`.

    Args:
      metric: figure of the evaluations, such as "accuracy".
      mode: "max" or "min"; None takes the least where the metric's name contains "loss", else the greatest.
    """

    needs_workdir = needs_evaluations = True

    def __init__(self, metric: str = "accuracy", mode: Mode | None = None) -> None:
        self._metric, self._mode = metric, _mode(self, metric, mode)
        self._value: float | None = None
        self._measured = -1  # units of the newest state that was measured
        self._workdir: Path | None = None

    def on_start(self, run: CallbackRun) -> None:
        assert run.workdir is not None
        self._workdir = run.workdir
        with contextlib.suppress(FileNotFoundError):  # else of an earlier session
            best = json.loads(read_file(run.workdir / BEST / BEST_FILE))
            if best.get("mode", self._mode) == self._mode:  # else it was the best in the other sense
                self._value = best.get(self._metric)

    def on_checkpoint(self, run: CallbackRun, checkpoint: Values) -> None:
        """Hold the checkpoint until its state is measured: newer ones may take its place before."""
        if self._workdir is not None and checkpoint["units"] > self._measured:
            _hold(self._workdir, checkpoint["units"])

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        if self._workdir is None:
            return
        value, self._measured = _figure(self, self._metric, evaluation), evaluation["units"]
        try:
            if value is not None and self._is_better(value):  # None is a number that is not finite
                self._keep(run, self._workdir, value, evaluation)
        finally:
            for held in _steps(self._workdir / BEST / HELD):
                if _units_of(held) <= self._measured:
                    shutil.rmtree(held, ignore_errors=True)

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        if self._workdir is not None:
            shutil.rmtree(self._workdir / BEST / HELD, ignore_errors=True)
            if self._value is None:
                run.say(f"KeepBest has kept no checkpoint: no evaluation had a finite {self._metric!r}")

    def _is_better(self, value: float) -> bool:
        if self._value is None:
            return True
        return value < self._value if self._mode == "min" else value > self._value

    def _keep(self, run: CallbackRun, workdir: Path, value: float, evaluation: Values) -> None:
        units = evaluation["units"]
        held = _step_of(workdir / BEST / HELD, units) or _hold(workdir, units)
        if held is None:
            raise CheckpointError(
                f"the checkpoint of unit {units:,}, with the best {self._metric} so far, is gone; raise checkpoint.keep"
            )
        best = workdir / BEST
        os.rename(held, best / held.name)
        sync_directory(best)
        told = {"metric": self._metric, "mode": self._mode, self._metric: value, "units": units}
        told |= {"step": int(held.name), "t": evaluation["t"]}
        write_durable(best / BEST_FILE, json.dumps(told) + "\n")
        self._value = value
        for step in _steps(best):  # last: a crash leaves one whole step at least
            if step.name != held.name:
                shutil.rmtree(step, ignore_errors=True)
        run.say(f"best {self._metric} so far, {value:.4g} at unit {units:,}: its checkpoint is kept in {best}")


def _mode(callback: Callback, metric: str, mode: Mode | None) -> Mode:
    """Return whether the greatest or the least value of a metric is the best."""
    if mode not in (None, "max", "min"):
        raise ConfigError(f"{type(callback).__name__} takes mode 'max' or 'min', got {mode!r}; correct it")
    return mode or ("min" if "loss" in metric else "max")


def _figure(callback: Callback, metric: str, evaluation: Values) -> float | None:
    """Return a metric of an evaluation, None where it is not finite."""
    if metric not in evaluation:
        figures = ", ".join(sorted(evaluation.keys() - NO_FIGURES))
        raise ConfigError(f"evaluations have no {metric!r}; name one of {figures} to {type(callback).__name__}")
    return evaluation[metric]


def _hold(workdir: Path, units: int) -> Path | None:
    """Link the checkpoint of a state among those that are held; returns it there, None where there is none."""
    step = _step_of(workdir / CHECKPOINTS, units)
    if step is None:
        return None
    held = make_directory(workdir / BEST / HELD) / step.name
    if not held.exists():
        partial = held.with_name(f".{step.name}")  # a copy that is broken off must not pass for a checkpoint
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(step, partial, copy_function=_link)
        os.rename(partial, held)
    return held


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _step_of(folder: Path, units: int) -> Path | None:
    """Return the newest step of a folder with so many units, None where there is none."""
    return next((step for step in reversed(_steps(folder)) if _units_of(step) == units), None)


def _steps(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*") if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def _units_of(step: Path) -> int:
    """Return the units of a step, -1 where it cannot be read: it may be removed this moment."""
    try:
        return read_manifest(step).units
    except (OSError, Damaged):
        return -1
