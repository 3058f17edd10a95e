"""A server enters a phase: its lock stays free while the state is fetched, and one phase at a time comes through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridsync.chief.chief import Chief
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, StaleEpoch, WaitTimeout
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Held
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.server.entrance import Entrance
from hybridsync.server.primary import Primary
from hybridsync.server.secondary import Store
from hybridsync.training.buffer_layout import fingerprint
from tests.roles import CHIEF, hello, push_of
from tests.server.cluster import Cluster
from tests.server.test_servers import gradient_of, programs, pushed
from tests.telemetry.clocks import ManualClock

SECS = 20.0
"""Far longer than anything here takes; a wait that gets there has failed."""


class Gate:
    """A holder of the state whose every read waits until it is told to go on."""

    def __init__(self, holding: Any) -> None:
        self._holding = holding
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.num_reads = 0
        self.error: HybridSyncError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def read(self, capture_id: int, into: np.ndarray) -> None:
        self.num_reads += 1
        self.asked.release()
        self.meanwhile()
        assert self.go_on.wait(SECS)
        if self.error is not None:
            raise self.error
        self._holding.read(capture_id, into)


class Scene:
    """Two servers of which one is looked at, served a phase already, and a state that arrives when a test says so."""

    def __init__(self, kind: str) -> None:
        self.cluster = Cluster(programs(), 2)
        self.first = self.cluster.enter()
        self.server: Primary | Store = self.cluster.primary if kind == "primary" else self.cluster.stores[0]
        self.gate = self.cluster.roles[CHIEF] = Gate(self.cluster.holding)
        self.threads = ThreadPoolExecutor(8)

    def phase(self, number: int) -> Phase:
        return replace(self.first, epoch=self.first.epoch._replace(number=number))

    def enters(self, number: int) -> Future[Held]:
        """Begin to enter a phase; returns when its state is being read."""
        call = self.threads.submit(self.server.enter, self.phase(number))
        assert self.gate.asked.acquire(timeout=SECS), "the state was not asked for"
        return call

    def repeats(self, number: int) -> Future[Held]:
        return self.threads.submit(self.server.enter, self.phase(number))

    def answered(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return what a call answers that waits for nobody."""
        return self.threads.submit(call, *args).result(timeout=SECS / 2)


@pytest.fixture(params=["primary", "store"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(request.param)
    yield made
    made.gate.go_on.set()
    made.threads.shutdown()


def test_a_heartbeat_is_answered_and_tells_that_a_state_is_being_fetched(scene: Scene) -> None:
    assert scene.server.drain().doing == ""
    entering = scene.enters(2)
    told = scene.answered(scene.server.drain)
    assert (told.doing, told.epoch) == (ENTERING, scene.first.epoch)
    assert not entering.done()
    scene.gate.go_on.set()
    assert entering.result(SECS).epoch == scene.phase(2).epoch
    assert scene.server.drain().doing == "" and scene.server.epoch == scene.phase(2).epoch


def test_a_hand_over_of_longer_than_the_lease_costs_no_server(scene: Scene) -> None:
    """The chief's clock is moved on by 20 s while the state is read; the lease is 15 s."""
    clock = ManualClock()
    evicted: list[Any] = []
    chief = Chief(RunState(Ledger(64), 1, "schema", clock, num_servers=2, evict=evicted.append))
    chief.service.register(hello(0, role="server", pid=99))
    wanted, beats = threading.Semaphore(0), threading.Semaphore(0)
    over = threading.Event()

    def beat() -> None:
        while wanted.acquire(timeout=SECS) and not over.is_set():
            told = scene.server.drain()
            chief.service.report(Report("server", 0, 1, told.epoch, doing=told.doing))
            beats.release()

    def a_long_time() -> None:
        silent = False
        for _ in range(40):
            clock.advance(0.5)
            wanted.release()
            silent = silent or not beats.acquire(timeout=SECS / 4)
            chief.control.expire()

    scene.gate.meanwhile = a_long_time
    scene.gate.go_on.set()
    entering = scene.enters(2)
    heart = scene.threads.submit(beat)
    assert entering.result(SECS).epoch == scene.phase(2).epoch
    over.set()
    wanted.release()
    heart.result(SECS)
    assert evicted == [] and chief.control.num_live_servers() == 1


def test_a_repeat_waits_for_the_first_call_and_shares_its_outcome(scene: Scene) -> None:
    entering = scene.enters(2)
    repeats = [scene.repeats(2) for _ in range(3)]
    scene.gate.go_on.set()
    held = entering.result(SECS)
    assert [repeat.result(SECS) for repeat in repeats] == [held] * 3
    assert scene.server.enter(scene.phase(2)) == held
    assert scene.gate.num_reads == 1


def test_a_newer_phase_takes_the_place_of_the_one_that_is_being_fetched(scene: Scene) -> None:
    older = scene.enters(2)
    repeat = scene.repeats(2)
    newer = scene.enters(3)
    with pytest.raises(StaleEpoch, match=r"epoch 2 .*epoch 3"):  # at once, though the newer state has not arrived
        repeat.result(SECS)
    with pytest.raises(StaleEpoch, match=r"epoch 2 is not newer than epoch 3"):
        scene.answered(scene.server.enter, scene.phase(2))
    assert not newer.done()
    scene.gate.go_on.set()
    with pytest.raises(StaleEpoch, match=r"epoch 2 is not entered any more: epoch 3 takes its place"):
        older.result(SECS)
    assert newer.result(SECS).epoch == scene.server.epoch == scene.phase(3).epoch


def test_the_older_ones_failure_does_not_end_the_newer_one(scene: Scene) -> None:
    """A reader of one address ends the one before, which fails for that reason alone."""
    older = scene.enters(2)
    failing, scene.gate = scene.gate, Gate(scene.cluster.holding)
    scene.cluster.roles[CHIEF] = scene.gate
    newer = scene.enters(3)
    failing.error = RoleLost("its channel is closed here")
    failing.go_on.set()
    with pytest.raises(StaleEpoch, match="epoch 3 takes its place"):
        older.result(SECS)
    assert not newer.done() and scene.server.drain().doing == ENTERING
    scene.gate.go_on.set()
    assert newer.result(SECS).epoch == scene.phase(3).epoch


def test_a_fetch_that_fails_is_told_to_every_caller_and_the_phase_can_be_entered_again(scene: Scene) -> None:
    scene.gate.error = RoleLost("the chief could not be reached")
    entering = scene.enters(2)
    repeat = scene.repeats(2)
    scene.gate.go_on.set()
    with pytest.raises(RoleLost, match="could not be reached"):
        entering.result(SECS)
    with pytest.raises(RoleLost, match="could not be reached"):
        repeat.result(SECS)
    assert scene.server.epoch == scene.first.epoch and scene.server.drain().doing == ""
    scene.gate.error = None
    assert scene.server.enter(scene.phase(2)).epoch == scene.server.epoch == scene.phase(2).epoch


def test_what_arrives_damaged_is_not_served(scene: Scene) -> None:
    scene.gate.go_on.set()
    with pytest.raises(HybridSyncError, match="f00d was captured"):
        scene.server.enter(replace(scene.phase(2), fingerprint="f00d"))
    assert scene.server.epoch == scene.first.epoch and scene.server.drain().doing == ""


def test_while_the_next_state_is_fetched_the_phase_before_takes_no_push_and_can_be_captured(scene: Scene) -> None:
    pushed(scene.cluster, scene.first, 0)
    entering = scene.enters(2)
    standing = scene.answered(scene.server.standing)
    assert (standing.phase, standing.open) == (scene.first, False)
    with pytest.raises(StaleEpoch):
        scene.answered(pushed, scene.cluster, scene.first, 1)
    with pytest.raises(StaleEpoch):  # it was not announced to anybody yet
        scene.answered(pushed, scene.cluster, scene.phase(2), 1)
    scene.answered(scene.server.fence, scene.first.epoch, 3, 1)
    capture, state = scene.answered(scene.cluster.captured, scene.first)
    assert capture.applied == ((0, 1),) and fingerprint(state) == capture.held.fingerprint
    assert not entering.done()
    scene.gate.go_on.set()
    assert entering.result(SECS).units == 0


def test_a_push_that_is_held_hears_at_once_that_another_phase_is_being_entered() -> None:
    cluster = Cluster(programs(), 1)
    primary, phase = cluster.primary, cluster.enter(spec="bsp_server")
    gate = cluster.roles[CHIEF] = Gate(cluster.holding)
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(primary.push_pull, push_of(phase, 0), gradient_of(0))
        with primary._condition:
            assert primary._condition.wait_for(lambda: primary._sequencer.num_held == 1, SECS), "no push arrived"
        entering = threads.submit(primary.enter, replace(phase, epoch=phase.epoch._replace(number=2)))
        with pytest.raises(StaleEpoch, match="epoch 1 has ended"):
            held.result(SECS / 2)
        assert not entering.done()
        gate.go_on.set()
        assert entering.result(SECS).units == 0


def test_a_repeat_that_waits_too_long_says_what_has_not_arrived() -> None:
    condition, go_on = threading.Condition(), threading.Event()
    entrance = Entrance(condition, secs=0.05)
    epoch = Epoch(4, 9)
    held = Held(epoch, 0, 0, "")

    def enter() -> Held:
        return entrance.enter(
            epoch, held=lambda: None, leave=lambda: None, fetch=lambda: go_on.wait(SECS), swap=lambda state: held
        )

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(enter)
        deadline = SYSTEM_CLOCK.monotonic() + SECS
        while not entrance.doing:
            assert SYSTEM_CLOCK.monotonic() < deadline
        with pytest.raises(WaitTimeout, match=r"epoch 4 .*more than 0\.05 s: its state has not arrived"):
            enter()
        go_on.set()
        assert first.result(SECS) == held and entrance.doing == ""
