"""Reads how a run of a search ended from what it left behind."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridsync.chief.bad_units import DIVERGED
from hybridsync.config import RunConfig
from hybridsync.config.resume_rules import check_resumable
from hybridsync.core.errors import ConfigError, HybridSyncError
from hybridsync.lab.tuning.converged_accuracy import converged
from hybridsync.lab.tuning.search import Made
from hybridsync.telemetry.events import read_events
from hybridsync.telemetry.summary import read_config, read_summary


def run_folder(plan: str, seed: int) -> str:
    """Return the name of a run's workdir.

    >>> run_folder("bsp:6.25%,asp", 3)
    'bsp-6.25-asp-seed3'
    """
    plain = re.sub(r"[^\w.=]+", "-", plan)
    return f"{plain}-seed{seed}"


def cluster_of(*values: object) -> str:
    """Return a digest of what a cluster is, by the text of its values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def ended(workdir: Path, config: RunConfig) -> Made | None:
    """Return how the run in a workdir ended, None where it did not complete and did not diverge.

    Raises:
      ConfigError: its task measures no accuracy, or a callback stopped it.
      ResumeError: it is a run of another job than `config` describes.
      WorkdirError: its summary or its configuration cannot be read.
    """
    summary, begun = read_summary(workdir), read_config(workdir)
    if begun is not None:
        check_resumable(begun["config"], config)
    if summary is None:
        return None
    if summary["exit"] == "completed":
        return Made(accuracy_of(summary["final"]), float(summary["seconds"]), converged_in(workdir))
    if summary["exit"] == "stopped":
        raise ConfigError(
            f"the run in {workdir} was stopped by a callback ({summary.get('stop_reason')}); a search compares whole "
            "runs: leave run.stop out of callbacks(config)"
        )
    if summary["exit"] == "failed" and (summary.get("error") or "").startswith(DIVERGED):
        return Made(None, float(summary["seconds"]))
    return None


def accuracy_of(final: Mapping[str, Any]) -> float | None:
    """Return the accuracy that a run ended with; None where it is no number: the model is not finite.

    Raises:
      ConfigError: the task measures none.
    """
    if "accuracy" not in final:
        raise ConfigError(
            f"the task measures {', '.join(final) or 'nothing'} at a run's end, no accuracy; a switch point is "
            "searched by accuracy: hold examples out, and give the task a metric of that name"
        )
    value = float(final["accuracy"])
    return value if math.isfinite(value) else None


def converged_in(workdir: Path) -> float | None:
    """Return the accuracy at which the run in a workdir converged; None where its evaluations do not tell.

    Raises:
      WorkdirError: its events cannot be read.
    """
    by_examples = {  # a run that went back to a checkpoint measures the same place again
        event["examples"]: float(event["accuracy"])
        for event in read_events(workdir, "evaluation")
        if event["accuracy"] is not None
    }
    return converged([accuracy for _, accuracy in sorted(by_examples.items())])


def end_of(workdir: Path, config: RunConfig) -> Made:
    """Return how a run ended of which something is known to have been written down.

    Raises:
      HybridSyncError: nothing was.
    """
    made = ended(workdir, config)
    if made is None:
        told = f"the run with seed {config.seed} in {workdir} diverged"
        raise HybridSyncError(f"{told} and left no summary; search again")
    return made
