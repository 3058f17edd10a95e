"""Commits behind the training: in order, after those who train, and never in anybody's way when the disk is bad."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import CheckpointError, HybridSyncError, RoleLost, StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import UnitSet
from hybridsync.interfaces.commands import Evaluation, Figure
from hybridsync.interfaces.messages import EvaluationRequest, Snapshot, StateVersion
from hybridsync.phases import checkpointing
from hybridsync.phases.checkpointing import Committer
from hybridsync.training import evaluation
from hybridsync.training.buffer_layout import Layout, fingerprint
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer
from hybridsync.training.state import TrainState

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
    assert evaluation.result(SECS) == {"loss": 4.0}
    assert bench.evaluator.seen == [UnitSet([(0, 4)])]


@pytest.mark.parametrize("figures", [{"loss": 0.5}, {}])
def test_a_worker_is_asked_for_the_figures_of_what_was_captured(bench: Bench, figures: dict[str, float]) -> None:
    asked: list[EvaluationRequest] = []

    def elsewhere(request: EvaluationRequest) -> Evaluation:
        asked.append(request)
        return Evaluation(4, tuple(Figure(*each) for each in figures.items()))

    bench.committer = bench.committer_to(bench.disk, elsewhere)
    snapshot = bench.take_snapshot(4)
    assert bench.submit(snapshot)[1].result(SECS) == (figures or None)
    assert asked == [EvaluationRequest("holder", snapshot.snapshot_id, snapshot.held.fingerprint)]
    assert bench.evaluator.seen == []


def test_a_state_is_measured_here_where_no_worker_does_it(bench: Bench) -> None:
    def elsewhere(request: EvaluationRequest) -> Evaluation:
        raise RoleLost("the worker is gone")

    bench.committer = bench.committer_to(bench.disk, elsewhere)
    assert bench.submit(bench.take_snapshot(4))[1].result(SECS) == {"loss": 4.0}


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
    assert evaluation.result(SECS) == {"loss": 2.0}


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
    assert [future.result(SECS) for future in (first[1], second[1])] == [{"loss": 1.0}, {"loss": 2.0}]
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
    assert evaluation.result(SECS) == {"loss": 4.0}, "the state is known, though not saved"
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
        "assert hangs.wait(10)\n"
        "print('ends', future.done())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "ends False\n"
