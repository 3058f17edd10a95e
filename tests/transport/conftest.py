"""Fake roles behind real servers on the loopback interface."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hybridsync.core.errors import SchemaMismatch, StaleIncarnation, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.commands import (
    Evaluation,
    Figure,
    HostUnits,
    MemberStatus,
    StatusReply,
    StopReply,
    StopRequest,
    SwitchReply,
    SwitchRequest,
)
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    GroupUpdate,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Push,
    PushReply,
    RoleEvent,
    Snapshot,
    StateVersion,
    Welcome,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Answer, ChiefPort, ParameterPort, ServerPort
from hybridsync.interfaces.reports import Report, ReportReply
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.snapshot_source import SnapshotClient
from hybridsync.transport.link import Link, SnapshotBackend
from tests.transport.slab_primary import SlabPrimary

PHASE_ID = PhaseId(3, 2**64 - 1)
HELD = StateVersion(PHASE_ID, units=7, sequence=5, fingerprint="f00d")
PHASE = Phase(
    id=PHASE_ID,
    spec="asp(staleness=3)",
    members=(1, 0, 2),
    device_choice=1,
    end_units=4000,
    applied=((0, 500), (501, 502)),
    dropped=((500, 501),),
    sequence=31,
    source="127.0.0.1:4000",
    snapshot_id=9,
    fingerprint="beef",
    servers=("127.0.0.1:4001",),
    reason="planned",
    shares=(4, 0, 1),
    order=3,
)


@dataclass
class LentView:
    """A lent buffer that remembers how often it came back, and is overwritten then."""

    buffer: np.ndarray
    num_released: int = 0
    returned: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.num_released += 1
        self.buffer[:] = 0xFF
        self.returned.set()


STATUS = StatusReply(
    *("", 3, "bsp", "start", 50, "asp", True, 100, 40, 30, 2, 8, 1, 12.5, 2, 0.5, 1, 20, 3.0, 1000),
    figures=(Figure("loss", 0.25),),
    evaluations=(Evaluation(20, (Figure("accuracy", 0.75),)),),
    members=(MemberStatus("worker", 1, "training", 6.0, 1, 7, True, 640, 512, "a"),),
    hosts=(HostUnits("a", 1, 9), HostUnits("b", 1, 7)),
)

UPDATE = GroupUpdate(7, (3, 5), (0, 2), (6, 6), (0, 2), True)


def holder_at(address: str) -> Link[SnapshotClient]:
    """Return the way to a holder."""
    client = SnapshotClient(address)
    return Link(client, client.close)


@dataclass
class FakeChief(ChiefPort):
    """Answers with fixed values and records what arrived."""

    seen: list[Any] = field(default_factory=list)

    def register(self, hello: Hello) -> Welcome:
        self.seen.append(hello)
        if hello.schema != "same":
            raise SchemaMismatch(f"worker 2 has schema {hello.schema}, the chief has 'same'")
        return Welcome(incarnation=2**64 - 2, heartbeat_secs=1.0, lease_secs=3.0)

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        self.seen.append(request)
        return PhaseReply(PHASE if request.held else None, done=request.held is None)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.seen.append(request)
        if request.incarnation == 0:
            raise StaleIncarnation("worker 1 speaks with incarnation 0, the run knows 4 — straße\nnew line")
        return LeaseReply(((4, 8), (9, 10)), final=True)

    def join_group(self, request: GroupRequest) -> GroupReply:
        self.seen.append(request)
        return GroupReply((0, 2), (), 7, 30, True, True, ((0, 30),), ((4, 5),), (UPDATE,))

    def report(self, report: Report) -> ReportReply:
        self.seen.append(report)
        return ReportReply(PHASE_ID, revoked=True)

    def role_started(self, event: RoleEvent) -> None:
        self.seen.append(("started", event))

    def role_lost(self, event: RoleEvent) -> None:
        self.seen.append(("lost", event))

    def preempt(self) -> None:
        self.seen.append("preempt")

    def status(self) -> StatusReply:
        self.seen.append("status")
        return STATUS

    def switch(self, request: SwitchRequest) -> SwitchReply:
        self.seen.append(request)
        return SwitchReply(request.spec, "bsp", 3, 30, True)

    def stop(self, request: StopRequest) -> StopReply:
        self.seen.append(request)
        return StopReply(30)


@dataclass
class FakeServer(ServerPort, SnapshotBackend, ParameterPort):
    """A parameter server that answers each push with parameters of its own choice."""

    parameters: np.ndarray
    seen: list[Any] = field(default_factory=list)
    views: list[LentView] = field(default_factory=list)
    on_push: Callable[[Push, np.ndarray], None] = lambda push, contribution: None

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        self.seen.append((phase_id, final))
        if phase_id != PHASE_ID:
            raise StalePhase(f"phase {phase_id} was asked for, {PHASE_ID} is held")
        return Snapshot(4, HELD, ((0, 7),), (), self.parameters.nbytes, 1.5, 2.5)

    def lend(self, snapshot_id: int) -> LentView:
        if snapshot_id != 4:
            raise StalePhase(f"snapshot {snapshot_id} is no longer kept, 4 is")
        return self._lend()

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        view = self.lend(snapshot_id)
        into[:] = view.buffer
        view.release()

    def enter(self, phase: Phase) -> StateVersion:
        self.seen.append(phase)
        return HELD

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        self.seen.append((phase_id, worker, incarnation))

    def pull(self, push: Push) -> Answer:
        self.seen.append(push)
        return Answer(PushReply(push.base), self._lend())

    def idle(self, push: Push) -> None:
        self.seen.append(("idle", push))

    def ready(self, push: Push) -> None:
        self.seen.append(("ready", push))

    def begin_push(self, push: Push) -> Callable[[np.ndarray], Answer]:
        return lambda contribution: Answer(self.answer(push, contribution), self._lend())

    def answer(self, push: Push, contribution: np.ndarray) -> PushReply:
        self.seen.append(push)
        self.on_push(push, contribution)
        return PushReply(push.base + 1, duplicate=True, dropped="too stale")

    def _lend(self) -> LentView:
        self.views.append(LentView(self.parameters.copy()))
        return self.views[-1]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Start servicers on one port and return its address; they stop with the test."""
    servers: list[grpc.Server] = []

    def start(*handlers: grpc.GenericRpcHandler, address: str = "127.0.0.1:0") -> str:
        server, bound = make_server(handlers, address, max_workers=8)
        servers.append(server)
        server.start()
        return bound

    yield start
    for server in servers:
        assert server.stop(grace=None).wait(60), "a server did not stop within a minute"


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Close clients with the test."""
    clients: list[Any] = []

    def keep(client: Any) -> Any:
        clients.append(client)
        return client

    yield keep
    for client in clients:
        client.close()


@pytest.fixture
def served() -> Iterator[SlabPrimary]:
    """Serve the parameters of a tally over shared memory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        primary = SlabPrimary(Path(folder), most=4)
        yield primary
        primary.close()


def pattern(num_bytes: int, seed: int = 0) -> np.ndarray:
    """Return random bytes."""
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)
