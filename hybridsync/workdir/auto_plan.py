"""The plan `auto`: asks the lab for the switch point that a search has found. With any other plan nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridsync.config import RunConfig

if TYPE_CHECKING:
    from hybridsync.training.run import Run

AUTO = "auto"


def is_auto(config: RunConfig) -> bool:
    """Tell whether the plan is to be looked up."""
    return config.plan.strip() == AUTO


def planned(config: RunConfig, source: Path | Run, say: Callable[[str], object], **options: Any) -> RunConfig:
    """Return a configuration with its plan written out: as it is, unless the plan is `auto`.

    Args:
      config: configuration of a run.
      source: configuration file that it was resolved from, or the run that it belongs to.
      say: called with a line about the source of the plan.
      **options: as of `hybridsync.lab.tuning.auto_plan.written_out`.

    Raises:
      HybridSyncError: as `written_out`.
    """
    if not is_auto(config):
        return config
    from hybridsync.lab.tuning.auto_plan import written_out  # the one place where a run loads the lab

    return written_out(config, source, say, **options)
