"""Whoever reads the last capture slowly keeps the next one waiting, and nobody else."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import StaleEpoch, WaitTimeout
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Capture
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.snapshot import Holding, Loan
from hybridsync.training.state import TrainState
from tests.roles import push_of
from tests.server.cluster import Cluster
from tests.server.test_servers import gradient_of, programs

SECS = 20.0


def until_waiting(role: Any, capture: Capture) -> None:
    """Wait until another capture has begun: the last one is lent to nobody any more."""
    deadline = SYSTEM_CLOCK.monotonic() + SECS
    while True:
        try:
            role.lend(capture.capture_id).release()
        except StaleEpoch:
            return
        assert SYSTEM_CLOCK.monotonic() < deadline, "no other capture was taken"


def ended(call: Future[Capture], loan: Loan) -> Capture:
    """Give a loan back, and return the capture that waited for it."""
    assert not call.done(), "the capture did not wait for its reader"
    loan.release()
    return call.result(SECS)


def test_pushes_and_heartbeats_go_on_while_the_primary_waits_for_a_reader() -> None:
    cluster = Cluster(programs(), 1)
    primary, phase = cluster.primary, cluster.enter()
    first = primary.capture(phase.epoch, final=False)
    loan = primary.lend(first.capture_id)
    with ThreadPoolExecutor(3) as threads:
        capturing = threads.submit(primary.capture, phase.epoch, True)
        try:
            until_waiting(primary, first)
            pushing = threads.submit(primary.push_pull, push_of(phase, 0), gradient_of(0))
            assert pushing.result(SECS / 2)[0].sequence == 1
            assert threads.submit(primary.drain).result(SECS / 2).applied == ((0, 1),)
        finally:
            capture = ended(capturing, loan)
    assert capture.applied == ((0, 1),)


def test_a_store_goes_on_while_it_waits_for_a_reader() -> None:
    cluster = Cluster(programs(), 2)
    store, phase = cluster.stores[0], cluster.enter()
    first = store.snapshot(phase.epoch, 0, final=False)
    loan = store.lend(first.capture_id)
    with ThreadPoolExecutor(3) as threads:
        capturing = threads.submit(store.snapshot, phase.epoch, 0, False)
        try:
            until_waiting(store, first)
            assert threads.submit(store.drain).result(SECS / 2).sequence == 0
            threads.submit(store.pull_at, push_of(phase)).result(SECS / 2).release()
        finally:
            ended(capturing, loan)


def test_a_capture_of_another_epoch_does_not_cost_the_last_one() -> None:
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    primary, store = cluster.primary, cluster.stores[0]
    capture = primary.capture(phase.epoch, final=False)
    part = store.snapshot(phase.epoch, 0, final=False)
    other = phase.epoch._replace(number=9)
    with pytest.raises(StaleEpoch):
        primary.capture(other, final=True)
    with pytest.raises(StaleEpoch):
        store.snapshot(other, 0, final=True)
    primary.lend(capture.capture_id).release()
    store.lend(part.capture_id).release()


def small() -> tuple[Holding, TrainState]:
    state = TrainState({"w": np.zeros(8, np.float32)}, {}, {}, {}, {"units": np.int32(0)})
    return Holding(Layout.of(state)), state


def test_a_reader_that_never_ends_is_counted_by_whoever_waits_for_it() -> None:
    holding, state = small()
    holding._read_secs = 0.05
    holding.pack(state)
    holding.lend(holding.seal(Epoch(1, 1), sequence=0, applied=()).capture_id)
    with pytest.raises(WaitTimeout, match=r"1 reader\(s\) of the last capture have not ended within"), holding.room():
        raise AssertionError("there is no room")


def test_one_capture_is_taken_at_a_time() -> None:
    holding, _ = small()
    holding._read_secs = 0.05
    inside, go_on = threading.Event(), threading.Event()

    def take() -> None:
        with holding.room():
            inside.set()
            assert go_on.wait(SECS)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(take)
        assert inside.wait(SECS)
        with pytest.raises(WaitTimeout, match=r"another capture .*0\.05 s"), holding.room():
            raise AssertionError("two captures at once")
        go_on.set()
        first.result(SECS)
    with holding.room():
        pass
