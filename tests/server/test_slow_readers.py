"""Whoever reads the last snapshot slowly keeps the next one waiting, and nobody else."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import StalePhase, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.snapshot import LentView, SnapshotBuffer
from hybridsync.training.state import TrainState
from tests.roles import push_of
from tests.server.cluster import Cluster
from tests.server.test_servers import gradient_of, programs

SECS = 20.0


def until_waiting(role: Any, snapshot: Snapshot) -> None:
    """Wait until another snapshot has begun: the last one is lent to nobody any more."""
    deadline = SYSTEM_CLOCK.monotonic() + SECS
    while True:
        try:
            role.lend(snapshot.snapshot_id).release()
        except StalePhase:
            return
        assert SYSTEM_CLOCK.monotonic() < deadline, "no other snapshot was taken"


def ended(call: Future[Snapshot], view: LentView) -> Snapshot:
    """Give a loan back, and return the snapshot that waited for it."""
    assert not call.done(), "the snapshot did not wait for its reader"
    view.release()
    return call.result(SECS)


def test_pushes_and_heartbeats_go_on_while_the_primary_waits_for_a_reader() -> None:
    cluster = Cluster(programs(), 1)
    primary, phase = cluster.primary, cluster.enter()
    first = primary.take_snapshot(phase.id, final=False)
    view = primary.lend(first.snapshot_id)
    with ThreadPoolExecutor(3) as threads:
        capturing = threads.submit(primary.take_snapshot, phase.id, True)
        try:
            until_waiting(primary, first)
            pushing = threads.submit(primary.push_pull, push_of(phase, 0), gradient_of(0))
            assert pushing.result(SECS / 2)[0].sequence == 1
            assert threads.submit(primary.take_report).result(SECS / 2).applied == ((0, 1),)
        finally:
            snapshot = ended(capturing, view)
    assert snapshot.applied == ((0, 1),)


def test_a_store_goes_on_while_it_waits_for_a_reader() -> None:
    cluster = Cluster(programs(), 2)
    store, phase = cluster.stores[0], cluster.enter()
    first = store.snapshot_part(phase.id, 0, final=False)
    view = store.lend(first.snapshot_id)
    with ThreadPoolExecutor(3) as threads:
        capturing = threads.submit(store.snapshot_part, phase.id, 0, False)
        try:
            until_waiting(store, first)
            assert threads.submit(store.take_report).result(SECS / 2).sequence == 0
            threads.submit(store.pull_at, push_of(phase)).result(SECS / 2).release()
        finally:
            ended(capturing, view)


def test_a_snapshot_of_another_phase_does_not_cost_the_last_one() -> None:
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    primary, store = cluster.primary, cluster.stores[0]
    snapshot = primary.take_snapshot(phase.id, final=False)
    part = store.snapshot_part(phase.id, 0, final=False)
    other = phase.id._replace(number=9)
    with pytest.raises(StalePhase):
        primary.take_snapshot(other, final=True)
    with pytest.raises(StalePhase):
        store.snapshot_part(other, 0, final=True)
    primary.lend(snapshot.snapshot_id).release()
    store.lend(part.snapshot_id).release()


def small() -> tuple[SnapshotBuffer, TrainState]:
    state = TrainState({"w": np.zeros(8, np.float32)}, {}, {}, {}, {"units": np.int32(0)})
    return SnapshotBuffer(Layout.of(state)), state


def test_a_reader_that_never_ends_is_counted_by_whoever_waits_for_it() -> None:
    snapshot_buffer, state = small()
    snapshot_buffer._read_secs = 0.05
    snapshot_buffer.pack(state)
    snapshot_buffer.lend(snapshot_buffer.finalize(PhaseId(1, 1), sequence=0, applied=()).snapshot_id)
    with (
        pytest.raises(WaitTimeout, match=r"1 reader\(s\) of the last snapshot have not ended within"),
        snapshot_buffer.room(),
    ):
        raise AssertionError("there is no room")


def test_one_snapshot_is_taken_at_a_time() -> None:
    snapshot_buffer, _ = small()
    snapshot_buffer._read_secs = 0.05
    inside, go_on = threading.Event(), threading.Event()

    def take() -> None:
        with snapshot_buffer.room():
            inside.set()
            assert go_on.wait(SECS)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(take)
        assert inside.wait(SECS)
        with pytest.raises(WaitTimeout, match=r"another snapshot .*0\.05 s"), snapshot_buffer.room():
            raise AssertionError("two captures at once")
        go_on.set()
        first.result(SECS)
    with snapshot_buffer.room():
        pass
