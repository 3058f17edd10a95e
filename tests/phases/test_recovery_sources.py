"""What a run goes on from behind a broken phase: a server, the last snapshot, the last commit."""

from __future__ import annotations

import pytest

from hybridsync.core.errors import RoleLost, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import RoleEvent
from tests.chief.chiefs import SERVER
from tests.phases.scenes import HOME, SECS, WORKERS, lock_step, meanwhile, served, snapshot_of
from tests.roles import hello

pytestmark = pytest.mark.usefixtures("hurry")


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
    assert scene.chief.control.members.num_live_servers() == 1


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
