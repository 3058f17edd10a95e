from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hybridsync.core.errors import RoleLost, SchemaMismatch, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot
from hybridsync.transport.directory import Readers
from hybridsync.transport.grpc.snapshot_source import STATE_BYTES, SnapshotClient, SnapshotServicer
from tests.transport.conftest import HELD, PHASE_ID, FakeServer, LentView, holder_at, pattern

NUM_BYTES = 3 * (1 << 20) + 5


@pytest.fixture
def holder() -> FakeServer:
    return FakeServer(pattern(NUM_BYTES))


@pytest.fixture
def client(holder: FakeServer, serve, closing) -> SnapshotClient:
    return closing(SnapshotClient(serve(SnapshotServicer(holder)), deadline_secs=10, who="server 0"))


def test_a_snapshot_is_read_as_it_is_held(client: SnapshotClient, holder: FakeServer) -> None:
    snapshot = client.take_snapshot(PHASE_ID, final=True)
    assert snapshot == Snapshot(4, HELD, ((0, 7),), (), NUM_BYTES, 1.5, 2.5)
    assert holder.seen == [(PHASE_ID, True)]
    into = np.zeros(NUM_BYTES, np.uint8)
    client.read(4, into)
    assert np.array_equal(into, holder.parameters)


def test_a_holder_in_another_phase_says_so(client: SnapshotClient) -> None:
    with pytest.raises(StalePhase, match="phase 9 was asked for, 3 is held"):
        client.take_snapshot(PhaseId(9, 0), final=False)
    with pytest.raises(StalePhase, match="snapshot 8 is no longer kept, 4 is"):
        client.read(8, np.zeros(NUM_BYTES, np.uint8))


def test_a_reader_with_another_size_is_refused_with_both(client: SnapshotClient) -> None:
    with pytest.raises(SchemaMismatch, match=f"has 5 bytes where {NUM_BYTES} are expected"):
        client.read(4, np.zeros(5, np.uint8))


def test_a_reader_who_asks_for_too_much_is_refused_before_memory_is_taken(client: SnapshotClient) -> None:
    endless = np.broadcast_to(np.uint8(0), (STATE_BYTES + 1,))
    with pytest.raises(SchemaMismatch, match="over the limit"):
        client.read(4, endless)


# --- the way to whichever holder is read next ---


class Stuck(FakeServer):
    """A holder that lends only when it is let, as one whose process is stopped."""

    def __init__(self) -> None:
        super().__init__(pattern(NUM_BYTES))
        self.asked, self.go_on = threading.Event(), threading.Event()

    def lend(self, snapshot_id: int) -> LentView:
        self.asked.set()
        self.go_on.wait(60)
        return super().lend(snapshot_id)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.go_on.set()


@pytest.fixture
def readers(closing) -> Readers:
    return closing(Readers(holder_at))


def test_readers_reach_one_holder_after_the_other(readers: Readers, serve) -> None:
    for seed in (1, 2):
        holder = FakeServer(pattern(NUM_BYTES, seed))
        into = np.zeros(NUM_BYTES, np.uint8)
        readers(serve(SnapshotServicer(holder))).read(4, into)
        assert np.array_equal(into, holder.parameters)


def test_a_read_under_way_ends_at_once_when_the_readers_are_closed_and_a_later_one_goes_on(
    readers: Readers, stuck: Stuck, holder: FakeServer, serve
) -> None:
    """Whoever holds the state is stopped: the worker that waits for it is called back."""
    into = np.zeros(NUM_BYTES, np.uint8)
    client = readers(serve(SnapshotServicer(stuck)))
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(client.read, 4, into)
        assert stuck.asked.wait(60)
        readers.close()
        with pytest.raises(RoleLost, match="the state's holder at 127"):
            reading.result(timeout=120)
    readers(serve(SnapshotServicer(holder))).read(4, into)
    assert np.array_equal(into, holder.parameters)


def test_a_client_that_was_closed_before_its_read_refuses_it(readers: Readers, holder: FakeServer, serve) -> None:
    client = readers(serve(SnapshotServicer(holder)))
    readers.close()
    readers.close()
    with pytest.raises(RoleLost, match="its channel is closed here"):
        client.read(4, np.zeros(NUM_BYTES, np.uint8))


def test_the_next_reader_closes_the_one_before(readers: Readers, holder: FakeServer, serve) -> None:
    address = serve(SnapshotServicer(holder))
    former = readers(address)
    readers(address)
    with pytest.raises(RoleLost, match="its channel is closed here"):
        former.take_snapshot(PHASE_ID, final=False)
