"""HybridSync: train one JAX/Flax model on many workers, and change how they synchronise meanwhile.

The names below load on first use (PEP 562): importing the package loads no JAX, so a supervisor or a
program that only reads a plan stays light.

    >>> import hybridsync
    >>> hybridsync.Plan.parse("bsp:12.5%,asp")  # doctest: +ELLIPSIS
    Plan(...)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridsync.config import (
        CheckpointConfig,
        DeviceConfig,
        EmulationConfig,
        OptimizerConfig,
        RunConfig,
        ScheduleConfig,
        TelemetryConfig,
    )
    from hybridsync.core.errors import HybridSyncError
    from hybridsync.core.plan import Plan
    from hybridsync.interfaces.callbacks import Callback
    from hybridsync.lab.report.history import RunHistory
    from hybridsync.lab.report.results import Comparison, compare, read_run
    from hybridsync.lab.tuning.embedded import tune
    from hybridsync.telemetry.trackers import MLflow, WandB
    from hybridsync.trainer import FitResult, Trainer
    from hybridsync.training.optimizer import Optimizer
    from hybridsync.training.task import Task
    from hybridsync.workdir.export import export
    from hybridsync.workdir.keep_best import KeepBest, StopAt

__version__ = "0.1.0.dev0"

_HOMES = {
    "Callback": "interfaces.callbacks",
    "KeepBest": "workdir.keep_best",
    "CheckpointConfig": "config",
    "DeviceConfig": "config",
    "EmulationConfig": "config",
    "OptimizerConfig": "config",
    "RunConfig": "config",
    "ScheduleConfig": "config",
    "StopAt": "workdir.keep_best",
    "TelemetryConfig": "config",
    "HybridSyncError": "core.errors",
    "MLflow": "telemetry.trackers",
    "Optimizer": "training.optimizer",
    "Plan": "core.plan",
    "RunHistory": "lab.report.history",
    "Task": "training.task",
    "FitResult": "trainer",
    "Trainer": "trainer",
    "Comparison": "lab.report.results",
    "compare": "lab.report.results",
    "export": "workdir.export",
    "read_run": "lab.report.results",
    "WandB": "telemetry.trackers",
    "tune": "lab.tuning.embedded",
}

__all__ = [
    "Callback",
    "CheckpointConfig",
    "Comparison",
    "DeviceConfig",
    "EmulationConfig",
    "FitResult",
    "HybridSyncError",
    "KeepBest",
    "MLflow",
    "Optimizer",
    "OptimizerConfig",
    "Plan",
    "RunConfig",
    "RunHistory",
    "ScheduleConfig",
    "StopAt",
    "Task",
    "TelemetryConfig",
    "Trainer",
    "WandB",
    "compare",
    "export",
    "read_run",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import the module a public name lives in.

    Raises:
        AttributeError: `name` is neither public nor a submodule.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hybridsync' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hybridsync.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what the package offers, loaded or not."""
    return sorted([*globals(), *__all__])
