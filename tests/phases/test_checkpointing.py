"""Commits behind the training: in order, after those who train, and never in anybody's way when the disk is bad."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunControl
from hybridsync.config import CheckpointConfig, RunConfig, TelemetryConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import CheckpointError, HybridSyncError, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.commands import Evaluation, Figure
from hybridsync.interfaces.messages import EvaluationRequest, Snapshot, StateVersion
from hybridsync.phases import checkpointing
from hybridsync.phases.checkpointing import LEAVING_SECS, RETRY_SECS, Committer, SaveSchedule
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import Commit, Measured
from hybridsync.training import evaluation
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.run import Run
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer
from hybridsync.training.state import TrainState
from tests.phases.contexts import ChiefDouble
from tests.roles import Start, phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock

SECS = 10.0
PHASE_ID = PhaseId(3, 5)
FREE = threading.Event()
FREE.set()


def state_of(value: float) -> TrainState:
    return TrainState({"w": np.full((30,), value, np.float32)}, {}, {}, {}, {"units": np.int32(value)})


class Disk:
    """A store that does what a test tells it."""

    def __init__(self) -> None:
        self.saved: list[tuple[TrainState, int, dict[str, Any], dict[str, Any]]] = []
        self.error: Exception | None = None
        self.spins = threading.Event()
        self.spins.set()
        self.reached = threading.Event()

    def save(self, state: Any, *, units: int, ledger: dict[str, Any], run: dict[str, Any]) -> Any:
        self.reached.set()
        assert self.spins.wait(SECS)
        if self.error is not None:
            raise self.error
        self.saved.append((state, units, ledger, run))
        return SimpleNamespace(bytes=123)


class Evaluator(evaluation.Evaluator):
    """Knows a state by its first parameter, and remembers which units were said to be in it."""

    def __init__(self) -> None:
        self.seen: list[UnitSet] = []

    def evaluate(self, state: TrainState, applied: UnitSet) -> dict[str, float] | None:
        self.seen.append(applied)
        return {"loss": float(state.params["w"][0])}


class Bench:
    """A committer, and what stands around it."""

    def __init__(self) -> None:
        self.snapshot_buffer, self.disk, self.evaluator = SnapshotBuffer(Layout.of(state_of(0))), Disk(), Evaluator()
        first = StateVersion(PhaseId(0, 0), 0, 0, fingerprint(state_of(0)))
        start, layout = Snapshot(1, first, (), (), 0, 0.0, 0.0), self.snapshot_buffer.layout
        self.committed = CommittedState(layout, start, state_of(0))
        self.committer = self.committer_to(self.disk)

    def committer_to(self, store: Any, elsewhere: Any = None) -> Committer:
        layout = Layout.of(state_of(0))
        reader_at = {"holder": self.snapshot_buffer}.__getitem__
        committed = self.committed
        return Committer(store, layout, reader_at, self.evaluator, SYSTEM_CLOCK, committed, elsewhere=elsewhere)

    def take_snapshot(self, units: int) -> Snapshot:
        self.snapshot_buffer.pack(state_of(units))
        return self.snapshot_buffer.finalize(PHASE_ID, sequence=units, applied=[(0, units)])

    def submit(self, snapshot: Snapshot, *, evaluate: bool = True, after: threading.Event = FREE) -> Any:
        return self.committer.submit(snapshot, "holder", {"issued": 9}, {"phase": 3}, evaluate=evaluate, after=after)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.disk.spins.set()
    bench.committer.close()


def test_a_commit_saves_the_captured_state_with_its_record_and_evaluates_it(bench: Bench) -> None:
    commit, evaluation = bench.submit(bench.take_snapshot(4))
    told = commit.result(SECS)
    assert (told.units, told.bytes) == (4, 123) and 0.0 <= told.secs < SECS
    ((state, units, ledger, run),) = bench.disk.saved
    assert fingerprint(state) == fingerprint(state_of(4)) == fingerprint(bench.committed.state)
    assert (units, ledger, run) == (4, {"issued": 9}, {"phase": 3})
    assert evaluation.result(SECS).figures == {"loss": 4.0}
    assert bench.evaluator.seen == [UnitSet([(0, 4)])]


@pytest.mark.parametrize("figures", [{"loss": 0.5}, {}])
def test_a_worker_is_asked_for_the_figures_of_what_was_captured(bench: Bench, figures: dict[str, float]) -> None:
    asked: list[EvaluationRequest] = []

    def elsewhere(request: EvaluationRequest) -> Evaluation:
        asked.append(request)
        return Evaluation(4, tuple(Figure(*each) for each in figures.items()))

    bench.committer = bench.committer_to(bench.disk, elsewhere)
    snapshot = bench.take_snapshot(4)
    found = bench.submit(snapshot)[1].result(SECS)
    assert (found and found.figures) == (figures or None)
    assert asked == [EvaluationRequest("holder", snapshot.snapshot_id, snapshot.held.fingerprint)]
    assert bench.evaluator.seen == []


def test_a_state_is_measured_here_where_no_worker_does_it(bench: Bench) -> None:
    def elsewhere(request: EvaluationRequest) -> Evaluation:
        raise RoleLost("the worker is gone")

    bench.committer = bench.committer_to(bench.disk, elsewhere)
    assert bench.submit(bench.take_snapshot(4))[1].result(SECS).figures == {"loss": 4.0}


def test_a_state_that_is_not_asked_for_figures_is_not_evaluated(bench: Bench) -> None:
    assert bench.submit(bench.take_snapshot(4), evaluate=False)[1].result(SECS) is None
    assert bench.evaluator.seen == []


def test_without_a_workdir_nothing_is_durable_and_the_state_is_fetched_and_evaluated_all_the_same(
    bench: Bench,
) -> None:
    assert bench.committer.durable
    bench.committer = bench.committer_to(None)
    assert not bench.committer.durable
    commit, evaluation = bench.submit(bench.take_snapshot(2))
    assert commit.result(SECS).bytes == 0
    assert evaluation.result(SECS).figures == {"loss": 2.0}


def test_the_fetch_waits_for_those_who_need_the_state_to_train(bench: Bench) -> None:
    training = threading.Event()
    commit, _ = bench.submit(bench.take_snapshot(4), after=training)
    assert not bench.disk.reached.wait(0.1) and bench.committed.units == 0
    training.set()
    assert commit.result(SECS).units == 4


def test_the_fetch_does_not_wait_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "YIELD_SECS", 0.05)
    assert bench.submit(bench.take_snapshot(4), after=threading.Event())[0].result(SECS).units == 4


def test_commits_come_in_the_order_in_which_they_were_asked_for(bench: Bench) -> None:
    bench.disk.spins.clear()
    first = bench.submit(bench.take_snapshot(1))
    assert bench.disk.reached.wait(SECS)  # its state is fetched: the holder may keep another
    second = bench.submit(bench.take_snapshot(2))
    bench.disk.spins.set()
    assert [future.result(SECS).figures for future in (first[1], second[1])] == [{"loss": 1.0}, {"loss": 2.0}]
    assert [units for _, units, _, _ in bench.disk.saved] == [1, 2]


def test_a_state_is_kept_as_soon_as_it_is_durable_and_not_before(bench: Bench) -> None:
    bench.disk.spins.clear()
    snapshot = bench.take_snapshot(3)
    commit, _ = bench.submit(snapshot)
    assert bench.disk.reached.wait(SECS) and bench.committed.units == 0
    bench.disk.spins.set()
    commit.result(SECS)
    assert bench.committed.publish().held == snapshot.held
    assert fingerprint(bench.committed.state) == snapshot.held.fingerprint


def test_a_state_that_could_not_be_saved_is_not_kept(bench: Bench) -> None:
    bench.disk.error = CheckpointError("the disk is full")
    assert bench.submit(bench.take_snapshot(4))[0].exception(SECS) is bench.disk.error
    assert bench.committed.units == 0


def test_a_failed_save_leaves_its_error_in_the_future_and_the_next_is_made(bench: Bench) -> None:
    bench.disk.error = CheckpointError("the disk is full")
    commit, evaluation = bench.submit(bench.take_snapshot(4))
    with pytest.raises(CheckpointError, match="the disk is full"):
        commit.result(SECS)
    assert evaluation.result(SECS).figures == {"loss": 4.0}, "the state is known, though not saved"
    bench.disk.error = None
    assert bench.submit(bench.take_snapshot(5))[0].result(SECS).units == 5


def test_a_failed_fetch_saves_nothing_and_has_no_evaluation(bench: Bench) -> None:
    overtaken = bench.take_snapshot(4)
    bench.take_snapshot(5)
    commit, evaluation = bench.submit(overtaken)
    with pytest.raises(StalePhase, match="no longer kept"):
        commit.result(SECS)
    assert evaluation.result(SECS) is None
    assert bench.disk.saved == [] and bench.committed.units == 0


def test_an_evaluation_that_raises_says_so_to_who_asks_for_it(bench: Bench) -> None:
    def evaluate(state: TrainState, applied: UnitSet) -> None:
        raise ZeroDivisionError("no examples")

    bench.evaluator.evaluate = evaluate
    commit, evaluation = bench.submit(bench.take_snapshot(4))
    with pytest.raises(ZeroDivisionError, match="no examples"):
        evaluation.result(SECS)
    assert commit.result(SECS).units == 4


def test_a_commit_that_waited_in_vain_says_for_whom(bench: Bench) -> None:
    """The disk is not to blame for a holder that did not answer."""
    bench.disk.error = WaitTimeout("server 0 did not answer")
    with pytest.raises(WaitTimeout, match="server 0 did not answer"):
        bench.submit(bench.take_snapshot(4))[0].result(SECS)


def test_a_large_state_is_given_longer_to_be_fetched_and_written() -> None:
    seconds = checkpointing.commit_secs(0), checkpointing.commit_secs(2_000_000_000)
    assert seconds == pytest.approx((checkpointing.COMMIT_DEADLINE_SECS, checkpointing.COMMIT_DEADLINE_SECS + 200.0))


# --- the end ---


def test_closing_waits_for_the_commit_under_way(bench: Bench) -> None:
    bench.disk.spins.clear()
    commit, _ = bench.submit(bench.take_snapshot(4))
    assert bench.disk.reached.wait(SECS)
    threading.Timer(0.1, bench.disk.spins.set).start()
    bench.committer.close()
    assert commit.done() and len(bench.disk.saved) == 1


def test_closing_leaves_an_error_where_it_is(bench: Bench) -> None:
    bench.disk.error = HybridSyncError("the disk is gone")
    commit, _ = bench.submit(bench.take_snapshot(4))
    bench.committer.close()
    assert isinstance(commit.exception(0), HybridSyncError)


def test_closing_leaves_a_hung_disk_behind_and_names_the_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointing, "COMMIT_DEADLINE_SECS", 0.2)
    bench.disk.spins.clear()
    started = SYSTEM_CLOCK.monotonic()
    commit, _ = bench.submit(bench.take_snapshot(4))
    bench.committer.close()
    assert 0.1 < SYSTEM_CLOCK.monotonic() - started < SECS / 2
    assert "The checkpoint of 4 units did not end within 0.2 s" in caplog.text
    assert not commit.done()
    caplog.clear()
    bench.committer.close()
    assert SYSTEM_CLOCK.monotonic() - started < SECS / 2, "its time is counted from the request"


def test_a_process_whose_disk_hangs_can_end() -> None:
    """Python waits for the threads of its executors before it ends; a commit's is none of them."""
    program = (
        "import threading\n"
        "from hybridsync.phases.checkpointing import _Queue\n"
        "hangs = threading.Event()\n"
        "future = _Queue('commit').submit(lambda: (hangs.set(), threading.Event().wait()))\n"
        "assert hangs.wait(60)\n"
        "print('ends', future.done())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert ended.stdout == "ends False\n"


WORKLOAD, EVERY_SECS, EVALUATE_UNITS = 1000, 10.0, 100
PHASE = phase_of(1, end=WORKLOAD)


@dataclass
class Chief(ChiefDouble):
    """What the chief knows, and a wait in which the clock goes on."""

    clock: ManualClock
    num_applied: int = 0
    rates: dict[int, float] = field(default_factory=lambda: {0: 50.0, 1: 50.0})
    stamps: tuple[float, float] = (1.0, 2.0)
    preempted: bool = False
    is_leaving: bool = False
    stop_reason: str | None = None

    def to_json(self, applied: Any, dropped: Any) -> dict[str, Any]:
        return Ledger(WORKLOAD).to_json(applied, dropped)

    def worker_rates(self) -> dict[int, float]:
        return self.rates

    def first_and_last(self) -> tuple[float, float]:
        return self.stamps

    def wait_until(self, ready: Any, secs: float) -> bool:
        if not ready(self):
            self.clock.advance(secs)
        return ready(self)


@dataclass
class PendingCommits:
    """Takes what is submitted; a test ends it."""

    durable: bool = True
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def submit(self, snapshot: Snapshot, source: str, ledger: Any, run: Any, *, evaluate: bool, after: Any) -> Any:
        commit, evaluation = Future[Commit](), Future[Any]()
        given = {"ledger": ledger, "record": run, "evaluate": evaluate, "after": after}
        self.submitted.append({**given, "commit": commit, "evaluation": evaluation})
        return commit, evaluation

    def close(self) -> None: ...


class Told(Reporter):
    def __init__(self) -> None:
        self.told: list[tuple[int, Any]] = []
        self.captured = 12.5
        self.left_out: list[tuple[Any, ...]] = []
        self.places: list[int] = []

    def seconds(self) -> float:
        return 12.5

    def measured_until(self, applied: int) -> int:
        return applied

    def evaluated(self, units: int, captured: float, outcome: Callable[[], Any], place: int = 0) -> None:
        assert captured == self.captured, "seconds at which the state was handed over, or kept"
        self.told.append((units, outcome().figures))
        self.places.append(place)

    def skipped(self, places: Sequence[int], units: int, why: str) -> None:
        self.left_out.append((places[0], places[-1], len(places), units) + ("stops",) * ("asked to stop" in why))


class Harness:
    """A `SaveSchedule` in its first phase."""

    def __init__(self, durable: bool = True) -> None:
        config = RunConfig(
            workload=WORKLOAD,
            unit_size=8,
            workers=2,
            plan="asp",
            checkpoint=CheckpointConfig(secs=EVERY_SECS),
            telemetry=TelemetryConfig(evaluate_units=EVALUATE_UNITS),
        )
        self.clock, self.reporter = ManualClock(), Told()
        self.chief, self.committer = Chief(self.clock), PendingCommits(durable)
        run = Run(config, tally_task(WORKLOAD), plain_sgd(1.0), None)
        control = cast("RunControl", self.chief)  # what saving asks of it is all in Chief
        self.saving = SaveSchedule(run, control, self.committer, self.reporter, self.clock, None)
        self.snapshot = Start().snapshot

    def submit(self, evaluate: bool = False) -> dict[str, Any]:
        self.saving.submit(self.snapshot, "holder", 3, evaluate=evaluate)
        return self.committer.submitted[-1]

    def evaluate(self, units: int) -> None:
        """Hand over a state with so many units, whose evaluation ends at once."""
        held = dataclasses.replace(self.snapshot.held, units=units)
        self.saving.submit(dataclasses.replace(self.snapshot, held=held), "holder", 3, evaluate=True)
        self.committer.submitted[-1]["evaluation"].set_result(Measured({}, 0.25))
        self.saving.collect()

    def committed(self, secs: float = 0.0) -> Commit:
        """Save once; it takes `secs`."""
        self.submit()["commit"].set_result(Commit(0, 99, secs))
        return self.saving.wait(lambda: None)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_what_is_submitted_says_where_the_run_is(harness):
    given = harness.submit(evaluate=True)
    record = given["record"]
    assert (record["phase"], record["sequence"], record["seconds"]) == (3, 0, 12.5)
    assert record["fingerprint"] == harness.snapshot.held.fingerprint and record["config"]["workload"] == WORKLOAD
    assert (given["ledger"]["workload"], given["evaluate"], given["after"]) == (WORKLOAD, True, harness.saving.training)
    assert harness.saving.submitted is harness.snapshot


def test_a_commit_is_under_way_until_it_is_waited_for(harness):
    given = harness.submit()
    assert harness.saving.under_way and not harness.saving.done
    given["commit"].set_result(Commit(0, 99, 0.5))
    assert harness.saving.under_way and harness.saving.done
    assert harness.saving.wait(lambda: None) == Commit(0, 99, 0.5)
    assert not harness.saving.under_way and not harness.saving.done


def test_whoever_waits_for_a_commit_lets_it_go_first_and_ticks_meanwhile(harness):
    given = harness.submit()
    harness.saving.training.clear()
    ticks = []

    def tick() -> None:
        assert harness.saving.training.is_set()
        ticks.append(harness.clock.monotonic())
        if len(ticks) == 3:
            given["commit"].set_result(Commit(0, 99, 0.5))

    harness.saving.wait(tick)
    assert len(ticks) == 3


def test_a_commit_that_fails_or_does_not_end_is_under_way_no_more(harness, monkeypatch):
    harness.submit()["commit"].set_exception(CheckpointError("the disk is full"))
    with pytest.raises(CheckpointError, match="full"):
        harness.saving.wait(lambda: None)
    assert not harness.saving.under_way
    monkeypatch.setattr(checkpointing, "COMMIT_DEADLINE_SECS", 1.0)
    harness.submit()
    with pytest.raises(WaitTimeout, match=r"the checkpoint did not end within 1\.0 s; is the disk hanging"):
        harness.saving.wait(lambda: None)
    assert not harness.saving.under_way


def test_only_a_commit_of_more_than_somebody_holds_is_let_end(harness):
    ticks: list[float] = []
    assert not harness.saving.await_newer(-1, lambda: ticks.append(0.0)), "none is under way"
    given = harness.submit()
    units = harness.snapshot.held.units
    assert not harness.saving.await_newer(units, lambda: ticks.append(0.0)) and not ticks
    assert harness.saving.await_newer(units - 1, lambda: given["commit"].set_result(Commit(0, 99, 0.5)))
    assert harness.saving.under_way, "it is taken note of later"


def test_a_save_is_due_so_many_seconds_after_the_last_one_was_taken_note_of(harness):
    harness.committed()
    harness.clock.advance(EVERY_SECS - 0.1)
    assert not harness.saving.is_due(PHASE)
    harness.clock.advance(0.2)
    assert harness.saving.is_due(PHASE)
    harness.submit()
    assert not harness.saving.is_due(PHASE), "one is under way"


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({}, True),
        ({"stamps": (0.0, 0.0)}, False),
        ({"rates": {}}, False),
        ({"num_applied": WORKLOAD - 240}, False),
        ({"num_applied": WORKLOAD - 260}, True),
    ],
    ids=["in the middle", "before its first unit", "at no known rate", "2.4 s before its end", "2.6 s before its end"],
)
def test_nothing_is_saved_that_the_end_of_the_phase_would_overtake(harness, change, due):
    """A save of one second is worth its while when more than twice that is left, and half a second."""
    harness.committed(secs=1.0)
    harness.clock.advance(EVERY_SECS + 0.1)
    for name, value in change.items():
        setattr(harness.chief, name, value)
    if harness.saving.evaluation_is_due:
        harness.saving.leave(harness.chief.num_applied)
    assert harness.saving.is_due(PHASE) == due


@pytest.mark.parametrize("durable", [True, False], ids=["to the disk", "into the chief's memory"])
def test_a_save_that_failed_is_due_a_while_later_also_right_before_the_end_of_the_phase(durable):
    """The end waits for it, so that every moment before it counts."""
    harness = Harness(durable=durable)
    harness.committed(secs=1.0)
    harness.submit()["commit"].set_exception(CheckpointError("the disk is full"))
    with pytest.raises(CheckpointError):
        harness.saving.wait(lambda: None)
    assert harness.saving.secs_to_retry == math.inf
    harness.saving.put_off()
    harness.chief.num_applied = 90
    harness.chief.rates = {0: 1e6}
    assert harness.saving.secs_to_retry == RETRY_SECS and not harness.saving.is_due(PHASE)
    harness.clock.advance(RETRY_SECS)
    assert harness.saving.secs_to_retry == math.inf and harness.saving.is_due(PHASE)
    harness.chief.stamps = (0.0, 0.0)
    assert harness.saving.is_due(PHASE), "servers hold a phase's state from its start"
    assert not harness.saving.is_due(replace(PHASE, spec="bsp")), "its members may not hold it yet"
    harness.chief.stamps = (1.0, 2.0)
    harness.submit()
    assert not harness.saving.is_due(PHASE), "it is tried"


def test_a_run_without_a_workdir_saves_only_what_is_to_be_evaluated():
    harness = Harness(durable=False)
    harness.clock.advance(2 * EVERY_SECS)
    assert not harness.saving.is_due(PHASE)
    harness.chief.num_applied = EVALUATE_UNITS
    assert harness.saving.is_due(PHASE)
    assert harness.saving.evaluation_is_due
    harness.evaluate(EVALUATE_UNITS)
    assert not harness.saving.is_due(PHASE)


def test_an_evaluation_is_due_at_every_multiple_and_a_late_one_tells_which_it_missed(harness):
    seen = []
    for units in (99, 100, 150, 199, 350, 399, 400):
        harness.chief.num_applied = units
        if harness.saving.evaluation_is_due:
            seen.append(units)
            harness.evaluate(units)
    assert seen == [100, 350, 400]
    assert harness.reporter.left_out == [(200, 200, 1, 350)], "the one at 350 stands for 300"
    harness.evaluate(1000)  # the run's end, in any case
    assert harness.reporter.left_out[1:] == [(500, 900, 5, 1000)]


def test_a_state_that_was_kept_at_a_place_is_as_old_as_its_last_update(harness):
    """Its evaluation has that time, and the save after it is due by so much earlier."""
    harness.clock.advance(100.0)
    held = dataclasses.replace(harness.snapshot.held, units=100)
    snapshot = dataclasses.replace(harness.snapshot, held=held)
    captured = harness.clock.monotonic() - 4.0
    harness.reporter.captured = 8.5
    harness.saving.submit(snapshot, "holder", 3, evaluate=True, captured=captured)
    given = harness.committer.submitted[-1]
    given["commit"].set_result(Commit(100, 99, 0.0))
    given["evaluation"].set_result(Measured({}, 0.25))
    harness.saving.wait(lambda: None)
    harness.saving.collect()
    assert harness.reporter.told == [(100, {})]
    harness.clock.advance(EVERY_SECS - 4.1)
    assert not harness.saving.is_due(PHASE)
    harness.clock.advance(0.2)
    assert harness.saving.is_due(PHASE)


def test_a_save_passes_a_place_that_has_no_room_for_an_evaluation(harness):
    """The holder has dropped the state of that place: a later one would not be that of any place."""
    held = dataclasses.replace(harness.snapshot.held, units=130)
    harness.saving.submit(dataclasses.replace(harness.snapshot, held=held), "holder", 3, evaluate=False)
    assert harness.reporter.left_out == [(100, 100, 1, 130)] and harness.saving.next_place == 200


def test_no_place_is_asked_for_where_one_evaluation_waits_for_another(harness):
    assert harness.saving.next_place == 100
    for units in (100, 200):
        held = dataclasses.replace(harness.snapshot.held, units=units)
        harness.saving.submit(dataclasses.replace(harness.snapshot, held=held), "holder", 3, evaluate=True)
    assert harness.saving.next_place == 0
    harness.committer.submitted[0]["evaluation"].set_result(Measured({}, 0.25))
    harness.saving.collect()
    assert harness.saving.next_place == 300


def test_an_evaluation_at_a_phases_end_stands_for_the_place_before_it(harness):
    harness.evaluate(130)
    harness.chief.num_applied = 199
    assert not harness.saving.evaluation_is_due
    harness.chief.num_applied = 200
    assert harness.saving.evaluation_is_due and harness.reporter.left_out == []


def test_the_state_that_was_captured_counts_not_what_was_applied_when_it_was_due(harness):
    harness.chief.num_applied = 100
    assert harness.saving.evaluation_is_due
    harness.evaluate(210)
    harness.chief.num_applied = 290
    assert not harness.saving.evaluation_is_due and harness.reporter.left_out == [(100, 100, 1, 210)]


def test_reporter_is_given_the_place_of_an_evaluation_and_none_for_a_state_between_places(harness):
    for units in (100, 130, 210, 405):
        harness.evaluate(units)
    assert harness.reporter.places == [100, 0, 200, 400]


def test_a_place_whose_state_could_not_be_captured_is_still_due(harness):
    harness.chief.num_applied = 100
    assert harness.saving.evaluation_is_due  # and the capture fails
    harness.chief.num_applied = 120
    assert harness.saving.evaluation_is_due and harness.reporter.left_out == []


def test_a_run_that_stops_tells_of_each_place_without_an_evaluation(harness):
    harness.evaluate(100)
    harness.saving.leave(199)
    assert harness.reporter.left_out == []
    harness.saving.leave(310)
    assert harness.reporter.left_out == [(200, 300, 2, 310, "stops")]


def test_evaluations_are_told_in_their_order_as_they_end(harness):
    first, second = harness.submit(evaluate=True), harness.submit(evaluate=True)
    harness.submit(evaluate=False)
    second["evaluation"].set_result(Measured({"loss": 2.0}, 0.25))
    harness.saving.collect()
    assert harness.reporter.told == [], "the first has not ended"
    first["evaluation"].set_result(Measured({"loss": 1.0}, 0.25))
    harness.saving.collect(all_of_them=True)
    assert [figures for _, figures in harness.reporter.told] == [{"loss": 1.0}, {"loss": 2.0}]


@pytest.mark.parametrize("stop_reason", [None, "a callback has stopped the run before"])
@pytest.mark.parametrize("asked_at", [0.0, 300.0, checkpointing.COMMIT_DEADLINE_SECS - 1.0, math.inf])
def test_a_run_that_is_asked_to_stop_waits_for_an_evaluation_but_a_moment_more(
    harness, monkeypatch, asked_at, stop_reason
):
    began = harness.clock.monotonic()

    def pass_time(futures: Any, secs: float) -> None:
        harness.clock.advance(1.0)
        harness.chief.is_leaving = harness.clock.monotonic() - began >= asked_at

    monkeypatch.setattr(checkpointing, "wait", pass_time)
    harness.chief.is_leaving = not asked_at
    harness.chief.stop_reason, harness.chief.preempted = stop_reason, stop_reason is not None
    harness.submit(evaluate=True)
    waited = asked_at + LEAVING_SECS if asked_at < math.inf else checkpointing.COMMIT_DEADLINE_SECS
    with pytest.raises(WaitTimeout, match=f"it has not ended in {waited:.0f} s"):
        harness.saving.collect(all_of_them=True)
    assert harness.clock.monotonic() - began == waited


def test_an_evaluation_that_ends_while_it_is_waited_for_is_told(harness, monkeypatch):
    evaluation = harness.submit(evaluate=True)["evaluation"]
    monkeypatch.setattr(
        checkpointing, "wait", lambda futures, secs: evaluation.set_result(Measured({"loss": 1.0}, 0.25))
    )
    harness.saving.collect(all_of_them=True)
    assert [figures for _, figures in harness.reporter.told] == [{"loss": 1.0}]
