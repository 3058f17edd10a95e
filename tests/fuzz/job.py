"""A job under way without sockets or waits: every servicer of its roles, and what a refused message may not change."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

import hybridsync.transport.grpc
from hybridsync import __version__, protocols
from hybridsync.chief import service
from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import Waits
from hybridsync.core.errors import RoleLost
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.agents import AgentHello, AgentReport
from hybridsync.interfaces.commands import StopRequest, SwitchRequest
from hybridsync.interfaces.messages import (
    AppliedUnit,
    EvaluationRequest,
    GroupRequest,
    Hello,
    LeaseRequest,
    PhaseRequest,
    Push,
    RoleEvent,
    RoleState,
    StateVersion,
    Update,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ParameterPort
from hybridsync.interfaces.reports import Exchange, Report, Span
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER
from hybridsync.runtime.supervisor.agent_sessions import AgentSessions
from hybridsync.security.identity import Identity
from hybridsync.server import primary as primary_module
from hybridsync.server import secondary as store_module
from hybridsync.server.endpoint import Endpoint, OptimizerEndpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.server.secondary import Secondary
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training import snapshot
from hybridsync.training.evaluation import Evaluator, StateEvaluator
from hybridsync.training.snapshot import CommittedState, SnapshotBuffer
from hybridsync.transport import link_session
from hybridsync.transport.buffers import Buffers
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc import parameter_server, shard
from hybridsync.transport.grpc.bulk_link import BulkLinkServicer, Place
from hybridsync.transport.grpc.channels import Servicer
from hybridsync.transport.grpc.chief import ChiefServicer
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.grpc.evaluator import EvaluatorServicer
from hybridsync.transport.grpc.head import HeadServicer
from hybridsync.transport.grpc.optimizer_state import OptimizerServicer
from hybridsync.transport.grpc.parameter_server import ParameterServicer, PhaseServicer
from hybridsync.transport.grpc.shard import ShardServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotServicer
from hybridsync.transport.link import Services
from hybridsync.transport.shared_memory.service import Session
from hybridsync.transport.shared_memory.slabs import SlabMemory
from hybridsync.transport.tcp import lanes
from hybridsync.transport.tcp import session as tcp_session
from hybridsync.worker.replica import Replica
from tests.chief.chiefs import Chief
from tests.fuzz.link_calls import ANY_CALL, FRAME_BYTES, LINK, TCP, Link, TcpCall, closed
from tests.roles import tally_programs, tally_state
from tests.telemetry.clocks import ManualClock

PHASE_ID = PhaseId(5, 0xABCD)
WORKERS, END = 4, 40
AGENT = AgentHello("node", 1, "a:1", 2, __version__, "c0ffee", "1" * 32)
"""Of the one host beside the head's that is attached, of three."""
SPECS = {SERVER: ("asp", "ssp(staleness=3)", "gba", "bsp_server", "asp(staleness_rule=dc)", "localsgd(steps=2)")}
SPECS |= {LOCKSTEP: ("bsp",), GROUP: ("preduce", "adpsgd")}

longest_wait = 0.0
"""Seconds that a handler wanted to wait at the chief; nobody does here."""


@contextlib.contextmanager
def without_waits() -> Iterator[None]:
    """Let every wait of a handler end at once."""

    def wait(self: Waits, deadline: float) -> bool:
        global longest_wait
        longest_wait = max(longest_wait, deadline - self._clock.monotonic())
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "POLL_SECS", 0.0)
        patch.setattr(primary_module, "HELD_SECS", 0.0)
        patch.setattr(primary_module, "UPLOAD_SECS", 0.0)
        patch.setattr(store_module, "RELEASE_SECS", 0.0)
        patch.setattr(snapshot, "transfer_secs", lambda num_bytes: 0.0)
        patch.setattr(parameter_server, "BUFFER_SECS", 0.0)
        patch.setattr(shard, "BUFFER_SECS", 0.0)
        patch.setattr(link_session, "BUFFER_SECS", 0.0)
        patch.setattr(tcp_session, "BUFFER_SECS", 0.0)
        patch.setattr(lanes, "FRAME_BYTES", FRAME_BYTES)
        patch.setattr(Waits, "wait", wait)
        yield


class TimedLock:
    """A re-entrant lock that knows for how many seconds it was held at most, waits left out; for `Condition`."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._depth, self._since = 0, 0.0
        self.longest_secs = 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self._lock.acquire(blocking, timeout)
        if got:
            self._depth += 1
            if self._depth == 1:
                self._since = time.perf_counter()
        return got

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self.longest_secs = max(self.longest_secs, time.perf_counter() - self._since)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _release_save(self) -> Any:
        depth, self._depth = self._depth, 0
        self.longest_secs = max(self.longest_secs, time.perf_counter() - self._since)
        return depth, self._lock._release_save()

    def _acquire_restore(self, saved: Any) -> None:
        self._depth, state = saved
        self._lock._acquire_restore(state)
        self._since = time.perf_counter()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()


class TimedClock(ManualClock):
    """A clock whose conditions are over one lock.

    Args:
      lock: of every condition; roles that have one of their own get it afterwards.
    """

    def __init__(self, lock: TimedLock) -> None:
        super().__init__()
        self._lock = lock

    def condition(self) -> threading.Condition:
        return threading.Condition(self._lock)  # pyright: ignore[reportArgumentType]


def servicers() -> set[type[Servicer]]:
    """Return every servicer of the package, whether a role here has it or not."""
    for module in pkgutil.iter_modules(hybridsync.transport.grpc.__path__):
        importlib.import_module(f"hybridsync.transport.grpc.{module.name}")
    return set(Servicer.__subclasses__())


@dataclass(frozen=True)
class Good:
    """A message that a role of the job could send.

    Args:
      message: of the method's input type; for a stream of frames, what its header pushes.
      num_bytes: of the buffer behind the header, in such a stream.
    """

    message: Message
    num_bytes: int = 0


def place(num_sockets: int, caller: Identity | None) -> Place:
    """Give out one place again and again."""
    return Place(4711, bytes(16), bytes(32))


class Job:
    """A chief with four workers, a primary, another server, and a worker in lock-step, each in phase 5 up to unit 40.

    Beside them there is the head of the run's three hosts.

    Args:
      spec: protocol of the chief's phase, and of the servers' where they can serve it.
    """

    def __init__(self, spec: str = "asp") -> None:
        self.locks = {role: TimedLock() for role in ("chief", "primary", "store", "head")}
        programs, self.clock = tally_programs(), TimedClock(self.locks["chief"])
        schema = programs.state_layout.schema_hash
        self.chief = Chief(RunState(Ledger(END), WORKERS, schema, self.clock, RunStateSpec(lease_secs=600.0)))
        memory = SlabMemory()
        kept_at = SnapshotBuffer(programs.state_layout, memory.allocate)
        kept_at.pack(tally_state())
        self.start = kept_at.finalize(PhaseId(4, 1), sequence=0, applied=())
        committed = CommittedState(programs.state_layout, self.start, tally_state(), memory.allocate)

        def reader_at(address: str) -> CommittedState:
            if address != "chief":
                raise RoleLost(f"nobody is at {address}")
            return committed

        part, *_ = partition(programs, 1)
        pool, allocate = ParameterPool(programs.parameters_layout, memory.allocate), memory.allocate
        log, over = NullApplyLog(), threading.Event()
        self.primary = Primary(programs, pool, reader_at, self.clock, log, over, allocate=allocate)
        self.store = Secondary(part, reader_at, self.clock, allocate=allocate)
        hosts, clock = 3, TimedClock(self.locks["head"])
        self.head = AgentSessions(hosts, AGENT.config_digest, 600.0, lambda: None, clock)
        self.replica = Replica(programs, reader_at, self.clock, NullApplyLog(), allocate)
        condition = threading.Condition(self.locks["primary"])  # pyright: ignore[reportArgumentType]
        self.primary._condition = self.primary._entrance._condition = self.primary._turn._condition = condition
        condition = threading.Condition(self.locks["store"])  # pyright: ignore[reportArgumentType]
        self.store._condition = self.store._entrance._condition = self.store._turn._condition = condition
        num_bytes, opt = programs.contribution_layout.nbytes, part.opt_state.layout
        endpoint = Endpoint(self.primary, programs.contribution_layout)
        evaluate = StateEvaluator(Evaluator(programs.task), programs.state_layout, reader_at).evaluate
        self.roles: dict[str, list[Servicer]] = {
            "chief": [ChiefServicer(self.chief.service), SnapshotServicer(committed)],
            "primary": [
                PhaseServicer(self.primary),
                ParameterServicer(endpoint, num_bytes, WORKERS + 2),
                OptimizerServicer(OptimizerEndpoint(self.primary, opt), opt.nbytes),
                SnapshotServicer(self.primary),
            ],
            "store": [
                PhaseServicer(self.store),
                ShardServicer(self.store, num_bytes, 2 * WORKERS + 2),
                OptimizerServicer(OptimizerEndpoint(self.store, opt), opt.nbytes),
                SnapshotServicer(self.store),
            ],
            "worker": [SnapshotServicer(self.replica), BulkLinkServicer(place), EvaluatorServicer(evaluate)],
            "head": [HeadServicer(self.head)],
        }
        self.handlers: dict[tuple[str, str], Any] = {
            (role, method): handler
            for role, served in self.roles.items()
            for servicer in served
            for method, handler in servicer._handlers.items()
        }
        self._add_links(memory, Endpoint(self.primary, programs.contribution_layout), committed, num_bytes)
        self._begin(spec)

    def _add_links(self, memory: SlabMemory, port: ParameterPort, committed: CommittedState, num_bytes: int) -> None:
        offered = {
            "chief": Services(holder=committed),
            "primary": Services(holder=self.primary, parameters=port, contribution_bytes=num_bytes),
            "store": Services(holder=self.store, shard=self.store, contribution_bytes=num_bytes),
            "worker": Services(holder=self.replica),
        }
        sessions: dict[str, list[Any]] = {role: [] for role in offered}
        weakref.finalize(self, closed, [*sessions.values()])
        for role, services in offered.items():
            blocks = Buffers(num_bytes, 2 * WORKERS + 2)
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with near, far:
                calls = [*Session(far, services, memory, b"", blocks)._calls]
            for call in (*calls, ANY_CALL):
                self.handlers[role, f"{LINK}{call}"] = Link((services, memory, blocks), sessions[role])
            pushes = Buffers(num_bytes, WORKERS + 2)
            for call in (*(call for call in calls if call != "contribution"), ANY_CALL):
                self.handlers[role, f"{TCP}{call}"] = TcpCall((services, blocks, pushes))

    def _begin(self, spec: str) -> None:
        schema, members = tally_programs().state_layout.schema_hash, tuple(range(WORKERS))
        for role, role_id in (("server", 0), *(("worker", worker) for worker in members)):
            self.chief.service.register(Hello(role, role_id, 1, "host", "server", schema, __version__))
        digest, number = self.start.held.fingerprint, self.start.snapshot_id
        served = spec if protocols.parse(spec).mode is SERVER else "asp"
        self.phase = Phase(PHASE_ID, served, members, 0, END, (), (), 0, "chief", number, digest, ("server",), "start")
        for holder in (self.primary, self.store):
            holder.enter(self.phase)
        self.replica.enter(self.phase, 0)
        with self.chief.control.turn() as state:
            state.begin(dataclasses.replace(self.phase, spec=spec))
            state.open_leases()
        self.chief.service.lease(LeaseRequest(0, 1, PHASE_ID, 0, 0))
        self.chief.state.take_reports()
        self.head.attach(AGENT)
        self.head.take()
        self.head.order(AGENT.index, "start")

    def accounts(self, *, entering: bool = False) -> tuple[Any, ...]:
        """Return everything that a refused message must leave as it is.

        An Enter closes the phase before it starts to fetch the next state, so that one whose fetch fails leaves that
        phase closed, and lets go of what it held: with `entering` these are left out.
        """
        ledger, sequencer, store = self.chief.state.ledger, self.primary._sequencer, self.store
        calls = () if entering else (sequencer.open, sequencer.num_held, store._open)
        return (
            sequencer.count.applied.ranges(),
            sequencer.count.dropped.ranges(),
            ledger.counts(),
            ledger._applied.ranges(),
            ledger._dropped.ranges(),
            ledger.holders(),
            self.chief.state.waits.failure,
            self.chief.control.orders.pending,
            self.chief.state.preempted,
            sequencer.sequence,
            sequencer.phase,
            id(self.primary._state._shard._state),
            store._sequence,
            store._phase,
            set(store._staged),
            id(store._shard._state),
            self.replica._phase,
            *((each.hello, each.heard_at, each.events.count) for each in self.head._sessions.values()),
            *(each.orders.acknowledged for each in self.head._sessions.values()),
            len(self.head._untaken),
            *calls,
        )

    def read_board(self) -> None:
        """Read what the chief's controller reads again and again; no message may make that fail."""
        self.chief.control.orders.take_news()
        with self.chief.control.turn() as state:
            state.take_reports()
            state.take_fenced()
            reads = (
                state.ledger.counts,
                state.judged,
                state.worker_rates,
                state.doing,
                state.members.role_states,
                state.phase_members.first_and_last,
            )
            for read in reads:
                read()
            state.phase_members.behind(state.members.workers.ids())
        self.primary.take_report()
        self.store.take_report()
        for index, _ in self.head.take():
            self.head.order(index, "line")
        self.head.expire()

    @property
    def is_spoiled(self) -> bool:
        """Whether messages were accepted after which most others are refused."""
        primary, store = self.primary, self.store
        over = self.chief.state.waits.failure is not None or bool(self.chief.state.phase_members.broken)
        return over or {primary.phase_id, store.phase_id} != {PHASE_ID} or not (primary._sequencer.open and store._open)

    def good(self) -> dict[str, list[Good]]:
        """Return what roles of this job could send, by method; any other method gets its empty message."""
        programs, phase, start = tally_programs(), self.phase, self.start
        schema = programs.state_layout.schema_hash
        push, none = Push(PHASE_ID, 0, 1, (1,), 0), Push(PHASE_ID, 1, 1, (), 0)
        contribution, opt = programs.contribution_layout.empty(), programs.opt_state_layout.nbytes
        hello = Hello("worker", 1, 1, "host", "a:1", schema, __version__)
        stands = RoleState(phase, True, ((0, 4),), 1)
        later = dataclasses.replace(phase, id=PhaseId(6, 1))
        report = Report("worker", 0, 1, PHASE_ID)
        span = Span("apply", "server", 1.0, 0.1, 5, 1)
        made: dict[str, list[Any]] = {
            "Register": [
                hello,
                dataclasses.replace(hello, id=2, role_state=stands),
                Hello("server", 0, 1, "host", "a:1", schema, __version__),
            ],
            "NextPhase": [
                PhaseRequest(0, 1, NO_PHASE, None),
                PhaseRequest(1, 1, PHASE_ID, StateVersion(PHASE_ID, 3, 2, "ff"), "why", 0.5),
            ],
            "Lease": [LeaseRequest(1, 1, PHASE_ID, 0, 0), LeaseRequest(0, 1, PHASE_ID, 1, 1, True, 5)],
            "JoinGroup": [
                GroupRequest(0, 1, PHASE_ID, 1, (AppliedUnit(0, 0),), ((3, "non_finite: x"),), False, True, 0.5),
                GroupRequest(0, 1, PHASE_ID, 1, serves=1),
            ],
            "Report": [
                dataclasses.replace(report, completed=1, spans=(span,), unit_secs=(0.1,), doing="compute"),
                dataclasses.replace(report, exchange=Exchange(1, 2, 3, 4), hold_secs=0.5),
                Report("server", 0, 1, PHASE_ID, 0, 3, ((0, 2),), ((3, "stale"),), (1, 2)),
            ],
            "Switch": [SwitchRequest("ssp(staleness=2)", "it is slow"), SwitchRequest("bsp"), SwitchRequest("asp")],
            "Stop": [StopRequest("lunch")],
            "RoleStarted": [RoleEvent("worker", 0, 1, "restart", 1.0)],
            "RoleLost": [RoleEvent("worker", 3, 99, "exit 1", 1.0, 4), RoleEvent("server", 0, 99, "x", 1.0)],
            "TakeSnapshot": [pb.SnapshotRequest(phase_id=encode(PHASE_ID))],
            "Read": [pb.ReadRequest(snapshot_id=start.snapshot_id, num_bytes=start.num_bytes)],
            "Enter": [phase, later, dataclasses.replace(later, applied=((0, 3),), dropped=((5, 6),))],
            "Fence": [pb.FenceRequest(phase_id=encode(PHASE_ID), worker=3, incarnation=1)],
            "Forget": [pb.FenceRequest(phase_id=encode(PHASE_ID), worker=3, incarnation=1)],
            "Apply": [pb.Updates(phase_id=encode(PHASE_ID), updates=[encode(Update(1, (push,), 1.0, ()))])],
            "SnapshotPart": [pb.PartSnapshotRequest(phase_id=encode(PHASE_ID), sequence=0)],
            "PushPullSmall": [pb.SmallPush(push=encode(push), contribution=contribution.tobytes())],
            "Attach": [AGENT, dataclasses.replace(AGENT, index=2, session="2" * 32)],
            "Exchange": [
                AgentReport(1, AGENT.session, 0, ("a", "b"), 0, 5.0),
                AgentReport(1, AGENT.session, 0, (), 1, 0),
            ],
            "Open": [pb.OpenRequest(num_sockets=2)],
            "Evaluate": [EvaluationRequest("chief", start.snapshot_id, start.held.fingerprint)],
            **{method: [push] for method in ("Ready", "Discard")},
            **{method: [none] for method in ("Idle", "Pull", "PullAt", "Download")},
        }
        sizes = {
            "contribution": contribution.nbytes,
            "push_pull": contribution.nbytes,
            "stage": contribution.nbytes,
            "pull": programs.parameters_layout.nbytes,
            "pull_at": programs.parameters_layout.nbytes,
            "read": start.num_bytes,
            "idle": 0,
            "ready": 0,
        }
        for call, num_bytes in sizes.items():
            named = push if call in ("push_pull", "stage", "ready") else none
            fields: dict[str, Any] = {"snapshot_id": start.snapshot_id, "num_bytes": num_bytes}
            made[call] = [pb.LinkRequest(call=call, push=encode(named), **fields)]
        made[ANY_CALL] = [request for call in sizes for request in made[call]]
        streams = {"PushPull": contribution.nbytes, "Stage": contribution.nbytes, "Upload": opt}
        found = {method: [Good(encode(push), num_bytes)] for method, num_bytes in streams.items()}
        for method, messages in made.items():
            found[method] = [Good(each if isinstance(each, Message) else encode(each)) for each in messages]
        return found


def count_items(roots: Sequence[Any], most: int = 10_000_000) -> int:
    """Return how many values are kept behind objects of the package, in containers and in other such objects."""
    assert all(type(root).__module__.startswith("hybridsync.") for root in roots), "of others nothing is counted"
    seen: set[int] = set()
    waiting, found = [*roots], 0
    while waiting and found < most:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        found += 1
        if isinstance(value, dict):
            found += len(value)
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
            found += len(value)
            waiting += value
        elif isinstance(value, (str, bytes)):
            found += len(value) // 100
        elif type(value).__module__.startswith("hybridsync."):
            waiting += getattr(value, "__dict__", {}).values()
            waiting += [getattr(value, slot, None) for slot in getattr(type(value), "__slots__", ())]
    return found
