"""A job under way to send bad messages to: a chief with four workers, a primary and a store, behind real gRPC."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np

from hybridsync import __version__
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.agents import AgentHello, AgentReport
from hybridsync.interfaces.messages import Hello, LeaseRequest, Push
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.runtime.supervisor.agent_sessions import AgentSessions
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.server.secondary import Secondary
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkServicer
from hybridsync.transport.grpc.channels import make_server, stub
from hybridsync.transport.grpc.chief import ChiefServicer
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.dialling import Channel
from hybridsync.transport.grpc.frames import send
from hybridsync.transport.grpc.head import HeadServicer
from hybridsync.transport.grpc.parameter_server import ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.shard import ShardServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotClient, SnapshotServicer
from hybridsync.transport.link import Services
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory
from hybridsync.transport.tcp.connection import TcpConnection
from hybridsync.transport.tcp.service import TcpService
from tests.chief.chiefs import Chief
from tests.roles import gradient_of, tally_programs, tally_state

PHASE_ID = PhaseId(5, 0xABCD)
WORKERS, END = 4, 40
"""Phase 5 applies units up to 40; worker 0 has leased unit 0 and pushed it, so the server is at sequence 1."""

AGENT = AgentHello("node1", 1, "10.0.0.1:1", 4, __version__, "c0ffee", "1" * 32)
"""The one host beside the head's that is attached, of three; it has told one event, and has one order to come."""

SECS = 10.0
TOKEN = "of the run"
"""Asked for over shared memory, and for a place over TCP; the other servers at ports ask for none."""


@dataclass
class Job:
    """What a case may send to, and what it must not change.

    Args:
      chief, primary, store: the objects behind the servers; the store keeps a whole state that nobody updates.
      head: of the run's hosts.
      to_chief, to_server, to_store, to_head: channels to them; one each for a whole case.
      server_at: address of the parameter server.
      to_server_memory, to_store_memory: links to the servers through shared memory.
      to_server_tcp, to_store_tcp: links to them over TCP.
      phase: that is under way.
      captured: number of the newest snapshot of the server; 0 for none.
    """

    chief: Chief
    primary: Primary
    store: Secondary
    head: AgentSessions
    to_chief: Channel
    to_server: Channel
    to_store: Channel
    to_head: Channel
    server_at: str
    phase: Phase
    to_server_memory: Connection
    to_store_memory: Connection
    to_server_tcp: TcpConnection
    to_store_tcp: TcpConnection
    captured: int = 0
    primary_bytes: int = tally_programs().parameters_layout.nbytes

    def unary(self, service: str, method: str, request: Any) -> Any:
        """Call a method with a protobuf message, or with bytes that may be none."""
        servers = {"PhaseServer": self.to_server, "ParameterServer": self.to_server, "Shard": self.to_store}
        servers["Head"] = self.to_head
        channel = servers.get(service, self.to_chief)
        if isinstance(request, bytes):
            return channel.unary_unary(f"/hybridsync.{service}/{method}")(request, timeout=SECS)
        return stub(channel, service, method)(request, timeout=SECS)

    def unary_at_store(self, service: str, method: str, request: Any) -> Any:
        """Call a method that every server has at the one that is not the primary."""
        return stub(self.to_store, service, method)(request, timeout=SECS)

    def push(self, push: Push, contribution: np.ndarray | None = None) -> pb.PushReply:
        """Push in one message; one unit's own contribution by default."""
        data = self.contribution() if contribution is None else contribution
        (reply,) = self.small(pb.SmallPush(push=encode(push), contribution=data.tobytes()).SerializeToString())
        return reply.reply

    def small(self, *messages: bytes) -> list[pb.SmallReply]:
        """Send messages on one stream of small pushes."""
        replies = stub(self.to_server, "ParameterServer", "PushPullSmall")(iter(messages), timeout=SECS)
        return [pb.SmallReply.FromString(reply) for reply in replies]

    def oversize(self, num_bytes: int) -> None:
        """Send one message of that size on a channel that does not mind its size."""
        with grpc.insecure_channel(self.server_at, options=[("grpc.max_send_message_length", -1)]) as channel:
            method = channel.stream_stream("/hybridsync.ParameterServer/PushPullSmall")
            list(method(iter([bytes(num_bytes)]), timeout=SECS))

    def chunks(self, *frames: bytes) -> list[bytes]:
        """Send the frames of a push in chunks."""
        return list(stub(self.to_server, "ParameterServer", "PushPull")(iter(frames), timeout=SECS))

    def frames(self, push: Push, chunk_bytes: int = 200) -> list[bytes]:
        """Return the frames of a good push in chunks."""
        return list(send(pb.Header(push=encode(push)), self.contribution(), chunk_bytes))

    def pull(self, push: Push) -> pb.PushReply:
        """Pull, and return the reply in the first frame."""
        frames = list(stub(self.to_server, "ParameterServer", "Pull")(encode(push), timeout=SECS))
        return pb.Frame.FromString(frames[0]).header.reply

    def stage(self, push: Push, block: np.ndarray | None = None) -> pb.StageReply:
        """Stage at the store; one unit's own contribution by default."""
        data = self.contribution() if block is None else block
        (reply,) = stub(self.to_store, "Shard", "Stage")(send(pb.Header(push=encode(push)), data), timeout=SECS)
        return pb.StageReply.FromString(reply)

    def pull_at(self, push: Push) -> int:
        """Pull from the store; returns how many frames came."""
        return len(list(stub(self.to_store, "Shard", "PullAt")(encode(push), timeout=SECS)))

    def read(self, channel: Channel, snapshot_id: int, num_bytes: int) -> int:
        """Read a snapshot; returns how many frames came."""
        request = pb.ReadRequest(snapshot_id=snapshot_id, num_bytes=num_bytes)
        return len(list(stub(channel, "SnapshotSource", "Read")(request, timeout=SECS)))

    def ask(self, call: str, push: Push, num_bytes: int = 0, **fields: Any) -> pb.LinkReply:
        """Make a call on the server over shared memory; one on blocks at the store."""
        connection = self.to_store_memory if call in ("stage", "pull_at") else self.to_server_memory
        request = pb.LinkRequest(call=call, push=encode(push), num_bytes=num_bytes, **fields)
        lent_bytes = num_bytes if call in ("pull", "pull_at", "read") else 0
        return connection.call(request, lent_bytes)[0]

    def offer(self, call: str, push: Push, contribution: np.ndarray | None = None) -> pb.LinkReply:
        """Offer what was written into shared memory; one unit's own contribution by default."""
        connection = self.to_store_memory if call == "stage" else self.to_server_memory
        connection.contribution[:] = self.contribution() if contribution is None else contribution
        return self.ask(call, push, connection.contribution.nbytes)

    def ask_over_tcp(self, call: str, push: Push, num_bytes: int = 0, **fields: Any) -> pb.LinkReply:
        """Make a call on the server over TCP; one on blocks at the store."""
        connection = self.to_store_tcp if call in ("stage", "pull_at") else self.to_server_tcp
        request = pb.LinkRequest(call=call, push=encode(push), num_bytes=num_bytes, **fields)
        lent_bytes = num_bytes if call in ("pull", "pull_at", "read") else 0
        return connection.call(request, lent_bytes)[0]

    def offer_over_tcp(self, call: str, push: Push, contribution: np.ndarray | None = None) -> pb.LinkReply:
        """Offer a contribution over TCP; one unit's own by default."""
        connection = self.to_store_tcp if call == "stage" else self.to_server_tcp
        connection._contribution = self.contribution() if contribution is None else contribution
        request = pb.LinkRequest(call=call, push=encode(push), num_bytes=connection.contribution.nbytes)
        return connection.call(request, self.primary_bytes if call == "push_pull" else 0)[0]

    def contribution(self, unit: int = 1) -> np.ndarray:
        return tally_programs().contribution_layout.pack(gradient_of(unit))

    def fingerprints(self) -> tuple[Any, ...]:
        """Return everything that a refused message must leave as it is, of chief and servers."""
        primary, store, chief = self.primary, self.store, self.chief
        with primary._condition, store._condition, chief.state.condition:
            server = (
                fingerprint(primary._state._shard.state),
                primary._sequencer.sequence,
                primary._sequencer.phase,
                primary._sequencer.count.applied.ranges(),
                primary._sequencer.count.dropped.ranges(),
                {worker: state.newest for worker, state in primary._sequencer._workers.items()},
                primary._sequencer.num_held,
            )
            committed = (
                fingerprint(store._shard.state),
                store._sequence,
                store._phase,
                store._open,
                sorted(store._kept),
                list(store._staged),
                dict(store._incarnations),
            )
            members = [
                (member.hello, member.incarnation)
                for membership in (chief.state.members.workers, chief.state.members.servers)
                for member in map(membership.get, membership.ids())
                if member is not None
            ]
            ledger, failure = chief.state.ledger, chief.state.waits.failure
            commands = chief.state.orders.pending, chief.state.preempted
            counts = ledger.counts(), ledger.holders(), ledger.applied().ranges()
            hosts = [(each.hello, each.heard_at, each.events.count, each.orders.acknowledged) for each in self.hosts]
            return server, committed, members, *counts, failure, *commands, hosts, len(self.head._untaken)

    @property
    def hosts(self) -> list[Any]:
        return [*self.head._sessions.values()]

    def assert_works(self) -> None:
        """Check that the connections still carry good messages."""
        reply = self.pull(Push(self.primary.phase_id, 2, 1, (), 0)) if self.primary._sequencer.open else None
        assert reply is None or reply.sequence == self.primary._sequencer.sequence
        assert self.stage(Push(PHASE_ID, 2, 1, (1,), 0)).non_finite == "" and len(self.store._staged) == 1
        assert not self.offer("stage", Push(PHASE_ID, 3, 1, (1,), 0)).error and len(self.store._staged) == 2
        if self.primary._sequencer.open:
            self.ask("idle", Push(PHASE_ID, 3, 1, (), 0))
            self.ask_over_tcp("idle", Push(PHASE_ID, 3, 1, (), 0))
        if self.hosts:
            (host,) = self.hosts
            good = AgentReport(1, host.hello.session, host.events.count, ("good",), 0, 0.0)
            assert self.unary("Head", "Exchange", encode(good)).heard == good.first + 1
        report = Report("worker", 1, 1, PHASE_ID)
        assert self.unary("Chief", "Report", encode(report)).phase_id.number == PHASE_ID.number


@contextmanager
def running() -> Iterator[Job]:
    """Serve a job that is under way."""
    programs = tally_programs()
    ledger = Ledger(END)
    schema = programs.state_layout.schema_hash
    chief = Chief(RunState(ledger, WORKERS, schema, SYSTEM_CLOCK, RunStateSpec(lease_secs=60.0)))
    snapshot_buffer = SnapshotBuffer(programs.state_layout)
    snapshot_buffer.pack(tally_state())
    start = snapshot_buffer.finalize(PhaseId(4, 1), sequence=0, applied=())
    memory, num_bytes = SlabMemory(), programs.contribution_layout.nbytes
    primary = Primary(
        programs,
        ParameterPool(programs.parameters_layout, memory.allocate),
        partial(SnapshotClient, deadline_secs=SECS),
        SYSTEM_CLOCK,
        NullApplyLog(),
        threading.Event(),
        allocate=memory.allocate,
    )
    endpoint = Endpoint(primary, programs.contribution_layout)
    committed = CommittedState(programs.state_layout, start, tally_state())
    chief_server, chief_at = make_server([ChiefServicer(chief.service), SnapshotServicer(committed)])
    serving = ParameterServicer(endpoint, num_bytes, WORKERS + 2)
    server, server_at = make_server([PhaseServicer(primary), serving, SnapshotServicer(primary)])
    part, *_ = partition(programs, 1)
    reader_at = partial(SnapshotClient, deadline_secs=SECS)
    store = Secondary(part, reader_at, SYSTEM_CLOCK, allocate=memory.allocate)
    servicers = [PhaseServicer(store), ShardServicer(store, num_bytes, 2 * WORKERS + 2), SnapshotServicer(store)]
    store_server, store_at = make_server(servicers)
    head = AgentSessions(3, AGENT.config_digest, 60.0, lambda: None)
    head_server, head_at = make_server([HeadServicer(head)])
    servers = chief_server, server, store_server, head_server
    for each in servers:
        each.start()
    for role, role_id in [("server", 0), *(("worker", worker) for worker in range(WORKERS))]:
        chief.service.register(Hello(role, role_id, 1, "host", server_at, schema, __version__))
    digest, members = start.held.fingerprint, tuple(range(WORKERS))
    phase = Phase(
        PHASE_ID, "asp", members, 0, END, (), (), 0, chief_at, start.snapshot_id, digest, (server_at,), "start"
    )
    sized = partial(Services, contribution_bytes=num_bytes, num_buffers=2 * WORKERS + 2)
    opened = contextlib.ExitStack()
    folder = opened.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # a socket's path is short
    connections, over_tcp = [], []
    for role, services in (
        ("server", sized(holder=primary, parameters=endpoint)),
        ("store", sized(holder=store, shard=store)),
    ):
        path = f"{folder}/{role}"
        opened.callback(SlabService(services, memory, path, TOKEN, most=8).stop, SECS)
        connections.append(Connection(path, TOKEN, f"the {role}", SECS, num_bytes))
        opened.callback(connections[-1].close)
        bulk = TcpService(services, "127.0.0.1", most=8)
        opened.callback(bulk.stop, SECS)
        places, at = make_server([BulkLinkServicer(bulk.open)], keys=Keyring(TOKEN))
        places.start()
        opened.callback(lambda places=places: places.stop(None).wait(SECS))
        over_tcp.append(TcpConnection(at, f"the {role}", Keyring(TOKEN), SECS, num_bytes))
        opened.callback(over_tcp[-1].close)
    addresses = chief_at, server_at, store_at, head_at
    channels = to_chief, to_server, to_store, to_head = [Channel(address) for address in addresses]
    try:
        primary.enter(phase)
        store.enter(phase)
        with chief.control.turn() as state:
            state.begin(phase)
            state.open_leases()
        leased = chief.service.lease(LeaseRequest(0, 1, PHASE_ID, 0, 0)).ranges
        assert leased[0][0] == 0 and leased[0][1] >= 1
        head.attach(AGENT)
        head.take()
        head.order(AGENT.index, "start")
        head.exchange(AgentReport(AGENT.index, AGENT.session, 0, ("started",), 0, 0.0))
        reached = to_chief, to_server, to_store, to_head, server_at
        job = Job(chief, primary, store, head, *reached, phase, *connections, *over_tcp)
        job.push(Push(PHASE_ID, 0, 1, (0,), 0), job.contribution(0))
        yield job
    finally:
        opened.close()
        for channel in channels:
            channel.close()
        for each in servers:
            assert each.stop(grace=None).wait(SECS), f"a server did not stop within {SECS:g} s"
