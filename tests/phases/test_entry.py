"""The chief has all servers of a phase enter it at once, and is woken by whatever ends that."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.collectives.backend import NO_GROUP
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.config import RunConfig, TelemetryConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, PhaseBroken, Preempted, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import RoleEvent, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.phases import entry as entering_module
from hybridsync.phases.entry import EntryStage, ServerEntry, in_turn
from hybridsync.phases.process_groups import APART, NONE, ProcessGroups
from hybridsync.phases.run_context import ControllerState
from hybridsync.phases.schedule import Segment
from hybridsync.telemetry.switch_costs import StageTimer
from tests.chief.chiefs import Chief
from tests.phases.contexts import context_of
from tests.roles import CHIEF, WORKLOAD, hello, phase_of
from tests.roles import Start as StartingState
from tests.telemetry.clocks import ManualClock

SECS = 20.0
PHASE = phase_of(2)
HELD = StateVersion(PHASE.id, 0, 0, "")
ADDRESSES = ("server:0", "server:1")
NUM_BYTES = 200_000_000


@dataclass
class Server:
    """A server whose hand-over ends when `go_on` is set, or `inside` is passed."""

    inside: Callable[[], object] = lambda: None
    asked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    error: HybridSyncError | None = None

    def enter(self, phase: Phase) -> StateVersion:
        self.asked.set()
        self.inside()
        assert self.go_on.wait(SECS)
        if self.error is not None:
            raise self.error
        return HELD

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None: ...

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        raise StalePhase("nothing is captured here")

    def read(self, snapshot_id: int, into: Any) -> None: ...


class Hasty(ManualClock):
    """A clock of which every look takes a second."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return self.now


class Harness:
    """A chief with two servers and two workers, and its controller's thread."""

    def __init__(self, clock: Any = SYSTEM_CLOCK) -> None:
        self.chief = Chief(RunState(Ledger(64), 2, "schema", clock, RunStateSpec(num_servers=2)))
        for worker in range(2):
            self.chief.service.register(hello(worker))
        for server in range(2):
            self.chief.service.register(hello(server, role="server", pid=90 + server))
        self.servers = {address: Server() for address in ADDRESSES}
        self.notes: list[str] = []
        self.ticked = threading.Semaphore(0)
        self.entering = ServerEntry(self.chief.control, clock, self.ticked.release, self.notes.append)
        self.threads = ThreadPoolExecutor(1)

    def begin(self) -> Future[None]:
        """Have the servers enter; returns when both have been asked."""
        servers: Any = self.servers
        entering = self.threads.submit(self.entering.enter, PHASE, servers, NUM_BYTES)
        assert all(server.asked.wait(SECS) for server in self.servers.values()), "a server was not asked"
        return entering

    def close(self) -> None:
        for server in self.servers.values():
            server.go_on.set()
        self.threads.shutdown()


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


def test_servers_are_entered_side_by_side(harness: Harness) -> None:
    """Each hand-over waits for the other one's to have begun."""
    both = threading.Barrier(2)
    for server in harness.servers.values():
        server.inside = lambda: both.wait(SECS / 2)
        server.go_on.set()
    harness.begin().result(SECS)


def test_the_wait_ends_with_the_last_server(harness: Harness) -> None:
    entering = harness.begin()
    harness.servers["server:0"].go_on.set()
    for _ in range(3):
        assert harness.ticked.acquire(timeout=SECS)
    assert not entering.done(), "server 1 has not entered"
    harness.servers["server:1"].go_on.set()
    entering.result(SECS)


def test_a_server_that_is_lost_ends_the_wait_though_its_call_goes_on(harness: Harness) -> None:
    entering = harness.begin()
    harness.chief.service.role_lost(RoleEvent("server", 1, 91, "signal SIGKILL", 0.0))
    with pytest.raises(RoleLost, match=r"servers \[1\] were lost while they entered phase 2"):
        entering.result(SECS)
    assert not any(server.go_on.is_set() for server in harness.servers.values())


def test_a_server_that_refuses_ends_the_wait_by_its_own_words(harness: Harness) -> None:
    entering = harness.begin()
    harness.servers["server:1"].error = StalePhase("phase 2 is not newer than phase 5")
    harness.servers["server:1"].go_on.set()
    with pytest.raises(StalePhase, match="not newer than phase 5"):
        entering.result(SECS)
    assert not harness.servers["server:0"].go_on.is_set()


def test_a_phase_that_breaks_ends_the_wait_unless_it_is_the_one_that_was_left(harness: Harness) -> None:
    with harness.chief.control.turn() as state:
        state.begin(phase_of(1, "bsp", members=(0, 1)))
    entering = harness.begin()
    with harness.chief.control.turn() as state:
        state.break_phase("unit 3 is quarantined")
    with pytest.raises(PhaseBroken, match="unit 3 is quarantined"):
        entering.result(SECS)
    with harness.chief.control.turn() as state:
        state.gather()
    for server in harness.servers.values():
        server.go_on.set()
    harness.begin().result(SECS)


def test_a_run_that_is_asked_to_stop_does_not_wait_for_a_hand_over(harness: Harness) -> None:
    entering = harness.begin()
    harness.chief.service.preempt()
    with pytest.raises(Preempted, match="while servers enter phase 2"):
        entering.result(SECS)


def test_a_hand_over_that_takes_long_is_shown_with_who_fetches(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entering_module, "SAY_SECS", 0.05)
    harness.chief.service.report(Report("server", 1, 1, PHASE.id, doing=ENTERING))
    assert tuple(harness.chief.state.members.entering) == (1,)
    entering = harness.begin()
    deadline = SYSTEM_CLOCK.monotonic() + SECS
    while not harness.notes:
        assert harness.ticked.acquire(timeout=SECS) and SYSTEM_CLOCK.monotonic() < deadline
    shown = r"phase 2: the hand-over of 200\.0 MB has taken \d+ s, servers \[1\] are fetching it"
    assert re.match(shown, harness.notes[0])
    assert harness.notes[0].endswith("servers [0] have not said that they fetch it")
    harness.chief.service.report(Report("server", 1, 1, PHASE.id))
    assert tuple(harness.chief.state.members.entering) == ()
    harness.close()
    entering.result(SECS)


def test_a_server_that_is_lost_fetches_no_more(harness: Harness) -> None:
    harness.chief.service.report(Report("server", 1, 1, PHASE.id, doing=ENTERING))
    harness.chief.service.role_lost(RoleEvent("server", 1, 91, "signal SIGKILL", 0.0))
    assert tuple(harness.chief.state.members.entering) == ()


def test_a_call_that_never_ends_is_given_up_by_the_size_of_the_state() -> None:
    harness = Harness(Hasty())
    entering = harness.begin()
    with pytest.raises(WaitTimeout, match=r"servers \[0, 1\] have not answered within 130 s"):
        entering.result(SECS)
    harness.close()


def test_a_simulation_enters_one_server_after_the_other() -> None:
    order: list[int] = []
    assert [in_turn(lambda i=i: order.append(i)).done() for i in range(3)] == [True] * 3
    assert order == [0, 1, 2]
    with pytest.raises(RoleLost):
        in_turn(lambda: (_ for _ in ()).throw(RoleLost("gone")))


class Members:
    """Live workers, each with the process group that it has joined."""

    def __init__(self, groups: dict[int, str]) -> None:
        self.groups, self.begun = groups, list[Phase]()

    def live_workers(self) -> tuple[int, ...]:
        return tuple(sorted(self.groups))

    def process_groups(self, workers: tuple[int, ...]) -> set[str]:
        return {self.groups[worker] for worker in workers}

    def evict(self, role: str, worker: int, reason: str) -> None:
        del self.groups[worker]

    @contextmanager
    def turn(self) -> Iterator[Any]:
        """Stand for the chief's state and for all that is read in it."""
        workers = SimpleNamespace(ids=self.live_workers)
        yield SimpleNamespace(
            evict=self.evict,
            members=SimpleNamespace(workers=workers, process_groups=self.process_groups),
            ledger=Ledger(WORKLOAD),
            begin=lambda phase, left_out: self.begun.append(phase),
        )


class Entry:
    """The entry into a lock-step phase of three workers.

    Args:
      groups: live workers, and what they have joined.
      renewals: the same once they are back, for each time that all start again.
    """

    def __init__(self, groups: dict[int, str], *renewals: dict[int, str]) -> None:
        self.members, self.renewals = Members(groups), list(renewals)
        self.told, self.announced, self.awaited = list[str](), self.members.begun, list[tuple[int, ...]]()
        state = ControllerState(StartingState().snapshot, CHIEF, "planned", phase_id=PhaseId(1, 77))
        control: Any = SimpleNamespace(turn=self.members.turn)
        source: Any = SimpleNamespace(publish=lambda: state.snapshot)
        policy_driver: Any = SimpleNamespace(
            next_segment=lambda units: Segment("bsp", WORKLOAD, 1),
            members=self.members.live_workers,
            shares=lambda members: (),
            left_out=lambda phase: frozenset(),
        )
        arrivals: Any = SimpleNamespace(await_needed=lambda mode: None, await_again=self.await_again)
        reporter: Any = SimpleNamespace(tick=lambda: None, entered=lambda *told: None)
        pace: Any = SimpleNamespace(begin=lambda: None)
        upkeep: Any = SimpleNamespace(take_fenced=list)
        unused: Any = None
        config = RunConfig(workload=WORKLOAD, unit_size=8, workers=3, telemetry=TelemetryConfig(evaluate_units=40))
        groups_of_run = ProcessGroups(control, source, CHIEF, unused, lambda: None, self.told.append, NUM_DEVICES)
        self._stage = EntryStage(
            context_of(
                config=config,
                control=control,
                state=state,
                pace=pace,
                reporter=reporter,
                timer=StageTimer(ManualClock(), lambda *span: None),
            ),
            dict,
            unused,
            policy_driver=policy_driver,
            arrivals=arrivals,
            process_groups=groups_of_run,
            entering=unused,
            upkeep=upkeep,
        )

    def await_again(self, workers: tuple[int, ...]) -> None:
        self.awaited.append(workers)
        self.members.groups.update(self.renewals.pop(0))

    def announce(self) -> Phase:
        self._stage.announce()
        return self.announced[-1]


def test_workers_that_have_met_enter_as_they_are():
    entry = Entry({0: "first", 1: "first"})
    phase = entry.announce()
    assert phase.members == (0, 1) and entry.told == [] and phase.evaluate_units == 40


def test_a_host_that_is_lost_while_all_start_again_is_left_out_of_the_phase():
    entry = Entry(dict.fromkeys(range(3), NO_GROUP), {0: "second", 1: "second"})
    assert entry.announce().members == (0, 1)
    assert entry.told == [NONE] and entry.awaited == [(0, 1, 2)]


def test_a_worker_that_comes_while_the_others_meet_without_it_has_all_meet_once_more():
    entry = Entry(
        dict.fromkeys(range(3), NO_GROUP),
        {0: "second", 1: "second", 2: "of its own"},
        dict.fromkeys(range(3), "third"),
    )
    assert entry.announce().members == (0, 1, 2)
    assert entry.told == [NONE, APART] and entry.awaited == [(0, 1, 2), (0, 1, 2)]
