"""A real run that left lock-step early is stopped, and resumed with and without what had it leave."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hybridsync.config import EmulationConfig, PolicyConfig
from hybridsync.policies.knee import Knee
from hybridsync.telemetry.metrics import Metrics
from tests.trainers import ALL_UNITS, events_of, is_exact, tally_trainer, units_held

WORKLOAD = 96
KNEE = PolicyConfig(trigger="knee")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run of `bsp:75%,asp` that left lock-step at a knee, and was stopped before the 72 units of its share."""
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    slow = EmulationConfig(compute_secs=0.02)
    trainer = tally_trainer("bsp:75%,asp", WORKLOAD, workdir=workdir, policy=KNEE, emulation=slow)

    def stop_behind_the_knee(metrics: Metrics) -> None:
        if metrics.protocol == "asp":
            trainer.preempt()

    trainer.add_hook(stop_behind_the_knee, every=4)
    with (
        pytest.MonkeyPatch.context() as patch,
        units_held(40, lambda: ALL_UNITS if trainer._preempted else 56),  # at its knee and when it is to stop
    ):
        patch.setattr(Knee, "observe", lambda self, units, *losses: units >= 8)
        summary = trainer.fit().summary
    assert summary.exit == "preempted" and summary.units.applied < 72
    assert [event["protocol"] for event in events_of(workdir, "phase_entered")] == ["bsp", "asp"]
    return workdir


@pytest.mark.parametrize(
    ("policy", "plan", "entered"),
    [
        (KNEE, "bsp:75%,ssp", ["ssp"]),  # another protocol behind it is no other word on lock-step
        (PolicyConfig(), "bsp:75%,asp", ["bsp", "asp"]),
    ],
)
def test_a_resume_asks_for_it_again_or_gives_it_up_and_says_so(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: str, policy: PolicyConfig, entered: Any
) -> None:
    workdir = Path(shutil.copytree(stopped, tmp_path / "run"))
    result = tally_trainer(plan, WORKLOAD, workdir=workdir, policy=policy, progress=True).fit()
    assert result.completed and is_exact(result.summary.final)
    _, _, *later = events_of(workdir, "phase_entered")
    assert [event["protocol"] for event in later] == entered
    said = "".join(capsys.readouterr())
    told = f"with policy.trigger={policy.trigger} and the plan {plan} it goes by its share again" in said
    assert told == (policy != KNEE)
