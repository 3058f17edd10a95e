"""What follows a broken phase: who is waited for, who is asked for the newest state, and who is given up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.config import HangConfig, RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import CheckpointError, HybridSyncError, PhaseBroken, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import PhaseRequest, RoleEvent
from hybridsync.interfaces.reports import READING, WAITING, Report
from hybridsync.phases.housekeeping import ProgressWatchdog
from hybridsync.phases.recovery import CaptureStage, give_up
from hybridsync.phases.run_context import ControllerState, Reach
from hybridsync.telemetry.switch_costs import StageTimer
from tests.chief.chiefs import SERVER, WORKLOAD, begin, enter, enter_all, lease
from tests.phases.contexts import context_of
from tests.phases.scenes import HOME, SECS, WORKERS, Scene, lock_step, meanwhile, served, snapshot_of
from tests.roles import hello

pytestmark = pytest.mark.usefixtures("hurry")


# --- who is asked ---


def test_the_worker_that_is_furthest_hands_over_its_state():
    """A member that died between two steps leaves some of the others a step behind."""
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 8)]:
        scene.back(worker, units)
    found = scene.gather()
    assert (found.snapshot.held.units, found.source, found.rolled_back) == (12, "worker:1", False)
    assert scene.asked == [("worker:1", scene.phase.id, True)]
    assert scene.chief.state.members.workers.ids() == (0, 1, 3) and scene.committed_source.num_offers == 0


def test_of_equals_the_first_is_asked():
    scene = lock_step()
    for worker in (3, 1, 0):
        scene.back(worker, 8)
    assert scene.gather().source == "worker:0"


def test_a_state_is_asked_for_in_the_phase_in_which_it_was_reached():
    """Who never entered the broken phase may hold the state that the phase began with."""
    scene = lock_step(units=8)
    before = PhaseId(scene.phase.id.number - 1, 5)
    for worker in (0, 1, 3):
        scene.back(worker, 8, phase_id=before)
    scene.gather()
    assert scene.asked == [("worker:0", before, True)]


def test_a_past_that_the_run_has_left_is_not_gone_back_to():
    """The phase began with an older state than an unheard worker held: what follows that state is in no log."""
    scene = lock_step(units=8)
    before = PhaseId(scene.phase.id.number - 1, 5)
    for worker, units, phase_id in [(0, 12, before), (1, 9, scene.phase.id), (3, 8, before)]:
        scene.back(worker, units, phase_id)
    assert scene.gather().snapshot.held.units == 9
    assert scene.asked == [("worker:1", scene.phase.id, True)]


def test_nor_when_phases_have_gone_by_since():
    """Nobody had heard of the 12 when the run went on from 9; later nobody is left but who holds them."""
    scene = lock_step(units=8)
    first = scene.phase.id
    for worker, units in [(0, None), (1, 9), (3, 8)]:
        scene.back(worker, units)
    assert scene.gather().snapshot.held.units == 9
    scene.phase = begin(scene.chief, "bsp", number=3, snapshot=snapshot_of(PhaseId(2, 77), 20), members=(0, 1, 3))
    for worker in scene.phase.members:
        enter(scene.chief, worker)
    for worker, units in [(0, 12), (1, None), (3, None)]:
        scene.back(worker, units, phase_id=first)
    found = scene.gather()
    assert (found.snapshot.held.units, found.source) == (scene.committed_source.units, HOME)


def test_everybody_is_waited_for_before_anybody_is_asked():
    scene = lock_step()
    scene.back(0, 8)

    def come_back() -> None:
        for worker in (1, 3):
            scene.back(worker, 8 + worker)

    with meanwhile(come_back):
        assert scene.gather(unit_secs=SECS).snapshot.held.units == 11
    assert scene.chief.state.members.workers.ids() == (0, 1, 3)


# --- who is given up ---


def test_a_worker_whose_state_cannot_be_captured_is_evicted_and_the_next_is_asked():
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 10)]:
        scene.back(worker, units)
    scene.answers["worker:1"] = RoleLost("worker 1 could not be reached")
    scene.answers["worker:3"] = WaitTimeout("worker 3 did not answer")
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == ("worker:0", 8, False)
    assert [asked[0] for asked in scene.asked] == ["worker:1", "worker:3", "worker:0"]
    evicted = {event.id: event.reason for event in scene.chief.evicted}
    assert evicted == {
        1: "its state could not be captured: worker 1 could not be reached",
        3: "its state could not be captured: worker 3 did not answer",
    }
    assert scene.chief.state.members.workers.ids() == (0,)


def test_a_worker_that_is_out_of_reach_for_a_while_is_asked_again_and_nothing_is_lost():
    """It lives, and gets no processor: the newest state is its alone."""
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 10)]:
        scene.back(worker, units)
    out_of_reach = [RoleLost("worker 1 could not be reached"), WaitTimeout("worker 1 did not answer")]
    scene.answers["worker:1"] = deque([*out_of_reach, scene.answers["worker:1"]])
    found = scene.gather(limits=HangConfig())
    assert (found.source, found.snapshot.held.units, found.rolled_back) == ("worker:1", 12, False)
    assert scene.chief.evicted == [] and [asked[0] for asked in scene.asked] == 3 * ["worker:1"]


def test_a_worker_that_dies_while_it_is_out_of_reach_is_asked_no_more():
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 8)]:
        scene.back(worker, units)
    scene.answers["worker:1"] = RoleLost("worker 1 could not be reached")
    with meanwhile(lambda: scene.die(1)):
        found = scene.gather(limits=HangConfig())
    assert (found.source, found.snapshot.held.units) == ("worker:0", 8)


def test_a_worker_whose_replica_has_gone_on_is_left_alone_and_the_next_is_asked():
    """In one process all share a replica; one that entered nothing yet names the phase before."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 8)
    scene.answers["worker:0"] = StalePhase("phase 1 was named, this replica is in phase 2")
    assert scene.gather().source == "worker:1"
    assert scene.chief.evicted == [] and scene.chief.state.members.workers.ids() == (0, 1, 3)


def test_an_error_that_is_not_about_reaching_a_role_ends_the_run():
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 8)
    scene.answers["worker:0"] = CheckpointError("the apply log cannot be written: the disk is full")
    with pytest.raises(CheckpointError):
        scene.gather()


def test_who_does_not_come_back_in_time_is_evicted_and_the_others_go_on():
    scene = lock_step()
    scene.back(0, 8)
    started = SYSTEM_CLOCK.monotonic()
    found = scene.gather()
    assert 0.2 <= SYSTEM_CLOCK.monotonic() - started < SECS / 2
    assert found.source == "worker:0"
    reasons = {event.id: event.reason for event in scene.chief.evicted}
    assert reasons == dict.fromkeys((1, 3), "did not come back from a broken phase within 0.2 s")


def test_who_reads_data_is_waited_for_and_who_was_only_to_leave_a_wait_is_not_for_long():
    scene = lock_step()
    scene.back(0, 8)
    for worker, doing in [(1, WAITING), (3, READING)]:
        scene.chief.service.report(Report("worker", worker, 1, scene.phase.id, doing=doing))

    def come_back() -> None:
        while scene.chief.state.missing_back() == [1, 3]:
            scene.chief.control.wait_until(lambda state: False, 0.01)
        scene.back(3, 12)

    with meanwhile(come_back):
        found = scene.gather()
    assert (found.source, found.snapshot.held.units) == ("worker:3", 12)
    assert [(event.id, event.reason) for event in scene.chief.evicted] == [
        (1, "did not come back from a broken phase within 0.3 s")
    ]


def test_slow_units_are_given_their_time():
    scene = lock_step()
    for worker in (0, 1):
        scene.back(worker, 8)
    with meanwhile(lambda: scene.back(3, 12)):
        scene.gather(unit_secs=SECS / 10)
    assert scene.chief.evicted == []


def test_who_dies_while_it_is_waited_for_is_not_waited_for_any_more():
    scene = lock_step()
    for worker in (0, 1):
        scene.back(worker, 8)
    started = SYSTEM_CLOCK.monotonic()
    with meanwhile(lambda: scene.die(3)):
        assert scene.gather(unit_secs=SECS).source == "worker:0"
    assert SYSTEM_CLOCK.monotonic() - started < SECS / 2


def test_the_runs_own_failure_ends_the_wait():
    scene = lock_step()

    def fail() -> None:
        with scene.chief.control.turn() as state:
            state.waits.fail(HybridSyncError("the user interrupted"))

    with (
        meanwhile(fail),
        pytest.raises(HybridSyncError, match="the user interrupted"),
    ):
        scene.gather(unit_secs=SECS)


# --- what surrounds it ---


@pytest.mark.parametrize("error", [RoleLost("gone"), StalePhase("elsewhere"), WaitTimeout("silent")])
def test_a_role_that_cannot_be_reached_breaks_the_phase_by_what_was_tried(error):
    scene = Scene("bsp")
    with pytest.raises(PhaseBroken, match=f"the state could not be captured: {error}"), reach(scene):
        raise error
    assert scene.chief.state.phase_members.broken == f"the state could not be captured: {error}"


def reach(scene: Scene) -> Reach:
    return Reach(scene.chief.control, "the state could not be captured")


def test_other_errors_and_the_runs_own_end_pass_as_they_are():
    scene = Scene("bsp")
    with pytest.raises(CheckpointError), reach(scene):
        raise CheckpointError("the disk is full")
    failure = RoleLost("worker 1 was lost before the run began")
    with scene.chief.control.turn() as state:
        state.waits.fail(failure)
    with pytest.raises(RoleLost, match="before the run began"), reach(scene):
        scene.chief.state.waits.raise_failure()
    assert scene.chief.state.phase_members.broken == ""


def test_a_run_that_gets_nowhere_says_how_often_it_tried_and_why():
    error = give_up(11, "worker 3 was lost (exit code 1)")
    assert "11 phases in a row" in str(error) and "worker 3 was lost (exit code 1)" in str(error)


def test_a_worker_that_asks_for_the_next_phase_is_back_whatever_it_holds():
    scene = lock_step()
    with scene.chief.control.turn() as state:
        state.gather()
    for worker in (0, 1, 3):
        scene.chief.service.next_phase(PhaseRequest(worker, 1, scene.phase.id, None))
    assert scene.chief.state.missing_back() == []


def test_a_worker_that_has_just_registered_is_asked_what_it_holds():
    """A restarted chief hears first that it lives, and a moment later what it brought along."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 8)
    scene.chief.service.register(hello(2, pid=202, restart_count=1))
    held = snapshot_of(scene.phase.id, 12)
    scene.answers["worker:2"] = held

    def tell() -> None:
        scene.chief.service.phase_for(PhaseRequest(2, 2, scene.phase.id, held.held))

    with meanwhile(tell):
        found = scene.gather()
    assert (found.source, found.snapshot.held.units) == ("worker:2", 12)


# --- servers ---


def test_the_servers_state_wins_over_any_workers():
    scene = served()
    for worker in WORKERS:
        scene.back(worker, 16, phase_id=PhaseId(scene.phase.id.number - 1, 5))
    scene.answers[SERVER] = snapshot_of(scene.phase.id, 9)
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == (SERVER, 9, False)
    assert scene.asked == [(SERVER, scene.phase.id, True)], "final: it refuses every later push"


def test_the_server_is_captured_before_anybody_is_waited_for():
    """Workers that push to it would else go on for as long as the wait lasts."""
    scene = served()
    scene.answers[SERVER] = snapshot_of(scene.phase.id, 9)

    def come_back() -> None:
        scene.asked.append(("back", scene.phase.id, False))
        for worker in WORKERS:
            scene.back(worker, 0)

    with meanwhile(come_back):
        scene.gather(unit_secs=SECS)
    assert [asked[0] for asked in scene.asked] == [SERVER, "back"]


def test_a_server_that_has_not_entered_the_phase_has_nothing_newer_than_the_last_snapshot():
    scene = served()
    scene.captured = snapshot_of(PhaseId(1, 0), 12), "worker:1"
    for worker in WORKERS:
        scene.back(worker, None)
    scene.answers[SERVER] = StalePhase("phase 2 was named, the server is in phase 1")
    found = scene.gather()
    assert (found.snapshot, found.source) == scene.captured
    assert len(scene.chief.state.members.servers.ids()) == 1


def test_a_lost_server_costs_what_came_after_the_last_commit():
    scene = served()
    scene.chief.service.role_lost(RoleEvent("server", 0, 99, "exit code -9", 0.0))
    scene.captured = snapshot_of(PhaseId(1, 0), 2), SERVER
    for worker in WORKERS:
        scene.back(worker, None)
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == (HOME, 4, True)
    assert scene.asked == [], "its successor has nothing to offer"


def test_a_reborn_server_at_another_address_is_not_asked_for_the_phase():
    scene = served()
    hello_of_next_process = hello(0, role="server", pid=199, restart_count=1)
    scene.chief.service.register(type(hello_of_next_process)(**{**vars(hello_of_next_process), "address": "server:0b"}))
    for worker in WORKERS:
        scene.back(worker, None)
    assert scene.gather().source == HOME
    assert scene.asked == []


# --- what there is when nobody has anything newer ---


def test_the_last_snapshot_is_taken_up_where_its_holder_lives():
    scene = lock_step()
    scene.captured = snapshot_of(PhaseId(1, 0), 8), "worker:1"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    found = scene.gather()
    assert (found.snapshot, found.source, found.rolled_back) == (*scene.captured, True)
    assert scene.asked == [], "it is readable as it is"


def test_without_its_holder_the_last_commit_is_what_there_is():
    scene = lock_step()
    scene.captured = snapshot_of(PhaseId(1, 0), 8), "worker:2"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    found = scene.gather()
    assert (found.snapshot.snapshot_id, found.snapshot.held.units) == (99, 4)
    assert (found.source, found.rolled_back) == (HOME, True)


def test_the_last_snapshot_is_gone_with_a_holder_that_turns_out_to_be_gone():
    """Then those are asked, too, who hold less than it."""
    scene = lock_step()
    scene.captured = snapshot_of(PhaseId(1, 0), 8), "worker:1"
    scene.back(1, 8)
    scene.back(0, 6)
    scene.back(3, None)
    scene.answers["worker:1"] = RoleLost("worker 1 could not be reached")
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == ("worker:0", 6, True)


def test_a_snapshot_older_than_the_last_commit_is_not_taken_up():
    scene = lock_step()
    scene.captured = snapshot_of(PhaseId(1, 0), 3), "worker:1"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    assert scene.gather().source == HOME


def test_a_worker_with_less_than_the_last_commit_is_not_asked():
    """It slept through a phase: what it holds is of an earlier one."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 3, phase_id=PhaseId(1, 5))
    found = scene.gather()
    assert (found.source, found.rolled_back, scene.asked) == (HOME, True, [])


def test_a_worker_with_as_much_as_the_last_commit_is_asked_and_nothing_is_rolled_back():
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 4)
    found = scene.gather()
    assert (found.source, found.rolled_back) == ("worker:0", False)


@pytest.mark.parametrize(("held", "source"), [(6, HOME), (8, "worker:0")])
def test_a_commit_under_way_of_more_than_anybody_holds_is_what_the_run_goes_on_from(held, source):
    """Durable later, it would pass for the newest state of a run that had gone on from less."""
    scene = lock_step()
    scene.committing = 7
    scene.captured = snapshot_of(PhaseId(1, 0), 7), "worker:2"
    for worker in (0, 1, 3):
        scene.back(worker, held)
    found = scene.gather()
    assert (found.snapshot.held.units, found.source) == (max(held, 7), source)


def test_when_everybody_is_gone_the_chief_still_has_the_last_commit():
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.die(worker)
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == (HOME, 4, True)


def test_a_snapshot_that_failed_has_cost_the_one_before_it_at_the_same_server():
    """A holder has room for one: whoever went on from the earlier one would find nothing there, again and again."""
    scene = served()
    scene.captured = snapshot_of(PhaseId(1, 0), 12), SERVER
    scene.answers[SERVER] = RoleLost("server 1 did not hand over its part")
    for worker in WORKERS:
        scene.back(worker, None)
    found = scene.gather()
    assert (found.source, found.snapshot.held.units, found.rolled_back) == (HOME, 4, True)


def stage_of(scene: Scene) -> CaptureStage:
    """Return the stage that ends the scene's phase."""
    control = scene.chief.control
    unused: Any = None
    pace = ProgressWatchdog(control, HangConfig(), 10.0, SYSTEM_CLOCK, unused, threads=False)
    state = ControllerState(*scene.captured, "start", phase=scene.phase)
    timer = StageTimer(SYSTEM_CLOCK, lambda name, started, ended: None)
    config = RunConfig(workload=WORKLOAD, plan="asp")
    return CaptureStage(
        context_of(config=config, control=control, state=state, pace=pace, timer=timer), scene.holder_at
    )


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
    assert scene.chief.state.ledger.num_applied == 8, "the ledger is a step ahead of worker 0"
    scene.die(3)
    with pytest.raises(PhaseBroken, match="worker 3 was lost"):
        stage.drain()
        stage.capture_final()
    assert scene.asked == [], "worker 0 was in a step still"
    for worker, units in [(0, 4), (1, 8), (2, 8)]:
        scene.back(worker, units)
    found = scene.gather()
    scene.chief.state.restore(found.snapshot, rolled_back=found.rolled_back)
    assert (found.source, found.snapshot.held.units, scene.chief.state.ledger.num_applied) == ("worker:1", 8, 8)
