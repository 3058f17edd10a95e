"""What every transport does: a job of a chief, servers and a worker that see each other only through it."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, SchemaMismatch, StalePhase
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import Push, PushReply, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.server.endpoint import Endpoint, OptimizerEndpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import DevicePublisher, ParameterPool
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Secondary
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer
from hybridsync.training.state import TrainState
from hybridsync.transport.directory import Readers
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.inprocess import InProcessTransport
from hybridsync.transport.link import Services, Serving, Transport
from hybridsync.transport.shared_memory.transport import SharedMemoryTransport
from hybridsync.transport.tcp.transport import TcpTransport
from tests.roles import counts, gradient_of, hello, phase_of, push_of, tally_programs, tally_state
from tests.transport.certified import CertifiedTransport
from tests.transport.conftest import FakeChief
from tests.transport.copying import CopyingTransport

SECS = 10.0


class Kind(NamedTuple):
    """A transport, and what a job over it may be.

    Args:
      make: the transport.
      num_servers: threads share one store.
      packed: whether it carries buffers.
      anywhere: private folder, name -> an address to serve at.
    """

    make: Callable[[], Transport]
    num_servers: int
    packed: bool
    anywhere: Callable[[Path, str], str]


KINDS = {
    "grpc": Kind(GrpcTransport, 2, True, lambda folder, name: "127.0.0.1:0"),
    "shm": Kind(SharedMemoryTransport, 2, True, lambda folder, name: at_socket(folder / name.replace(" ", "-"))),
    "tcp": Kind(TcpTransport, 2, True, lambda folder, name: at_socket(folder / name.replace(" ", "-"))),
    "threads": Kind(InProcessTransport, 1, False, lambda folder, name: name),
    "grpc over TLS": Kind(lambda: CertifiedTransport(GrpcTransport), 2, True, lambda folder, name: "127.0.0.1:0"),
    "tcp beside TLS": Kind(lambda: CertifiedTransport(TcpTransport), 2, True, lambda folder, name: "127.0.0.1:0"),
    "copying": Kind(CopyingTransport, 2, True, lambda folder, name: name),
}
"""A new transport is tested by a line here."""


class Job:
    """A chief, and servers in a phase; everything goes through the transport."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.transport, self.serving = kind.make(), list[Serving]()
        self._anywhere = functools.partial(kind.anywhere, folder)
        programs = tally_programs()
        self.layout, self.failures = programs.state_layout, list[HybridSyncError]()
        self.parts = partition(programs, kind.num_servers)
        snapshot_buffer = SnapshotBuffer(self.layout, self.transport.allocate)
        snapshot_buffer.pack(tally_state())
        start = snapshot_buffer.finalize(NO_PHASE, sequence=0, applied=())
        self.chief = self._serve(
            "chief",
            Services(
                holder=CommittedState(self.layout, start, tally_state(), self.transport.allocate),
                chief=FakeChief(),
                state_bytes=self.num_bytes,
            ),
        )
        self.servers = [self._serve_primary(kind.packed), *map(self._serve_other, self.parts[1:])]
        self.phase = phase_of(snapshot=start, source=self.chief, servers=tuple(self.servers))
        self.enter(self.phase)

    @property
    def num_bytes(self) -> int:
        return self.layout.nbytes

    def _serve(self, name: str, services: Services) -> str:
        self.serving.append(self.transport.serve(services, self._anywhere(name), calls=8))
        return self.serving[-1].address

    def _serve_primary(self, packed: bool) -> str:
        part, programs = self.parts[0], tally_programs()
        pool = ParameterPool(part.programs.parameters_layout, self.transport.allocate) if packed else DevicePublisher()
        peers = Peers(
            self.parts, lambda address: self.transport.peer(address, self.num_bytes).port, self.failures.append
        )
        log, completed = NullApplyLog(), threading.Event()
        holder, allocate = Readers(self.transport.holder), self.transport.allocate
        primary = Primary(programs, pool, holder, SYSTEM_CLOCK, log, completed, peers=peers, allocate=allocate)
        layout = part.programs.contribution_layout
        return self._serve(
            "primary",
            Services(
                holder=primary,
                server=primary,
                parameters=Endpoint(primary, layout if packed else None),
                optimizer=OptimizerEndpoint(primary, part.opt_state.layout) if packed else primary,
                state_bytes=self.num_bytes,
                contribution_bytes=layout.nbytes,
                num_buffers=4,
                opt_state_bytes=part.opt_state.layout.nbytes,
            ),
        )

    def _serve_other(self, part: Any) -> str:
        store = Secondary(part, Readers(self.transport.holder), SYSTEM_CLOCK, allocate=self.transport.allocate)
        return self._serve(
            f"server {part.server}",
            Services(
                holder=store,
                server=store,
                shard=store,
                optimizer=OptimizerEndpoint(store, part.opt_state.layout),
                state_bytes=self.num_bytes,
                contribution_bytes=part.programs.contribution_layout.nbytes,
                num_buffers=8,
                opt_state_bytes=part.opt_state.layout.nbytes,
            ),
        )

    def enter(self, phase: Phase) -> None:
        for address in self.servers:
            server = self.transport.server(address, self.num_bytes)
            assert server.port.enter(phase).phase_id == phase.id
            server.close()

    def captured(self, phase: Phase) -> tuple[Snapshot, TrainState]:
        """Return the state that ends a phase, as the chief gets it."""
        holder = self.transport.holder(self.servers[0], self.num_bytes)
        snapshot, buffer = holder.port.take_snapshot(phase.id, final=True), self.layout.empty()
        holder.port.read(snapshot.snapshot_id, buffer)
        holder.close()
        return snapshot, self.layout.unpack(buffer)


@pytest.fixture(params=sorted(KINDS))
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        job = Job(KINDS[request.param], Path(folder))
        yield job
        for serving in job.serving:
            serving.stop(wait_secs=SECS)


def tally(parameters: Parameters) -> list[int]:
    return [round(-float(value)) for value in np.asarray(parameters.params["tally"])[:3]]


def test_a_worker_pulls_and_pushes_trees(job: Job) -> None:
    link = job.transport.link(job.phase.servers, job.parts)
    reply, parameters = link.pull(push_of(job.phase))
    assert reply.sequence == 0 and tally(parameters) == [0, 0, 0]
    reply, parameters = link.push_pull(push_of(job.phase, 1), gradient_of(1))
    assert reply.sequence == 1 and tally(parameters) == [0, 1, 0]
    link.idle(push_of(job.phase))
    link.ready(push_of(job.phase, 2, base=1))
    link.close()
    assert job.failures == []


def test_a_worker_pulls_over_one_link_while_its_push_over_another_is_held_and_brings_no_parameters(job: Job) -> None:
    snapshot, _ = job.captured(job.phase)
    servers = tuple(job.servers)
    phase = phase_of(2, "psplus(staleness=0)", members=(0, 1), snapshot=snapshot, source=servers[0], servers=servers)
    job.enter(phase)
    links = [job.transport.link(phase.servers, job.parts) for _ in range(3)]
    pulling, pushing, other = links

    def push(unit: int, worker: int) -> Push:
        return push_of(phase, unit, worker=worker)._replace(push_only=True)

    for worker, link in ((0, pulling), (1, other)):
        link.pull(push_of(phase, worker=worker))
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(pushing.push, push(1, 0), gradient_of(1))
        while (reply := pulling.pull(push_of(phase))[0]).sequence == 0:
            assert not held.done(), held.result()
        assert (reply.own, reply.fastest) == (1, 1) and not held.done()
        assert other.push(push(2, 1), gradient_of(2)).own == 1
        answer = held.result(SECS)
    assert isinstance(answer, PushReply) and (answer.own, answer.dropped) == (1, "")
    assert tally(pulling.pull(push_of(phase))[1])[0] == 0
    for link in links:
        link.close()
    assert job.failures == []


def test_what_a_worker_is_refused_it_hears_by_name(job: Job) -> None:
    link = job.transport.link(job.phase.servers, job.parts)
    link.pull(push_of(job.phase))
    late = push_of(replace(job.phase, id=NO_PHASE), 1)
    with pytest.raises(StalePhase):
        link.push_pull(late, gradient_of(1))
    link.close()


def test_a_state_is_handed_over_and_the_next_phase_begins_with_it(job: Job) -> None:
    link = job.transport.link(job.phase.servers, job.parts)
    link.pull(push_of(job.phase))
    link.push_pull(push_of(job.phase, 2), gradient_of(2))
    link.close()
    snapshot, state = job.captured(job.phase)
    assert snapshot.held.fingerprint == fingerprint(state) and counts(state)[:3] == [0, 0, 1]
    phase = phase_of(2, "localsgd(steps=1)", snapshot=snapshot, source=job.servers[0], servers=tuple(job.servers))
    job.enter(phase)
    link = job.transport.link(phase.servers, job.parts)
    assert fingerprint(link.download_opt_state(push_of(phase))) == fingerprint(state.opt_state)
    assert tally(link.pull(push_of(phase, base=1))[1]) == [0, 0, 1]
    link.close()


def test_the_chief_is_asked_and_answers(job: Job) -> None:
    chief = job.transport.chief(job.chief, SECS)
    assert chief.register(hello(1, schema="same")).lease_secs == 3.0
    with pytest.raises(SchemaMismatch, match="worker 2 has schema other"):
        chief.register(hello(1, schema="other"))


def test_who_has_stopped_is_not_reached(job: Job) -> None:
    job.serving[0].stop(wait_secs=SECS)
    with pytest.raises(RoleLost):
        job.transport.chief(job.chief, 0.5).register(hello(1, schema="same"))
