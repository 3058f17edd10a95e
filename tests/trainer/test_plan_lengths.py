"""Plans whose stages are as long as units or passes over the data: the run switches there, and resumes by units."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync import CheckpointConfig
from hybridsync.core.errors import PlanError
from tests.trainers import events_of, mlp_trainer

EXAMPLES, UNIT_SIZE = 512, 8


def switched_at(workdir: Path) -> list[int]:
    return [event["units"] for event in events_of(workdir, "phase_entered")]


@pytest.mark.parametrize("plan", ["bsp:64u,asp", f"bsp:{64 * UNIT_SIZE / EXAMPLES}passes,asp"])
def test_a_run_switches_after_so_many_units(plan: str, tmp_path: Path) -> None:
    trainer = mlp_trainer(plan, 96, workdir=tmp_path / "run", checkpoint=CheckpointConfig(secs=60.0))
    assert trainer.fit().summary.exit == "completed"
    assert switched_at(tmp_path / "run") == [0, 64]
    again = mlp_trainer(plan, 96, workdir=tmp_path / "run", checkpoint=CheckpointConfig(secs=60.0))
    assert again.fit().summary.exit == "completed", "a resume knows the plan again"


def test_passes_that_the_workload_does_not_hold_are_refused_with_both_numbers() -> None:
    with pytest.raises(PlanError, match="its stages make up 128 units, the workload is 96"):
        mlp_trainer("bsp:2passes,asp", 96)
