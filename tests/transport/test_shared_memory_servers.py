"""Several servers over shared memory: how long a block is kept, and how long parameters are lent."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost, SchemaMismatch, StaleIncarnation, WaitTimeout
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.ports import BufferView
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Secondary
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.transport import link_session as service_module
from hybridsync.transport.connected_links import ConnectedBlocks
from hybridsync.transport.link import Services, Serving
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory
from hybridsync.transport.shared_memory.transport import SharedMemoryTransport
from hybridsync.worker.link import ServerLink
from tests.roles import tally_programs
from tests.server.cluster import Cluster
from tests.server.test_servers import programs, replayed, trained_by_threads, with_statistics
from tests.transport.conftest import PHASE_ID, pattern
from tests.transport.slab_primary import SECS, TOKEN, until

PUSH = Push(PHASE_ID, worker=2, incarnation=7, units=(4, 7), base=30)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        yield Path(folder)


@dataclass
class View:
    """A lent slab, overwritten when it comes back."""

    buffer: np.ndarray
    num_released: int = 0

    def release(self) -> None:
        self.num_released += 1
        self.buffer[:] = 0xFF


@dataclass
class FakeStore:
    """Keeps the blocks it is handed, and lends slabs of its own."""

    parameters: np.ndarray
    memory: SlabMemory
    blocks: list[BufferView] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    def stage(self, push: Push, block: BufferView) -> str:
        if push.worker == 9:
            block.release()
            raise StaleIncarnation("worker 9 has been replaced")
        self.blocks.append(block)
        return push.non_finite

    def pull_at(self, push: Push) -> View:
        self.views.append(View(self.memory.allocate(self.parameters.nbytes)))
        self.views[-1].buffer[:] = self.parameters + push.base
        return self.views[-1]


class Served:
    """A store that is served, and a link to it."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.memory = SlabMemory()
        self.store = FakeStore(pattern(num_bytes, seed=1), self.memory)
        holder = SnapshotBuffer(tally_programs().state_layout, self.memory.allocate)
        services = Services(
            holder=holder,  # pyright: ignore[reportArgumentType]  # nobody takes a snapshot
            shard=self.store,  # pyright: ignore[reportArgumentType]  # nor does a primary call
            contribution_bytes=num_bytes,
            num_buffers=2,
        )
        self.service = SlabService(services, self.memory, str(folder / "store"), TOKEN, most=4)
        self.connection = Connection(str(folder / "store"), TOKEN, "server 1", SECS, num_bytes)
        self.link = ConnectedBlocks(self.connection, num_bytes)

    def stage(self, block: np.ndarray, push: Push = PUSH) -> str:
        self.link.contribution[:] = block
        return self.link.stage(push)

    def close(self) -> None:
        self.link.close()
        self.service.stop(SECS)


@pytest.fixture
def served(folder: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(folder, getattr(request, "param", 80_000))
    yield served
    served.close()


@pytest.mark.parametrize("served", [80_000, 0], indirect=True, ids=["some bytes", "nothing"])
def test_a_block_is_kept_as_it_was_staged_though_its_worker_writes_the_next_and_ends(served: Served) -> None:
    blocks = [pattern(served.store.parameters.nbytes, seed=seed) for seed in (2, 3)]
    assert [served.stage(block) for block in blocks] == ["", ""]
    served.link.contribution[:] = 0xFF
    served.link.close()
    until(lambda: not served.service._sessions, "its link is kept")
    for kept, sent in zip(served.store.blocks, blocks, strict=True):
        assert np.array_equal(kept.buffer, sent) and not (sent.nbytes and kept.buffer.ctypes.data % 64)
    served.store.blocks[0].release()


def test_what_is_not_finite_is_named_and_who_is_refused_keeps_no_buffer(served: Served) -> None:
    block = served.store.parameters
    assert served.stage(block, PUSH._replace(non_finite="leaf w, first index [3]")) == "leaf w, first index [3]"
    for _ in range(3):
        with pytest.raises(StaleIncarnation, match="worker 9 has been replaced"):
            served.stage(block, PUSH._replace(worker=9))
    assert served.stage(block) == ""


def test_a_store_whose_buffers_are_all_staged_says_what_to_change(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "BUFFER_SECS", 0.05)
    for _ in range(2):
        served.stage(served.store.parameters)
    for _ in range(2):
        with pytest.raises(WaitTimeout, match="allow more buffers than workers"):
            served.stage(served.store.parameters)
    served.store.blocks[0].release()
    assert served.stage(served.store.parameters) == ""


def test_parameters_are_lent_until_the_next_are_asked_for_and_given_back_once(served: Served) -> None:
    first = served.link.pull_at(PUSH)
    served.stage(served.store.parameters)
    assert np.array_equal(first, served.store.parameters + 30), "staging leaves them"
    second = served.link.pull_at(PUSH._replace(base=31))
    assert np.array_equal(second, served.store.parameters + 31)
    assert [view.num_released for view in served.store.views] == [1, 0] and (first == 0xFF).all()
    served.link.close()
    until(lambda: [view.num_released for view in served.store.views] == [1, 1], "they were not given back")


def test_parameters_of_another_size_are_refused_and_given_back(served: Served) -> None:
    small = ConnectedBlocks(served.connection, 5)
    with pytest.raises(SchemaMismatch, match="has 5 bytes where 80000 are expected"):
        small.pull_at(PUSH)
    served.link.pull_at(PUSH)
    assert [view.num_released for view in served.store.views] == [1, 0]


def test_who_still_reads_what_a_lost_connection_lent_is_told(served: Served) -> None:
    """A worker may read a server's parameters again after a push that brought none."""
    served.link.pull_at(PUSH)
    served.link.contribution[:] = 5
    lost = served.connection._socket
    assert lost is not None
    lost.shutdown(socket.SHUT_RDWR)
    with pytest.raises(RoleLost, match="what it had lent is its own again"):
        served.link.stage(PUSH)
    assert served.store.blocks == []
    assert served.link.stage(PUSH) == "" and (served.store.blocks[0].buffer == 5).all(), "it was carried over"


class SharedCluster(Cluster):
    """A cluster whose servers are reached over shared memory."""

    def __init__(self, made: Programs, num_servers: int, folder: Path) -> None:
        super().__init__(made, num_servers)
        self.transport, self.serving = SharedMemoryTransport(Keyring(TOKEN)), list[Serving]()
        self._links: list[ServerLink] = []
        self.folder, allocate, state_bytes = folder, self.transport.allocate, made.state_layout.nbytes
        pool = ParameterPool(self.parts[0].programs.parameters_layout, allocate)
        peers = Peers(self.parts, lambda address: self.transport.peer(address, state_bytes).port, self.failures.append)
        self.primary = Primary(
            *(made, pool, self.reader_at, SYSTEM_CLOCK, self.log, threading.Event()), peers=peers, allocate=allocate
        )
        self.stores = [Secondary(part, self.reader_at, SYSTEM_CLOCK, allocate=allocate) for part in self.parts[1:]]
        endpoint = Endpoint(self.primary, self.parts[0].programs.contribution_layout)
        self._serve(Services(holder=self.primary, parameters=endpoint, num_buffers=6))
        for store in self.stores:
            self._serve(Services(holder=store, shard=store, num_buffers=16))
        self.addresses = tuple(each.address for each in self.serving)

    def _serve(self, services: Services) -> None:
        number = len(self.serving)
        offered = replace(services, contribution_bytes=self.parts[number].programs.contribution_layout.nbytes)
        self.serving.append(self.transport.serve(offered, at_socket(self.folder / f"server-{number}"), calls=16))

    def link(self) -> ServerLink:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._links.append(self.transport.link(self.addresses, self.parts))
        return self._links[-1]

    def close(self) -> None:
        for link in self._links:
            link.close()
        for each in self.serving:
            each.stop(wait_secs=SECS)


@pytest.mark.parametrize("make", [programs, with_statistics], ids=["momentum", "adamw and statistics"])
@pytest.mark.parametrize("num_servers", [2, 3])
def test_workers_train_on_several_servers_and_the_primary_serves_the_whole_state(
    make: Callable[[], Programs], num_servers: int, folder: Path
) -> None:
    cluster = SharedCluster(make(), num_servers, folder)
    phase = cluster.enter()
    trained_by_threads(cluster, phase)
    holder = cluster.transport.holder(cluster.addresses[0], cluster.programs.state_layout.nbytes)
    snapshot = holder.port.take_snapshot(phase.id, final=True)
    buffer = cluster.programs.state_layout.empty()
    holder.port.read(snapshot.snapshot_id, buffer)
    state = cluster.programs.state_layout.unpack(buffer)
    assert snapshot.applied == ((0, 60),)
    assert snapshot.held.fingerprint == fingerprint(state) == fingerprint(replayed(cluster))
    holder.close()
    assert cluster.failures == []
    cluster.close()
