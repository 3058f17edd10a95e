"""Servers that are not the primary, over gRPC: the wire alone, and whole clusters of two and three behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import SchemaMismatch, StaleIncarnation, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, Snapshot, Update
from hybridsync.interfaces.ports import BufferView
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Secondary
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.shard import ShardClient, ShardServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotClient, SnapshotServicer
from hybridsync.transport.packed_link import PackedLink
from tests.server.cluster import Cluster
from tests.server.test_servers import programs, replayed, trained_by_threads, with_statistics
from tests.transport.conftest import HELD, PHASE_ID, LentView, pattern
from tests.transport.copying import packed_link

PUSH = Push(PHASE_ID, worker=2, incarnation=2**64 - 1, units=(4, 7), base=30)
LARGE, SMALL = 2 * (1 << 20) + 77, 80_000


@dataclass
class FakeStore:
    """Answers with fixed values, keeps the blocks it is handed, and records what arrived."""

    parameters: np.ndarray
    seen: list[Any] = field(default_factory=list)
    blocks: list[BufferView] = field(default_factory=list)
    views: list[LentView] = field(default_factory=list)

    def apply(self, phase_id: PhaseId, updates: tuple[Update, ...]) -> None:
        self.seen.append((phase_id, updates))

    def discard(self, push: Push) -> None:
        self.seen.append(push)

    def forget(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        self.seen.append((phase_id, worker, incarnation))

    def snapshot_part(self, phase_id: PhaseId, sequence: int, final: bool, left: tuple[int, ...] = ()) -> Snapshot:
        self.seen.append((phase_id, sequence, final, left))
        return Snapshot(4, HELD, (), (), self.parameters.nbytes, 0.0, 0.0)

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        into[:] = self.parameters

    def stage(self, push: Push, block: BufferView) -> str:
        self.seen.append(push)
        if push.worker == 9:
            block.release()
            raise StaleIncarnation("worker 9 has been replaced")
        self.blocks.append(block)
        return push.non_finite

    def pull_at(self, push: Push) -> LentView:
        self.seen.append(push)
        self.views.append(LentView(self.parameters.copy()))
        return self.views[-1]


@pytest.fixture(params=[LARGE, SMALL, 0], ids=["chunks", "one chunk", "nothing"])
def num_bytes(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def store(num_bytes: int) -> FakeStore:
    return FakeStore(pattern(num_bytes, seed=1))


@pytest.fixture
def client(store: FakeStore, num_bytes: int, serve, closing) -> ShardClient:
    return closing(ShardClient(serve(ShardServicer(store, num_bytes, num_buffers=2)), deadline_secs=10))


@pytest.mark.parametrize("num_bytes", [SMALL], indirect=True)
def test_the_primary_drives_a_store(client: ShardClient, store: FakeStore) -> None:
    updates = (Update(31, (PUSH,), 0.1, (28, 30)), Update(32, (PUSH, PUSH), 1.0, ()))
    client.apply(PHASE_ID, updates)
    client.discard(PUSH)
    client.forget(PHASE_ID, 2, 2**64 - 1)
    assert client.snapshot_part(PHASE_ID, 32, final=True, left=(0, 3)).snapshot_id == 4
    assert store.seen == [(PHASE_ID, updates), PUSH, (PHASE_ID, 2, 2**64 - 1), (PHASE_ID, 32, True, (0, 3))]


def test_a_block_arrives_whole_and_aligned_and_is_kept_until_it_is_released(
    client: ShardClient, store: FakeStore, num_bytes: int
) -> None:
    blocks = [pattern(num_bytes, seed=seed) for seed in (2, 3)]
    assert client.stage(PUSH, blocks[0]) == ""
    assert client.stage(PUSH, blocks[1]) == ""
    assert store.seen == [PUSH, PUSH]
    for kept, sent in zip(store.blocks, blocks, strict=True):
        assert not num_bytes or kept.buffer.ctypes.data % 64 == 0
        assert np.array_equal(kept.buffer, sent)
    store.blocks[0].release()
    client.stage(PUSH, blocks[1])
    assert np.array_equal(store.blocks[2].buffer, blocks[1])


@pytest.mark.parametrize("num_bytes", [SMALL], indirect=True)
def test_what_is_not_finite_is_named_and_refusals_keep_their_names(client: ShardClient, num_bytes: int) -> None:
    found = "leaf w, first index [3]"
    block = pattern(num_bytes)
    assert client.stage(Push(PHASE_ID, 1, 1, (5,), 0, found), block) == found
    for _ in range(3):  # its buffer came back
        with pytest.raises(StaleIncarnation, match="worker 9 has been replaced"):
            client.stage(Push(PHASE_ID, 9, 1, (5,), 0), block)
    with pytest.raises(SchemaMismatch, match=f"{num_bytes + 8} bytes where {num_bytes}"):
        client.stage(PUSH, pattern(num_bytes + 8))


@pytest.mark.parametrize("num_bytes", [SMALL], indirect=True)
def test_a_store_whose_buffers_are_all_staged_says_what_to_change(client: ShardClient, num_bytes, monkeypatch) -> None:
    monkeypatch.setattr("hybridsync.transport.grpc.shard.BUFFER_SECS", 0.05)
    for _ in range(2):
        client.stage(PUSH, pattern(num_bytes))
    with pytest.raises(WaitTimeout, match="allow more buffers than workers"):
        client.stage(PUSH, pattern(num_bytes))


def test_parameters_of_a_sequence_arrive_whole_and_are_given_back_once(
    client: ShardClient, store: FakeStore, num_bytes: int
) -> None:
    into = np.zeros(num_bytes, np.uint8)
    client.pull_at(PUSH, into)
    assert store.seen == [PUSH] and np.array_equal(into, store.parameters)
    assert store.views[0].returned.wait(60) and store.views[0].num_released == 1


class ServedCluster(Cluster):
    """A cluster whose servers are reached over gRPC."""

    def __init__(self, made, num_servers: int, serve: Callable[..., str], closing: Callable[[Any], Any]) -> None:
        super().__init__(made, num_servers)
        self._closing = closing
        self.stores = [Secondary(part, self.reader_at, SYSTEM_CLOCK) for part in self.parts[1:]]
        self.primary._state._peers = Peers(
            self.parts, lambda address: closing(ShardClient(address, deadline_secs=20)), self.failures.append
        )
        sizes = [part.programs.contribution_layout.nbytes for part in self.parts]
        endpoint = Endpoint(self.primary, self.parts[0].programs.contribution_layout)
        first = ParameterServicer(endpoint, sizes[0])
        others = [ShardServicer(store, size) for store, size in zip(self.stores, sizes[1:], strict=True)]
        self.addresses = tuple(
            serve(PhaseServicer(server), servicer, SnapshotServicer(server))
            for server, servicer in zip((self.primary, *self.stores), (first, *others), strict=True)
        )

    def enter(self, *args: Any, **fields: Any):
        phase = super().enter(*args, **fields)
        for address in self.addresses:
            self._closing(ParameterClient(address)).enter(phase)  # a repeat
        return phase

    def link(self) -> PackedLink:
        others = [self._closing(ShardClient(address, 20)) for address in self.addresses[1:]]
        return packed_link(self.parts, self._closing(ParameterClient(self.addresses[0], 20)), others)


@pytest.mark.parametrize("make", [programs, with_statistics], ids=["momentum", "adamw and statistics"])
@pytest.mark.parametrize("num_servers", [2, 3])
def test_workers_train_on_several_servers_and_the_primary_serves_the_whole_state(
    make, num_servers: int, serve, closing
) -> None:
    cluster = ServedCluster(make(), num_servers, serve, closing)
    phase = cluster.enter()
    trained_by_threads(cluster, phase)
    holder = closing(SnapshotClient(cluster.addresses[0]))
    snapshot = holder.take_snapshot(phase.id, final=True)
    buffer = cluster.programs.state_layout.empty()
    holder.read(snapshot.snapshot_id, buffer)
    state = cluster.programs.state_layout.unpack(buffer)
    assert snapshot.applied == ((0, 60),)
    assert snapshot.held.fingerprint == fingerprint(state) == fingerprint(replayed(cluster))
    assert cluster.failures == []
