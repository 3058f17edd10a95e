"""What a stage does where something fails: a save, a holder of the state, a server, one phase after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.config import RunConfig
from hybridsync.core.errors import CheckpointError, HybridSyncError, PhaseBroken, RoleLost, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.checkpointing import RETRY_SECS, CommitStage, SaveSchedule
from hybridsync.phases.housekeeping import Housekeeping, ProgressWatchdog
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.recovery import MAX_BROKEN, GatherStage
from hybridsync.phases.run_context import Commit, ControllerState
from hybridsync.phases.state_machine import CommitFailed, Committed, Gathered
from hybridsync.telemetry.switch_costs import StageTimer
from hybridsync.training.run import Run
from tests.phases.contexts import ChiefDouble, context_of
from tests.roles import Start as StartingState
from tests.roles import phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock

WORKLOAD = 64


class FakeMembers:
    """Everybody is there; until leases are looked at after a pause of the chief, some seem silent."""

    def __init__(self) -> None:
        self.seem_silent: list[tuple[str, int]] = []

    def expire(self) -> None:
        self.seem_silent = []

    def silent(self, secs: float) -> list[tuple[str, int]]:
        return self.seem_silent


@dataclass
class FakeControl(ChiefDouble):
    """What the chief would say, and what it was told."""

    clock: ManualClock
    members: FakeMembers = field(default_factory=FakeMembers)
    num_applied: int = 8
    preempted_at: float = math.inf
    stop_reason: str | None = None
    broken: str = ""
    failure: HybridSyncError | None = None
    gathering: bool = False
    fenced: list[tuple[int, int]] = field(default_factory=list)
    over: bool = False

    @property
    def preempted(self) -> bool:
        return self.clock.monotonic() >= self.preempted_at

    def __post_init__(self) -> None:
        self.expire, self.silent = self.members.expire, self.members.silent

    def first_and_last(self) -> tuple[float, float]:
        return 0.0, 0.0

    def to_json(self, applied: Any, dropped: Any) -> dict[str, Any]:
        return Ledger(WORKLOAD).to_json(applied, dropped)

    def take_fenced(self) -> list[tuple[int, int]]:
        fenced, self.fenced = self.fenced, []
        return fenced

    def gather(self) -> str:
        return "worker 3 was lost (exit code 1)"

    def break_phase(self, why: str) -> None:
        self.broken = why

    def raise_broken(self) -> None:
        if self.broken:
            raise PhaseBroken(f"phase 1 cannot go on: {self.broken}")

    def is_over(self, phase: Phase) -> bool:
        return self.over

    def wait_until(self, ready: Any, secs: float) -> bool:
        if not ready(self):
            self.clock.advance(secs)
        return ready(self)


class Reporter:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def show_line(self, text: str) -> None: ...

    def suspect_hang(self, role: str, role_id: int, what: str, limit_secs: float, setting: str) -> None:
        self.told.append(("suspect", role, role_id))

    def renewed(self, why: str) -> None: ...

    def tick(self) -> None: ...

    def span(self, name: str, started: float, ended: float) -> None: ...

    def seconds(self) -> float:
        return 0.0

    def committed(self, commit: Commit) -> None:
        self.told.append(("committed", commit.units))

    def not_durable(self, units: int, why: str) -> None:
        self.told.append(("not durable", units, why))


class Pace:
    """Whether the phase goes on, and how often that was asked."""

    def __init__(self) -> None:
        self.num_checks = 0
        self.stuck: Exception | None = None

    def check(self, phase: Phase) -> None:
        self.num_checks += 1
        if self.stuck is not None:
            raise self.stuck


class Committer:
    """Ends every commit at once, with what a test has laid out."""

    durable = True

    def __init__(self) -> None:
        self.fails: Sequence[Exception] = ()
        self.hangs = False

    def submit(self, snapshot: Any, source: str, ledger: Any, record: Any, *, evaluate: bool, after: Any) -> Any:
        commit, evaluation = Future[Commit](), Future[Any]()
        if self.hangs:
            return commit, evaluation
        if self.fails:
            first, *self.fails = self.fails
            commit.set_exception(first)
        else:
            commit.set_result(Commit(snapshot.held.units, 512, 0.5))
        return commit, evaluation


class Server:
    def __init__(self) -> None:
        self.fences: list[tuple[int, int, int]] = []
        self.lost = False

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        if self.lost:
            raise RoleLost("server 0 does not answer")
        self.fences.append((phase_id.number, worker, incarnation))


class Harness:
    """The stages of a run of which nothing has been entered yet, or a phase."""

    def __init__(self, phase: Phase | None = None) -> None:
        config = RunConfig(workload=WORKLOAD, unit_size=1, plan="bsp:50%,asp")
        run = Run(config, tally_task(WORKLOAD), plain_sgd(), None)
        self.clock, self.reporter, self.committer = ManualClock(), Reporter(), Committer()
        self.control, self.servers = FakeControl(self.clock), {"server:0": Server(), "server:1": Server()}
        others: Any = (self.control, self.reporter, self.committer, self.servers)
        control, reporter, committer, servers = others
        unused: Any = None
        snapshot = StartingState().snapshot
        self.state = ControllerState(snapshot, "chief", "start", phase=phase)
        pace = ProgressWatchdog(control, config.hang, config.drain_secs, self.clock, reporter, threads=False)
        self.saving = saving = SaveSchedule(run, control, committer, reporter, self.clock, None)
        process_groups = ProcessGroups(control, unused, "chief", unused, unused, reporter.renewed, NUM_DEVICES)
        timer = StageTimer(self.clock, reporter.span)
        self.upkeep = Housekeeping(
            self.state, control, lambda: servers, pace, saving, process_groups, reporter, UNWATCHED
        )
        self.pace = Pace()
        watched: Any = self.pace
        shared = {"config": config, "control": control, "state": self.state, "saving": saving, "reporter": reporter}
        shared |= {"tick": self.upkeep.tick, "timer": timer}
        self.commits = CommitStage(context_of(pace=watched, **shared))
        self.gathering = GatherStage(context_of(pace=pace, **shared), unused, process_groups, self.upkeep, unused, 0.0)

    def commit(self) -> Any:
        self.commits.submit()
        return self.commits.await_commit()


def test_a_save_that_fails_is_told_and_tried_again_a_while_later_and_nobody_waits_until_then():
    harness = Harness(phase_of(3))
    harness.committer.fails = [CheckpointError("the disk is full")]
    began = harness.clock.monotonic()
    assert harness.commit() == CommitFailed() and harness.clock.monotonic() == began
    assert harness.saving.secs_to_retry == RETRY_SECS
    assert harness.commit() == Committed() and harness.saving.secs_to_retry == math.inf
    assert harness.reporter.told == [("not durable", 0, "the disk is full"), ("committed", 0)]


def test_a_save_that_fails_again_and_again_is_tried_ever_more_rarely():
    harness, pauses = Harness(), list[float]()
    harness.committer.fails = [CheckpointError("the disk is full")] * 6
    for _ in range(6):
        harness.commit()
        pauses.append(harness.saving.secs_to_retry)
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0]), "every 10 s the state is saved anyway"
    assert harness.commit() == Committed()
    harness.committer.fails = [CheckpointError("the disk is full")]
    assert harness.commit() == CommitFailed() and harness.saving.secs_to_retry == pytest.approx(RETRY_SECS)


def failed(phase: Phase | None, times: int) -> Harness:
    """Return the stages of a run whose last saves have failed."""
    harness = Harness(phase)
    harness.committer.fails = [CheckpointError("the disk is full")] * times
    for _ in range(times):
        assert harness.commit() == CommitFailed()
    return harness


def test_a_begin_waits_but_a_short_while_until_the_save_before_it_is_tried_again():
    """The phase may be at its end, and every worker idle: a disk that has recovered is to be noticed."""
    harness, pauses = failed(replace(phase_of(3), spec="bsp"), 6), list[float]()
    for _ in range(5):
        began = harness.clock.monotonic()
        harness.commits.await_retry()
        pauses.append(harness.clock.monotonic() - began)
        harness.committer.fails = [CheckpointError("the disk is full")]
        assert harness.commit() == CommitFailed()
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 5.0, 5.0])


@pytest.mark.parametrize("over", [False, True])
def test_hung_members_are_looked_for_while_a_begin_waits_unless_the_phase_is_at_its_end(over: bool):
    """Of a phase at its end nobody steps, and nobody is to be given up for it."""
    harness = failed(phase_of(3), 3)
    harness.control.over = over
    harness.commits.await_retry()
    assert (harness.pace.num_checks > 10) == (not over)


def test_threads_that_stand_still_while_a_begin_waits_for_a_commit_are_no_failed_save():
    harness = Harness(phase_of(3))
    harness.committer.hangs, harness.pace.stuck = True, WaitTimeout("workers [1] have been at one unit for too long")
    with pytest.raises(WaitTimeout, match=r"workers \[1\]"):
        harness.commit()
    assert harness.reporter.told == []


def test_a_run_that_is_asked_to_stop_tries_its_save_at_once():
    harness = failed(phase_of(3), 4)
    harness.control.preempted_at = harness.clock.monotonic() + 0.5
    harness.commits.await_retry()
    assert harness.clock.monotonic() == pytest.approx(harness.control.preempted_at, abs=0.1)
    began = harness.clock.monotonic()
    harness.commits.await_retry()
    assert harness.clock.monotonic() - began == pytest.approx(2.0), "it knows already, and the disk refuses"


def test_a_phase_that_breaks_ends_the_wait_behind_a_save_that_failed():
    harness = failed(phase_of(3), 4)
    harness.control.fenced, harness.servers["server:0"].lost = [(2, 1)], True
    began = harness.clock.monotonic()
    with pytest.raises(PhaseBroken, match="server 0 does not answer"):
        harness.commits.await_retry()
    assert harness.clock.monotonic() - began < 1.0


def test_the_last_save_of_a_run_fails_with_it():
    harness = Harness()
    harness.state.is_ending, harness.committer.fails = True, [CheckpointError("the disk is full")]
    with pytest.raises(CheckpointError, match="the disk is full"):
        harness.commit()
    assert harness.reporter.told == []


def test_a_last_state_whose_holder_is_gone_is_looked_for_elsewhere():
    harness = Harness()
    harness.state.is_ending, harness.committer.fails = True, [RoleLost("worker 0 does not answer")]
    assert harness.commit() == CommitFailed()
    assert harness.control.broken == "the last state could not be fetched: worker 0 does not answer"


@pytest.mark.parametrize("look", [Housekeeping.tick, Housekeeping.look_around])
def test_nobody_is_suspected_for_a_pause_of_the_chief(look: Callable[[Housekeeping], None]):
    harness = Harness(phase_of(3))
    harness.control.members.seem_silent = [("server", 0), ("worker", 1)]
    look(harness.upkeep)
    assert harness.reporter.told == []


def test_the_primary_alone_hears_once_of_a_worker_that_is_lost():
    harness = Harness(phase_of(3))
    harness.control.fenced = [(2, 1), (0, 4)]
    harness.upkeep.tick()
    harness.upkeep.tick()
    assert [server.fences for server in harness.servers.values()] == [[(3, 2, 1), (3, 0, 4)], []]


def test_a_worker_that_is_lost_while_servers_enter_is_told_of_when_they_have():
    harness = Harness(phase_of(3))
    harness.control.fenced = [(2, 1)]
    harness.upkeep.look_around()
    assert [server.fences for server in harness.servers.values()] == [[], []]
    harness.upkeep.tick()
    assert [server.fences for server in harness.servers.values()] == [[(3, 2, 1)], []]


@pytest.mark.parametrize("spoil", ["no phase", "lock-step", "broken"])
def test_no_server_hears_of_a_loss_that_is_none_of_a_phase_under_way(spoil: str):
    harness = Harness(None if spoil == "no phase" else phase_of(3))
    if spoil == "lock-step":
        harness.state.phase = replace(phase_of(3), spec="bsp")
    harness.control.broken = "server 0 is lost" if spoil == "broken" else ""
    harness.control.fenced = [(2, 1)]
    harness.upkeep.tick()
    assert all(server.fences == [] for server in harness.servers.values()) and harness.control.fenced == []


def test_a_primary_that_cannot_be_told_breaks_the_phase():
    harness = Harness(phase_of(3))
    harness.control.fenced, harness.servers["server:0"].lost = [(2, 1)], True
    with pytest.raises(PhaseBroken):
        harness.upkeep.tick()
    assert "could not be told of the loss of worker 2" in harness.control.broken


def test_a_run_gives_up_when_one_phase_after_another_breaks_before_a_unit():
    harness = Harness()
    for _ in range(MAX_BROKEN):
        assert harness.gathering.gather() == Gathered(last=False)
    with pytest.raises(HybridSyncError, match=r"11 phases in a row .*worker 3 was lost \(exit code 1\)"):
        harness.gathering.gather()
