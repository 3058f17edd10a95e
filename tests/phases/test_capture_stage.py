"""A phase that loses a member while it is drained: nothing is captured, and the newest state is looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.config import HangConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseBroken
from hybridsync.interfaces.reports import Report
from hybridsync.phases.capture_stage import CaptureStage
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.telemetry.switch_costs import StageTimer
from tests.chief.chiefs import WORKLOAD, enter_all, lease
from tests.phases.scenes import Scene, snapshot_of

pytestmark = pytest.mark.usefixtures("hurry")


def stage_of(scene: Scene) -> CaptureStage:
    """Return the stage that ends the scene's phase."""
    control = scene.chief.control
    unused: Any = None
    pace = ProgressWatchdog(control, HangConfig(), 10.0, SYSTEM_CLOCK, unused, threads=False)
    state = ControllerState(*scene.captured, "start", phase=scene.phase)
    timer = StageTimer(SYSTEM_CLOCK, lambda name, started, ended: None)
    others: Any = (pace, unused, unused, timer, lambda: None)
    return CaptureStage(state, WORKLOAD, control, scene.holder_at, *others)


def by_heartbeat(scene: Scene) -> None:
    scene.chief.service.report(Report("worker", 1, 1, scene.phase.id, completed=8))


def by_lease(scene: Scene) -> None:
    lease(scene.chief, scene.phase, 1, known=8, completed=8)


@pytest.mark.parametrize("told", [by_heartbeat, by_lease])
def test_a_lock_step_phase_that_loses_a_member_as_its_drain_begins_goes_on_from_the_member_that_is_furthest(
    told: Callable[[Scene], None],
) -> None:
    """Worker 3 died behind its part of a sum. Worker 1 has applied that step and said so; worker 0 has not yet."""
    scene = Scene("bsp")
    enter_all(scene.chief, scene.phase)
    for worker in scene.phase.members:
        lease(scene.chief, scene.phase, worker)
    stage = stage_of(scene)
    scene.answers["worker:0"] = snapshot_of(scene.phase.id, 4)
    told(scene)
    assert scene.chief.control.num_applied == 8, "the ledger is a step ahead of worker 0"
    scene.die(3)
    with pytest.raises(PhaseBroken, match="worker 3 was lost"):
        stage.drain()
        stage.capture_final()
    assert scene.asked == [], "worker 0 was in a step still"
    for worker, units in [(0, 4), (1, 8), (2, 8)]:
        scene.back(worker, units)
    found = scene.gather()
    scene.chief.control.restore(found.snapshot, rolled_back=found.rolled_back)
    assert (found.source, found.snapshot.held.units, scene.chief.control.num_applied) == ("worker:1", 8, 8)
