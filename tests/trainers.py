"""Trainers of small runs, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridsync import CheckpointConfig, TelemetryConfig, Trainer
from hybridsync.training.optimizer import Optimizer
from tests.tasks import UNIT_SIZE, mlp_task, momentum_sgd, plain_sgd, tally_task

NEVER = CheckpointConfig(secs=3600.0)
"""Saves at the start, at switches and at the end only."""


def tally_trainer(plan: str = "asp", workload: int = 64, **options: Any) -> Trainer:
    """Return a run whose parameters count how often each unit was applied."""
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, **options}
    return Trainer(tally_task(workload), plain_sgd(1.0), workload=workload, unit_size=1, plan=plan, **options)


def mlp_trainer(plan: str = "asp", workload: int = 64, optimizer: Optimizer | None = None, **options: Any) -> Trainer:
    """Return a run of a small MLP."""
    options = {"workers": 4, "progress": False, "checkpoint": NEVER, "unit_size": UNIT_SIZE, **options}
    return Trainer(mlp_task(), optimizer or momentum_sgd(0.02), workload=workload, plan=plan, **options)


def is_exact(final: Any) -> bool:
    """Tell whether a tally says that every unit was applied once and nothing else was."""
    return dict(final) == {"min_count": 1, "max_count": 1, "stray": 0}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(workdir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    return [event for event in lines_of(workdir / "events.jsonl") if kind in (None, event["kind"])]


LOGGED = TelemetryConfig(apply_log=True)
