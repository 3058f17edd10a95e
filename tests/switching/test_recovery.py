"""What follows a broken phase: the newest state that someone holds, from a real board and holders that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.errors import CheckpointError, HybridSyncError, PhaseBroken, RoleLost, StaleEpoch, WaitTimeout
from hybridsync.messages import Capture, Held, PhaseRequest, RoleEvent
from hybridsync.plan import Epoch, Phase
from hybridsync.protocols.base import Path
from hybridsync.switching.recovery import Found, Reach, Recovery, give_up
from tests.chief.chiefs import SERVER, WatchedChief, begin, enter, enter_all, make_chief
from tests.roles import hello

HOME = "chief"
WORKERS = (0, 1, 2, 3)
SECS = 10.0


def capture_of(epoch: Epoch, units: int, capture_id: int = 1) -> Capture:
    applied = ((0, units),) if units else ()
    return Capture(capture_id, Held(epoch, units, units, f"{units:04x}"), applied, (), 0, 0.0, 0.0)


class Keeper:
    """The chief's memory of the last commit."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.num_offers = 0

    def offer(self) -> Capture:
        self.num_offers += 1
        return capture_of(Epoch(1, 0), self.units, capture_id=99)


class Scene:
    """A phase that is broken, the roles around it, and who was asked for what."""

    def __init__(self, spec: str = "bsp", *, kept: int = 4, units: int = 0) -> None:
        self.chief: WatchedChief = make_chief()
        servers, start = (SERVER,) if spec != "bsp" else (), capture_of(Epoch(0, 0), units)
        self.phase: Phase = begin(self.chief, spec, servers=servers, capture=start)
        self.path = Path.SYNC if spec == "bsp" else Path.SERVER
        self.keeper = Keeper(kept)
        self.asked: list[tuple[str, Epoch, bool]] = []
        self.answers: dict[str, Capture | Exception] = {}
        self.captured = capture_of(Epoch(1, 0), 0), HOME
        self.committing = 0
        self._recovery: Recovery | None = None

    def holder_at(self, address: str) -> Any:
        scene = self

        class Holder:
            def capture(self, epoch: Epoch, final: bool) -> Capture:
                scene.asked.append((address, epoch, final))
                answer = scene.answers.get(address, StaleEpoch(f"{address} is in another epoch"))
                if isinstance(answer, Exception):
                    raise answer
                return answer

        return Holder()

    def back(self, worker: int, units: int | None, epoch: Epoch | None = None) -> None:
        """Let a worker come back with the state after so many units, which it can hand over."""
        epoch = epoch or self.phase.epoch
        capture = None if units is None else capture_of(epoch, units)
        if capture is not None:
            self.answers[f"worker:{worker}"] = capture
        enter(self.chief, worker, after=self.phase.epoch, held=capture.held if capture else None)

    def die(self, worker: int) -> None:
        self.chief.role_lost(RoleEvent("worker", worker, 100 + worker, "exit code -9", 0.0))

    def await_newer(self, units: int) -> bool:
        if self.committing <= units:
            return False
        self.keeper.units = self.committing
        return True

    def gather(self, unit_secs: float = 0.0) -> Found:
        self.chief.gather()
        self._recovery = self._recovery or Recovery(
            self.chief, self.holder_at, self.keeper, HOME, SYSTEM_CLOCK, self.await_newer, gather_secs=0.2
        )
        return self._recovery.gather(self.phase, self.path, self.captured, unit_secs)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridsync.chief.chief.POLL_SECS", 0.0)


@contextmanager
def meanwhile(do: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread, while the block goes on."""
    thread = threading.Timer(0.05, do)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECS)


def lock_step(units: int = 0) -> Scene:
    """Return a lock-step phase that began with `units`, that all have entered and worker 2 has left dead."""
    scene = Scene("bsp", units=units)
    enter_all(scene.chief, scene.phase)
    scene.die(2)
    return scene


def served() -> Scene:
    """Return an asynchronous phase that all have entered, broken by a worker's word."""
    scene = Scene("asp")
    enter_all(scene.chief, scene.phase)
    scene.chief.break_phase("test")
    return scene


# --- who is asked ---


def test_the_worker_that_is_furthest_hands_over_its_state():
    """A member that died between two steps leaves some of the others a step behind."""
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 8)]:
        scene.back(worker, units)
    found = scene.gather()
    assert (found.capture.held.units, found.source, found.rolled_back) == (12, "worker:1", False)
    assert scene.asked == [("worker:1", scene.phase.epoch, True)]
    assert scene.chief.live_workers() == (0, 1, 3) and scene.keeper.num_offers == 0


def test_of_equals_the_first_is_asked():
    scene = lock_step()
    for worker in (3, 1, 0):
        scene.back(worker, 8)
    assert scene.gather().source == "worker:0"


def test_a_state_is_asked_for_in_the_epoch_in_which_it_was_reached():
    """Who never entered the broken phase may hold the state that the phase began with."""
    scene = lock_step(units=8)
    before = Epoch(scene.phase.epoch.number - 1, 5)
    for worker in (0, 1, 3):
        scene.back(worker, 8, epoch=before)
    scene.gather()
    assert scene.asked == [("worker:0", before, True)]


def test_a_past_that_the_run_has_left_is_not_gone_back_to():
    """The phase began with an older state than an unheard worker held: what follows that state is in no log."""
    scene = lock_step(units=8)
    before = Epoch(scene.phase.epoch.number - 1, 5)
    for worker, units, epoch in [(0, 12, before), (1, 9, scene.phase.epoch), (3, 8, before)]:
        scene.back(worker, units, epoch)
    assert scene.gather().capture.held.units == 9
    assert scene.asked == [("worker:1", scene.phase.epoch, True)]


def test_nor_when_phases_have_gone_by_since():
    """Nobody had heard of the 12 when the run went on from 9; later nobody is left but who holds them."""
    scene = lock_step(units=8)
    first = scene.phase.epoch
    for worker, units in [(0, None), (1, 9), (3, 8)]:
        scene.back(worker, units)
    assert scene.gather().capture.held.units == 9
    scene.phase = begin(scene.chief, "bsp", number=3, capture=capture_of(Epoch(2, 77), 20), members=(0, 1, 3))
    for worker in scene.phase.members:
        enter(scene.chief, worker)
    for worker, units in [(0, 12), (1, None), (3, None)]:
        scene.back(worker, units, epoch=first)
    found = scene.gather()
    assert (found.capture.held.units, found.source) == (scene.keeper.units, HOME)


def test_everybody_is_waited_for_before_anybody_is_asked():
    scene = lock_step()
    scene.back(0, 8)
    with meanwhile(lambda: [scene.back(worker, 8 + worker) for worker in (1, 3)]):
        assert scene.gather(unit_secs=SECS).capture.held.units == 11
    assert scene.chief.live_workers() == (0, 1, 3)


# --- who is given up ---


def test_a_worker_whose_state_cannot_be_captured_is_evicted_and_the_next_is_asked():
    scene = lock_step()
    for worker, units in [(0, 8), (1, 12), (3, 10)]:
        scene.back(worker, units)
    scene.answers["worker:1"] = RoleLost("worker 1 could not be reached")
    scene.answers["worker:3"] = WaitTimeout("worker 3 did not answer")
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == ("worker:0", 8, False)
    assert [asked[0] for asked in scene.asked] == ["worker:1", "worker:3", "worker:0"]
    evicted = {event.id: event.reason for event in scene.chief.evicted}
    assert evicted == {
        1: "its state could not be captured: worker 1 could not be reached",
        3: "its state could not be captured: worker 3 did not answer",
    }
    assert scene.chief.live_workers() == (0,)


def test_a_worker_whose_replica_has_gone_on_is_left_alone_and_the_next_is_asked():
    """In one process all share a replica; one that entered nothing yet names the epoch before."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 8)
    scene.answers["worker:0"] = StaleEpoch("epoch 1 was named, this replica is in epoch 2")
    assert scene.gather().source == "worker:1"
    assert scene.chief.evicted == [] and scene.chief.live_workers() == (0, 1, 3)


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
    assert 0.2 <= SYSTEM_CLOCK.monotonic() - started < 2.0
    assert found.source == "worker:0"
    reasons = {event.id: event.reason for event in scene.chief.evicted}
    assert reasons == dict.fromkeys((1, 3), "did not come back from a broken phase within 0.2 s")


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
    with (
        meanwhile(lambda: scene.chief.fail(HybridSyncError("the user interrupted"))),
        pytest.raises(HybridSyncError, match="the user interrupted"),
    ):
        scene.gather(unit_secs=SECS)


# --- servers ---


def test_the_servers_state_wins_over_any_workers():
    scene = served()
    for worker in WORKERS:
        scene.back(worker, 16, epoch=Epoch(scene.phase.epoch.number - 1, 5))
    scene.answers[SERVER] = capture_of(scene.phase.epoch, 9)
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == (SERVER, 9, False)
    assert scene.asked == [(SERVER, scene.phase.epoch, True)], "final: it refuses every later push"


def test_the_server_is_captured_before_anybody_is_waited_for():
    """Workers that push to it would else go on for as long as the wait lasts."""
    scene = served()
    scene.answers[SERVER] = capture_of(scene.phase.epoch, 9)

    def come_back() -> None:
        scene.asked.append(("back", scene.phase.epoch, False))
        for worker in WORKERS:
            scene.back(worker, 0)

    with meanwhile(come_back):
        scene.gather(unit_secs=SECS)
    assert [asked[0] for asked in scene.asked] == [SERVER, "back"]


def test_a_server_that_has_not_entered_the_phase_has_nothing_newer_than_the_last_capture():
    scene = served()
    scene.captured = capture_of(Epoch(1, 0), 12), "worker:1"
    for worker in WORKERS:
        scene.back(worker, None)
    scene.answers[SERVER] = StaleEpoch("epoch 2 was named, the server is in epoch 1")
    found = scene.gather()
    assert (found.capture, found.source) == scene.captured
    assert scene.chief.num_live_servers() == 1


def test_a_lost_server_costs_what_came_after_the_last_commit():
    scene = served()
    scene.chief.role_lost(RoleEvent("server", 0, 99, "exit code -9", 0.0))
    scene.captured = capture_of(Epoch(1, 0), 2), SERVER
    for worker in WORKERS:
        scene.back(worker, None)
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == (HOME, 4, True)
    assert scene.asked == [], "its successor has nothing to offer"


def test_a_reborn_server_at_another_address_is_not_asked_for_the_phase():
    scene = served()
    hello_of_next_life = hello(0, role="server", pid=199, life=1)
    scene.chief.register(type(hello_of_next_life)(**{**vars(hello_of_next_life), "address": "server:0b"}))
    for worker in WORKERS:
        scene.back(worker, None)
    assert scene.gather().source == HOME
    assert scene.asked == []


# --- what there is when nobody has anything newer ---


def test_the_last_capture_is_taken_up_where_its_holder_lives():
    scene = lock_step()
    scene.captured = capture_of(Epoch(1, 0), 8), "worker:1"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    found = scene.gather()
    assert (found.capture, found.source, found.rolled_back) == (*scene.captured, True)
    assert scene.asked == [], "it is readable as it is"


def test_without_its_holder_the_last_commit_is_what_there_is():
    scene = lock_step()
    scene.captured = capture_of(Epoch(1, 0), 8), "worker:2"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    found = scene.gather()
    assert (found.capture.capture_id, found.capture.held.units) == (99, 4)
    assert (found.source, found.rolled_back) == (HOME, True)


def test_the_last_capture_is_gone_with_a_holder_that_turns_out_to_be_gone():
    """Then those are asked, too, who hold less than it."""
    scene = lock_step()
    scene.captured = capture_of(Epoch(1, 0), 8), "worker:1"
    scene.back(1, 8)
    scene.back(0, 6)
    scene.back(3, None)
    scene.answers["worker:1"] = RoleLost("worker 1 could not be reached")
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == ("worker:0", 6, True)


def test_a_capture_older_than_the_last_commit_is_not_taken_up():
    scene = lock_step()
    scene.captured = capture_of(Epoch(1, 0), 3), "worker:1"
    for worker in (0, 1, 3):
        scene.back(worker, None)
    assert scene.gather().source == HOME


def test_a_worker_with_less_than_the_last_commit_is_not_asked():
    """It slept through a phase: what it holds is of an earlier one."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 3, epoch=Epoch(1, 5))
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
    scene.captured = capture_of(Epoch(1, 0), 7), "worker:2"
    for worker in (0, 1, 3):
        scene.back(worker, held)
    found = scene.gather()
    assert (found.capture.held.units, found.source) == (max(held, 7), source)


def test_when_everybody_is_gone_the_chief_still_has_the_last_commit():
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.die(worker)
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == (HOME, 4, True)


# --- what surrounds it ---


@pytest.mark.parametrize("error", [RoleLost("gone"), StaleEpoch("elsewhere"), WaitTimeout("silent")])
def test_a_role_that_cannot_be_reached_breaks_the_phase_by_what_was_tried(error):
    scene = Scene("bsp")
    with pytest.raises(PhaseBroken, match=f"the state could not be captured: {error}"), reach(scene):
        raise error
    assert scene.chief.broken == f"the state could not be captured: {error}"


def reach(scene: Scene) -> Reach:
    return Reach(scene.chief, "the state could not be captured")


def test_other_errors_and_the_runs_own_end_pass_as_they_are():
    scene = Scene("bsp")
    with pytest.raises(CheckpointError), reach(scene):
        raise CheckpointError("the disk is full")
    failure = RoleLost("worker 1 was lost before the run began")
    scene.chief.fail(failure)
    with pytest.raises(RoleLost, match="before the run began"), reach(scene):
        scene.chief.raise_failure()
    assert scene.chief.broken == ""


def test_a_run_that_gets_nowhere_says_how_often_it_tried_and_why():
    error = give_up(11, "worker 3 was lost (exit code 1)")
    assert "11 phases in a row" in str(error) and "worker 3 was lost (exit code 1)" in str(error)


def test_a_worker_that_asks_for_the_next_phase_is_back_whatever_it_holds():
    scene = lock_step()
    scene.chief.gather()
    for worker in (0, 1, 3):
        scene.chief.next_phase(PhaseRequest(worker, 1, scene.phase.epoch, None))
    assert scene.chief.missing_back() == []


def test_a_capture_that_failed_has_cost_the_one_before_it_at_the_same_server():
    """A holder has room for one: whoever went on from the earlier one would find nothing there, again and again."""
    scene = served()
    scene.captured = capture_of(Epoch(1, 0), 12), SERVER
    scene.answers[SERVER] = RoleLost("server 1 did not hand over its part")
    for worker in WORKERS:
        scene.back(worker, None)
    found = scene.gather()
    assert (found.source, found.capture.held.units, found.rolled_back) == (HOME, 4, True)


def test_a_worker_that_has_just_registered_is_asked_what_it_holds():
    """A restarted chief hears first that it lives, and a moment later what it brought along."""
    scene = lock_step()
    for worker in (0, 1, 3):
        scene.back(worker, 8)
    scene.chief.register(hello(2, pid=202, life=1))
    held = capture_of(scene.phase.epoch, 12)
    scene.answers["worker:2"] = held

    def tell() -> None:
        scene.chief.phase_for(PhaseRequest(2, 2, scene.phase.epoch, held.held))

    with meanwhile(tell):
        found = scene.gather()
    assert (found.source, found.capture.held.units) == ("worker:2", 12)
