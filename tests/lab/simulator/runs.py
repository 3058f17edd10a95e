"""Runs to simulate: of the tally, whose task is compiled in no time and of which only the sizes count."""

from __future__ import annotations

from pathlib import Path

from hybridsync.config import EmulationConfig, RunConfig, TelemetryConfig
from hybridsync.training.run import Run
from tests.tasks import plain_sgd, tally_task

PLAN = "bsp:25%,asp"


def tally_run(plan: str = PLAN, *, workload: int = 400, workers: int = 4, stragglers: str = "", seed: int = 0) -> Run:
    """Return a run of the tally."""
    config = RunConfig(
        workload=workload,
        unit_size=1,
        workers=workers,
        plan=plan,
        seed=seed,
        emulation=EmulationConfig(stragglers=stragglers),
        telemetry=TelemetryConfig(log_secs=0.5),
    )
    return Run(config, tally_task(workload), plain_sgd(), None, Path("configs/tally.py"))
