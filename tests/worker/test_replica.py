"""A lock-step replica: whole steps, applied once, handed over bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, StalePhase
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.storage.apply_log import FileApplyLog, NullApplyLog, read
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.worker.replica import Replica
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import Start, counts, gradient_of, phase_of, tally_programs
from tests.server.test_slow_readers import ended, until_waiting
from tests.telemetry.clocks import ManualClock

MEMBERS = (1, 0)


@pytest.fixture
def start() -> Start:
    return Start()


def replica_of(start: Start, apply_log=None) -> Replica:
    replica = Replica(tally_programs(), start.reader_at, SYSTEM_CLOCK, apply_log or NullApplyLog())
    start.roles["replica"] = replica
    return replica


def step(replica: Replica, number: int) -> None:
    units = (2 * number, 2 * number + 1)
    total = tally_programs().total(tuple(gradient_of(unit) for unit in units))
    replica.update(number, units, total, 2.0)


def state_in(replica: Replica, snapshot):
    buffer = tally_programs().state_layout.empty()
    replica.read(snapshot.snapshot_id, buffer)
    return tally_programs().state_layout.unpack(buffer)


def test_members_that_share_a_replica_apply_each_step_once(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot)
    for _ in MEMBERS:
        replica.enter(phase, 0)
    for number in range(3):
        step(replica, number)
        step(replica, number)
    snapshot = replica.take_snapshot(phase.id, final=True)
    assert counts(state_in(replica, snapshot))[:8] == [1] * 6 + [0] * 2
    assert (snapshot.held.units, snapshot.held.sequence, snapshot.applied) == (6, 3, ((0, 6),))


def test_a_heartbeat_waits_for_no_update_and_counts_the_first_step_when_it_has_ended(start):
    """A large model's update takes seconds: the worker neither falls silent, nor is its first step taken for short."""
    clock, reports, programs = ManualClock(now=0.0), list[Report](), copy.copy(tally_programs())
    recorder = WorkerRecorder(0, clock, keep_spans=False)
    replica = Replica(programs, start.reader_at, clock, NullApplyLog())
    recorder.stamps = replica.stamps
    update = programs.update

    def slow_update(*args: Any, **options: Any) -> Any:
        clock.advance(3.0)
        with ThreadPoolExecutor(1) as heartbeat:
            reports.append(heartbeat.submit(recorder.take_report).result(timeout=120))
        return update(*args, **options)

    programs.update = slow_update
    phase = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(phase, 0)
    recorder.enter(phase.id)
    recorder.stamps = replica.stamps
    step(replica, 0)
    reports.append(recorder.take_report())
    recorder.completed = 2
    reports.append(recorder.take_report())
    assert [(report.completed, report.first_applied) for report in reports] == [(0, 0.0), (0, 0.0), (2, 3.0)]
    assert reports[0].doing_secs == 3.0


def test_a_step_cannot_be_left_out(start):
    replica = replica_of(start)
    replica.enter(phase_of(1, "bsp", snapshot=start.snapshot), 0)
    with pytest.raises(AssertionError):
        step(replica, 1)


def test_what_is_held_is_what_a_snapshot_says(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(phase, 0)
    step(replica, 0)
    held = replica.held()
    assert held == replica.take_snapshot(phase.id, final=True).held
    first, last = replica.stamps()
    assert 0 < first <= last


def test_the_next_lock_step_phase_keeps_the_state_where_it_is(start):
    replica = replica_of(start)
    first = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(first, 0)
    step(replica, 0)
    replica.held()
    snapshot = replica.take_snapshot(first.id, final=True)
    start.roles.clear()  # nobody can be asked
    second = phase_of(2, "bsp", snapshot=snapshot, source="nobody")
    replica.enter(second, 0)
    step(replica, 0)
    assert replica.take_snapshot(second.id, final=True).held.units == 2


def test_another_state_is_taken_over_from_its_holder(start):
    trained, fresh = replica_of(start), replica_of(start)
    first = phase_of(1, "bsp", snapshot=start.snapshot)
    trained.enter(first, 0)
    step(trained, 0)
    snapshot = trained.take_snapshot(first.id, final=True)
    start.roles["trained"] = trained
    fresh.enter(first, 0)
    second = phase_of(2, "bsp", snapshot=snapshot, source="trained")
    fresh.enter(second, 0)
    held = fresh.held()
    assert held is not None
    assert held.fingerprint == snapshot.held.fingerprint == fingerprint(state_in(trained, snapshot))


def test_what_was_reserved_is_used_once_and_nothing_is_allocated_while_training_waits(start):
    allocated: list[int] = []
    layout = tally_programs().state_layout

    def allocate(num_bytes: int):
        allocated.append(num_bytes)
        return layout.empty()

    replica = Replica(tally_programs(), start.reader_at, SYSTEM_CLOCK, NullApplyLog(), allocate)
    replica.reserve(captured=False)
    assert allocated == [], "only a holder is captured"
    replica.reserve(captured=True)
    phase = phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot)
    replica.enter(phase, 0)
    step(replica, 0)
    first = replica.take_snapshot(phase.id, final=True)
    assert counts(state_in(replica, first))[:3] == [1, 1, 0]
    replica.enter(
        phase_of(2, "bsp", members=MEMBERS, snapshot=start.snapshot), 0
    )  # another state, in memory of its own
    step(replica, 0)
    assert allocated == [layout.nbytes]


def test_a_state_that_changed_on_its_way_is_refused_with_both_fingerprints(start):
    class Damaged:
        def read(self, snapshot_id, into):
            start.snapshot_buffer.read(snapshot_id, into)
            into[0] ^= 1

    start.roles["damaged"] = Damaged()
    with pytest.raises(HybridSyncError, match=start.snapshot.held.fingerprint):
        replica_of(start).enter(phase_of(1, "bsp", snapshot=start.snapshot, source="damaged"), 0)


def test_a_step_and_the_heartbeats_stamps_do_not_wait_for_whoever_reads_the_last_snapshot(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(phase, 0)
    first = replica.take_snapshot(phase.id, final=False)
    view = replica.lend(first.snapshot_id)
    with ThreadPoolExecutor(2) as threads:
        capturing = threads.submit(replica.take_snapshot, phase.id, False)
        try:
            until_waiting(replica, first)
            threads.submit(step, replica, 0).result(timeout=120)
            assert threads.submit(replica.stamps).result(timeout=120)[0] > 0
        finally:
            snapshot = ended(capturing, view)
    assert snapshot.held.units == 2


def test_another_phase_cannot_be_captured(start):
    replica = replica_of(start)
    with pytest.raises(StalePhase, match="phase 0"):
        replica.take_snapshot(phase_of(1).id, final=False)
    replica.enter(phase_of(1, "bsp", snapshot=start.snapshot), 0)
    with pytest.raises(StalePhase, match=r"phase 2 .* phase 1"):
        replica.take_snapshot(phase_of(2).id, final=False)


def test_a_shared_replica_logs_every_update_once(start, tmp_path):
    replica = replica_of(start, FileApplyLog(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot)
    for _ in MEMBERS:
        replica.enter(phase, 0)
    for number in (0, 0, 1, 1):
        step(replica, number)
    replica.take_snapshot(phase.id, final=True)
    entries = list(read(tmp_path / "log"))
    assert [(e.sequence, e.base, e.units, e.rate, e.weight, e.blend) for e in entries] == [
        (1, 0, (0, 1), 2.0, 2.0, 1.0),
        (2, 1, (2, 3), 2.0, 2.0, 1.0),
    ]


def test_the_log_is_written_while_heartbeats_have_the_replica(start, tmp_path):
    class SlowDisk(FileApplyLog):
        """Writes once a heartbeat has come through."""

        def _write_down(self, entries):
            beat = threading.Thread(target=replica.stamps, daemon=True)
            beat.start()
            beat.join(60)
            assert not beat.is_alive(), "a heartbeat waits for the disk"
            super()._write_down(entries)

    replica = replica_of(start, SlowDisk(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot)
    replica.enter(phase, 0)
    step(replica, 0)
    replica.take_snapshot(phase.id, final=True)
    assert sequences_in(tmp_path / "log") == [1]


def sequences_in(path) -> list[int]:
    return [entry.sequence for entry in read(path)]


def test_whoever_is_captured_writes_down_what_the_log_lacks_and_nothing_twice(start, tmp_path):
    """The member that wrote the first updates dies; another one is captured in its place."""
    log = tmp_path / "log"
    first, second = replica_of(start, FileApplyLog(log)), replica_of(start, FileApplyLog(log))
    phase = phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot)
    for replica in (first, second):
        replica.enter(phase, 0)
        step(replica, 0)
    assert not log.exists(), "nothing is written in the middle of the training"
    first.take_snapshot(phase.id, final=False)
    assert sequences_in(log) == [1]
    step(second, 1)
    second.take_snapshot(phase.id, final=True)
    assert sequences_in(log) == [1, 2]


def test_updates_of_a_phase_that_was_never_captured_are_not_logged(start, tmp_path):
    replica = replica_of(start, FileApplyLog(tmp_path / "log"))
    replica.enter(phase_of(1, "bsp", snapshot=start.snapshot), 0)
    step(replica, 0)
    step(replica, 1)
    following = phase_of(2, "bsp", snapshot=start.snapshot)
    replica.enter(following, 0)
    step(replica, 0)
    replica.take_snapshot(following.id, final=True)
    assert [(entry.phase, entry.sequence) for entry in read(tmp_path / "log")] == [(2, 1)]


def test_a_state_is_kept_until_its_successor_is_here(start):
    """The sender may die while it hands over: then this may be the newest state there is."""

    class Dying:
        def read(self, snapshot_id, into):
            into[:100] = 7
            raise RoleLost("the state's holder was lost")

    start.roles["dying"] = Dying()
    replica = replica_of(start)
    first = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(first, 0)
    step(replica, 0)
    held = replica.held()
    with pytest.raises(RoleLost):
        replica.enter(dataclasses.replace(phase_of(2, "bsp", source="dying"), fingerprint="f00d"), 0)
    assert replica.held() == held
    snapshot = replica.take_snapshot(first.id, final=True)
    assert (snapshot.held, sum(counts(state_in(replica, snapshot)))) == (held, 2)


def test_nothing_is_held_before_the_first_phase(start):
    assert replica_of(start).held() is None


def test_a_snapshot_among_steps_holds_whole_steps(start):
    replica = replica_of(start)
    phase = phase_of(1, "bsp", snapshot=start.snapshot)
    replica.enter(phase, 0)
    trainer = threading.Thread(target=lambda: [step(replica, number) for number in range(20)])
    trainer.start()
    for _ in range(5):
        snapshot = replica.take_snapshot(phase.id, final=False)
        state = state_in(replica, snapshot)
        assert snapshot.held.units == 2 * snapshot.held.sequence == int(state.counters["units"]) == sum(counts(state))
    trainer.join(60)


def places(start: Start, every: int) -> Phase:
    """Return a lock-step phase whose steps have two units, and places so many units apart."""
    return phase_of(1, "bsp", members=MEMBERS, snapshot=start.snapshot, evaluate_units=every)


def test_the_member_that_is_captured_keeps_the_first_whole_step_at_or_after_a_place(start):
    replica, phase = replica_of(start), places(start, 3)
    for member in reversed(MEMBERS):
        replica.enter(phase, member)
    for number in range(4):
        step(replica, number)
    snapshot = replica.take_snapshot(phase.id, final=False, place=3)
    assert (snapshot.held.units, snapshot.held.sequence) == (6, 3), "6 units come to the place at 6, not only to 3"
    assert counts(state_in(replica, snapshot))[:8] == [1] * 6 + [0] * 2
    assert replica.take_snapshot(phase.id, final=True, place=6).held.units == 8


def test_a_member_that_is_not_captured_keeps_no_state(start):
    replica, phase = replica_of(start), places(start, 2)
    replica.enter(phase, MEMBERS[-1])
    for number in range(3):
        step(replica, number)
    assert replica._snapshot_buffer._spare is None
    assert replica.take_snapshot(phase.id, final=False, place=2).held.units == 6
