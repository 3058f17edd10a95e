"""A server enters a phase: its lock stays free while the state is fetched, and one phase at a time comes through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.server.primary import Primary
from hybridsync.server.secondary import Secondary
from hybridsync.server.turns import Entrance
from hybridsync.training.buffer_layout import fingerprint
from tests.chief.chiefs import Chief
from tests.roles import CHIEF, hello, push_of
from tests.server.cluster import Cluster, until_held
from tests.server.test_servers import gradient_of, programs, pushed
from tests.telemetry.clocks import ManualClock

SECS = 20.0
"""Far longer than anything here takes; a wait that gets there has failed."""


class Gate:
    """A holder of the state whose every read waits until it is told to go on."""

    def __init__(self, snapshot_buffer: Any) -> None:
        self._snapshot_buffer = snapshot_buffer
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.num_reads = 0
        self.error: HybridSyncError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        self.num_reads += 1
        self.asked.release()
        self.meanwhile()
        assert self.go_on.wait(SECS)
        if self.error is not None:
            raise self.error
        self._snapshot_buffer.read(snapshot_id, into)


class Scene:
    """Two servers of which one is looked at, served a phase already, and a state that arrives when a test says so."""

    def __init__(self, kind: str) -> None:
        self.cluster = Cluster(programs(), 2)
        self.first = self.cluster.enter()
        self.server: Primary | Secondary = self.cluster.primary if kind == "primary" else self.cluster.stores[0]
        self.gate = self.cluster.roles[CHIEF] = Gate(self.cluster.snapshot_buffer)
        self.threads = ThreadPoolExecutor(8)

    def phase(self, number: int) -> Phase:
        return replace(self.first, id=self.first.id._replace(number=number))

    def enters(self, number: int) -> Future[StateVersion]:
        """Begin to enter a phase; returns when its state is being read."""
        call = self.threads.submit(self.server.enter, self.phase(number))
        assert self.gate.asked.acquire(timeout=SECS), "the state was not asked for"
        return call

    def repeats(self, number: int) -> Future[StateVersion]:
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
    assert scene.server.take_report().doing == ""
    entering = scene.enters(2)
    told = scene.answered(scene.server.take_report)
    assert (told.doing, told.phase_id) == (ENTERING, scene.first.id)
    assert not entering.done()
    scene.gate.go_on.set()
    assert entering.result(SECS).phase_id == scene.phase(2).id
    assert scene.server.take_report().doing == "" and scene.server.phase_id == scene.phase(2).id


def test_a_hand_over_of_longer_than_the_lease_costs_no_server(scene: Scene) -> None:
    """The chief's clock is moved on by 20 s while the state is read; the lease is 15 s."""
    clock = ManualClock()
    evicted: list[Any] = []
    chief = Chief(RunState(Ledger(64), 1, "schema", clock, RunStateSpec(num_servers=2, evict=evicted.append)))
    chief.service.register(hello(0, role="server", pid=99))
    wanted, beats = threading.Semaphore(0), threading.Semaphore(0)
    over = threading.Event()

    def beat() -> None:
        while wanted.acquire(timeout=SECS) and not over.is_set():
            told = scene.server.take_report()
            chief.service.report(Report("server", 0, 1, told.phase_id, doing=told.doing))
            beats.release()

    def a_long_time() -> None:
        silent = False
        for _ in range(40):
            clock.advance(0.5)
            wanted.release()
            silent = silent or not beats.acquire(timeout=SECS / 4)
            with chief.control.turn() as state:
                state.expire()

    scene.gate.meanwhile = a_long_time
    scene.gate.go_on.set()
    entering = scene.enters(2)
    heartbeat = scene.threads.submit(beat)
    assert entering.result(SECS).phase_id == scene.phase(2).id
    over.set()
    wanted.release()
    heartbeat.result(SECS)
    assert evicted == [] and len(chief.state.members.servers.ids()) == 1


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
    with pytest.raises(StalePhase, match=r"phase 2 .*phase 3"):  # at once, though the newer state has not arrived
        repeat.result(SECS)
    with pytest.raises(StalePhase, match=r"phase 2 is not newer than phase 3"):
        scene.answered(scene.server.enter, scene.phase(2))
    assert not newer.done()
    scene.gate.go_on.set()
    with pytest.raises(StalePhase, match=r"phase 2 is not entered any more: phase 3 takes its place"):
        older.result(SECS)
    assert newer.result(SECS).phase_id == scene.server.phase_id == scene.phase(3).id


def test_the_older_ones_failure_does_not_end_the_newer_one(scene: Scene) -> None:
    """A reader of one address ends the one before, which fails for that reason alone."""
    older = scene.enters(2)
    failing, scene.gate = scene.gate, Gate(scene.cluster.snapshot_buffer)
    scene.cluster.roles[CHIEF] = scene.gate
    newer = scene.enters(3)
    failing.error = RoleLost("its channel is closed here")
    failing.go_on.set()
    with pytest.raises(StalePhase, match="phase 3 takes its place"):
        older.result(SECS)
    assert not newer.done() and scene.server.take_report().doing == ENTERING
    scene.gate.go_on.set()
    assert newer.result(SECS).phase_id == scene.phase(3).id


def test_a_fetch_that_fails_is_told_to_every_caller_and_the_phase_can_be_entered_again(scene: Scene) -> None:
    scene.gate.error = RoleLost("the chief could not be reached")
    entering = scene.enters(2)
    repeat = scene.repeats(2)
    scene.gate.go_on.set()
    with pytest.raises(RoleLost, match="could not be reached"):
        entering.result(SECS)
    with pytest.raises(RoleLost, match="could not be reached"):
        repeat.result(SECS)
    assert scene.server.phase_id == scene.first.id and scene.server.take_report().doing == ""
    scene.gate.error = None
    assert scene.server.enter(scene.phase(2)).phase_id == scene.server.phase_id == scene.phase(2).id


def test_what_arrives_damaged_is_not_served(scene: Scene) -> None:
    scene.gate.go_on.set()
    with pytest.raises(HybridSyncError, match="f00d was captured"):
        scene.server.enter(replace(scene.phase(2), fingerprint="f00d"))
    assert scene.server.phase_id == scene.first.id and scene.server.take_report().doing == ""


def test_while_the_next_state_is_fetched_the_phase_before_takes_no_push_and_can_be_captured(scene: Scene) -> None:
    pushed(scene.cluster, scene.first, 0)
    entering = scene.enters(2)
    role_state = scene.answered(scene.server.role_state)
    assert (role_state.phase, role_state.open) == (scene.first, False)
    with pytest.raises(StalePhase):
        scene.answered(pushed, scene.cluster, scene.first, 1)
    with pytest.raises(StalePhase):  # it was not announced to anybody yet
        scene.answered(pushed, scene.cluster, scene.phase(2), 1)
    scene.answered(scene.server.fence, scene.first.id, 3, 1)
    snapshot, state = scene.answered(scene.cluster.captured, scene.first)
    assert snapshot.applied == ((0, 1),) and fingerprint(state) == snapshot.held.fingerprint
    assert not entering.done()
    scene.gate.go_on.set()
    assert entering.result(SECS).units == 0


def test_a_push_that_is_held_hears_at_once_that_another_phase_is_being_entered() -> None:
    cluster = Cluster(programs(), 1)
    primary, phase = cluster.primary, cluster.enter(spec="bsp_server")
    gate = cluster.roles[CHIEF] = Gate(cluster.snapshot_buffer)
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(primary.push_pull, push_of(phase, 0), gradient_of(0))
        until_held(primary, 1)
        entering = threads.submit(primary.enter, replace(phase, id=phase.id._replace(number=2)))
        with pytest.raises(StalePhase, match="phase 1 has ended"):
            held.result(SECS / 2)
        assert not entering.done()
        gate.go_on.set()
        assert entering.result(SECS).units == 0


def test_a_repeat_that_waits_too_long_says_what_has_not_arrived() -> None:
    condition, go_on = threading.Condition(), threading.Event()
    entrance = Entrance(condition, secs=0.05)
    phase_id = PhaseId(4, 9)
    held = StateVersion(phase_id, 0, 0, "")

    def enter() -> StateVersion:
        return entrance.enter(
            phase_id, held=lambda: None, leave=lambda: None, fetch=lambda: go_on.wait(SECS), swap=lambda state: held
        )

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(enter)
        deadline = SYSTEM_CLOCK.monotonic() + SECS
        while not entrance.doing:
            assert SYSTEM_CLOCK.monotonic() < deadline
        with pytest.raises(WaitTimeout, match=r"phase 4 .*more than 0\.05 s: its state has not arrived"):
            enter()
        go_on.set()
        assert first.result(SECS) == held and entrance.doing == ""
