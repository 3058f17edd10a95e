"""What a stage does where something fails: a save, a holder of the state, a server, one phase after another."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.config import RunConfig
from hybridsync.core.errors import CheckpointError, HybridSyncError, PhaseBroken, RoleLost
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.checkpointing import Commit
from hybridsync.phases.commit_stage import RETRY_SECS, CommitStage
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery_stage import MAX_BROKEN, GatherStage
from hybridsync.phases.save_schedule import SaveSchedule
from hybridsync.phases.stage_timer import StageTimer
from hybridsync.phases.state_machine import CommitFailed, Committed, Gathered
from hybridsync.policies.straggler_detector import Judged
from hybridsync.training.run import Run
from tests.roles import Start as StartingState
from tests.roles import phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock

WORKLOAD = 64


@dataclass
class FakeControl:
    """What the chief would say, and what it was told."""

    clock: ManualClock
    num_applied: int = 8
    preempted: bool = False
    broken: str = ""
    failure: HybridSyncError | None = None
    gathering: bool = False
    fenced: list[tuple[int, int]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=lambda: Ledger(WORKLOAD))

    def expire(self) -> None: ...

    def stamps(self) -> tuple[float, float]:
        return 0.0, 0.0

    def live_workers(self) -> tuple[int, ...]:
        return 0, 1, 2, 3

    def judged(self) -> Judged:
        return Judged((), {}, None)

    def take_fenced(self) -> list[tuple[int, int]]:
        fenced, self.fenced = self.fenced, []
        return fenced

    def gather(self) -> str:
        return "worker 3 was lost (exit code 1)"

    def break_phase(self, why: str) -> None:
        self.broken = why

    def as_broken(self) -> PhaseBroken:
        return PhaseBroken(f"phase 1 cannot go on: {self.broken}")

    def wait_until(self, ready: Any, secs: float) -> bool:
        if not ready():
            self.clock.advance(secs)
        return ready()


class Reporter:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def show_line(self, text: str) -> None: ...

    def renewed(self, why: str) -> None: ...

    def tick(self) -> None: ...

    def span(self, name: str, started: float, ended: float) -> None: ...

    def seconds(self) -> float:
        return 0.0

    def committed(self, commit: Commit) -> None:
        self.told.append(("committed", commit.units))

    def not_durable(self, units: int, why: str) -> None:
        self.told.append(("not durable", units, why))


class Committer:
    """Ends every commit at once, with what a test has laid out."""

    durable = True

    def __init__(self) -> None:
        self.fails: Sequence[Exception] = ()

    def submit(self, snapshot: Any, source: str, ledger: Any, record: Any, *, evaluate: bool, after: Any) -> Any:
        commit, evaluation = Future[Commit](), Future[Any]()
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
        pace = ProgressWatchdog(control, config.drain_secs, self.clock, reporter.show_line, threads=False)
        saving = SaveSchedule(run, control, committer, reporter, self.clock, None)
        process_groups = ProcessGroups(control, unused, "chief", unused, unused, reporter.renewed, NUM_DEVICES)
        timer = StageTimer(self.clock, reporter.span)
        self.upkeep = Housekeeping(
            self.state, control, lambda: servers, pace, saving, process_groups, reporter, UNWATCHED
        )
        self.commits = CommitStage(self.state, 0, control, saving, reporter, self.upkeep.tick)
        self.gathering = GatherStage(
            self.state, WORKLOAD, control, pace, unused, process_groups, reporter, timer, self.upkeep, unused, 0.0
        )

    def commit(self) -> Any:
        self.commits.submit()
        return self.commits.await_commit()


def test_a_save_that_fails_is_told_and_tried_again_a_while_later():
    harness = Harness()
    harness.committer.fails = [CheckpointError("the disk is full")]
    began = harness.clock.monotonic()
    assert harness.commit() == CommitFailed() and harness.clock.monotonic() - began == RETRY_SECS
    assert harness.commit() == Committed()
    assert harness.reporter.told == [("not durable", 0, "the disk is full"), ("committed", 0)]


def test_a_save_that_fails_again_and_again_is_tried_ever_more_rarely():
    harness, pauses = Harness(), list[float]()
    harness.committer.fails = [CheckpointError("the disk is full")] * 6
    for _ in range(6):
        began = harness.clock.monotonic()
        harness.commit()
        pauses.append(harness.clock.monotonic() - began)
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0]), "every 10 s the state is saved anyway"
    assert harness.commit() == Committed()
    harness.committer.fails = [CheckpointError("the disk is full")]
    began = harness.clock.monotonic()
    assert harness.commit() == CommitFailed() and harness.clock.monotonic() - began == pytest.approx(RETRY_SECS)


def test_a_phase_that_breaks_ends_the_pause_behind_a_save_that_failed():
    harness = Harness(phase_of(3))
    harness.committer.fails = [CheckpointError("the disk is full")] * 4
    for _ in range(3):
        harness.commit()
    harness.control.fenced, harness.servers["server:0"].lost = [(2, 1)], True
    began = harness.clock.monotonic()
    assert harness.commit() == CommitFailed() and harness.clock.monotonic() - began == pytest.approx(RETRY_SECS)
    assert harness.control.broken


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
