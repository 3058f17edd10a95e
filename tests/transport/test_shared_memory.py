"""Memory that is lent is not written over before it is given back; and lost connections."""

from __future__ import annotations

import dataclasses
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.config import NO_STRAGGLERS
from hybridsync.core.errors import HybridSyncError, RoleLost, SchemaMismatch, StalePhase, StillHeld
from hybridsync.core.plan import NO_PHASE
from hybridsync.emulation.link_delays import DelayedPort, Pacing
from hybridsync.emulation.link_model import Wire
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, ParameterPort
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import ServerRule
from hybridsync.server import primary as primary_module
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.transport import connected_links as connection_module
from hybridsync.transport.connected_links import ConnectedParameters
from hybridsync.transport.link import Services
from hybridsync.transport.shared_memory import connection as shared_memory
from hybridsync.transport.shared_memory.connection import Connection
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory
from tests.roles import gradient_of, push_of, tally_programs, tally_state
from tests.server.test_held_pushes import InTwos
from tests.telemetry.clocks import ManualClock
from tests.transport.slab_primary import SECS, TOKEN, SlabPrimary, only, packed, tallied, until


@pytest.fixture(autouse=True)
def held_in_twos(monkeypatch: pytest.MonkeyPatch) -> None:
    class HeldInTwos(Asp):
        name: ClassVar[str] = "intwos"

        def server_rule(self, members: tuple[int, ...]) -> ServerRule:
            return InTwos()

    monkeypatch.setitem(protocols.REGISTRY, HeldInTwos.name, HeldInTwos)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def served(folder: Path, request: pytest.FixtureRequest) -> Iterator[SlabPrimary]:
    primary = SlabPrimary(folder, getattr(request, "param", "asp"))
    yield primary
    primary.close()


held = pytest.mark.parametrize("served", ["intwos"], indirect=True)


def push(served: SlabPrimary, link: ConnectedParameters, unit: int, worker: int = 0) -> tuple[PushReply, np.ndarray]:
    link.contribution[:] = packed(unit)
    return link.push_pull(served.push(unit, worker=worker))


def connection_of(link: ConnectedParameters) -> Connection:
    assert isinstance(link._connection, Connection)
    return link._connection


# --- who still reads a slab ---


def test_what_a_slow_worker_was_lent_is_not_written_over_until_its_own_next_push(served: SlabPrimary) -> None:
    slow, quick = served.parameters(), served.parameters()
    seen = slow.pull(served.push(worker=1))[1]
    quick.pull(served.push())
    for unit in range(6):
        assert tallied(push(served, quick, unit)[1]) == only(*range(unit + 1))
        assert tallied(seen) == only(), "half an update, or one that it did not pull"
    lent = {served.memory.number_of(each.buffer) for each in served.pool._copies}
    assert len(lent) == 3, "one for each reader, and one to write"
    assert tallied(push(served, slow, 6, worker=1)[1]) == only(*range(7))
    for unit in range(7, 20):
        push(served, quick, unit)
    assert len(served.pool._copies) == 3, "what the slow one gave back is used again"


def test_no_more_slabs_are_made_than_workers_and_two(served: SlabPrimary) -> None:
    links = [served.parameters() for _ in range(4)]
    for worker, link in enumerate(links):
        link.pull(served.push(worker=worker))
    for unit in range(40):
        worker = unit % 3 if unit % 7 else 3
        push(served, links[worker], unit, worker)
    assert len(served.pool._copies) <= len(links) + 2


def test_a_worker_that_closes_its_link_gives_back_what_it_was_lent(served: SlabPrimary) -> None:
    link = served.parameters()
    link.pull(served.push())
    assert [copy.readers for copy in served.pool._copies] == [1]
    link.close()
    until(lambda: [copy.readers for copy in served.pool._copies] == [0], "it was not given back")


def test_a_call_that_lends_nothing_sends_no_memory_along(served: SlabPrimary) -> None:
    """The file of another slab than the lent one came with it once, as one of no bytes."""
    first, second = served.parameters(), served.parameters()
    first.pull(served.push())
    push(served, first, 0)
    second.pull(served.push(worker=1))  # the second slab
    second.idle(served.push(worker=1))
    second.ready(served.push(1, worker=1))
    assert len(connection_of(second)._slabs) == 1
    for unit in range(1, 6):  # all slabs come by
        assert tallied(push(served, second, unit, worker=1)[1]) == only(*range(unit + 1))


def test_a_slab_s_file_is_sent_once_on_a_connection(served: SlabPrimary) -> None:
    link = served.parameters()
    for unit in range(20):
        push(served, link, unit)
    assert len(connection_of(link)._slabs) <= 3


# --- pushes ---


@held
def test_a_held_push_is_answered_as_held_and_found_again(served: SlabPrimary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.02)
    first, second = served.parameters(), served.parameters()
    first.pull(served.push())
    for _ in range(7):
        with pytest.raises(StillHeld, match=r"worker 0 with units \(3,\) is still held by intwos"):
            push(served, first, 3)
    monkeypatch.setattr(primary_module, "HELD_SECS", 20.0)
    with ThreadPoolExecutor(1) as threads:
        again = threads.submit(push, served, first, 3)
        assert tallied(push(served, second, 4, worker=1)[1]) == only(3, 4)
        assert tallied(again.result(timeout=SECS)[1]) == only(3, 4)
    assert served.applied() == only(3, 4)


@held
def test_what_is_written_into_a_contribution_s_memory_later_does_not_change_what_is_held(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.02)
    first, second = served.parameters(), served.parameters()
    with pytest.raises(StillHeld):
        push(served, first, 3)
    first.contribution[:] = 0xFF
    assert tallied(push(served, second, 4, worker=1)[1]) == only(3, 4)


def test_a_unit_that_is_pushed_twice_is_applied_once(served: SlabPrimary) -> None:
    link, other = served.parameters(), served.parameters()
    assert not push(served, link, 3)[0].duplicate
    assert push(served, link, 3)[0].duplicate and push(served, other, 3, worker=1)[0].duplicate
    assert served.applied() == only(3)


def test_a_push_of_another_phase_is_refused_and_changes_nothing(served: SlabPrimary) -> None:
    link = served.parameters()
    link.pull(served.push())
    with pytest.raises(StalePhase):
        link.push_pull(push_of(dataclasses.replace(served.phase, id=NO_PHASE), 1))
    assert served.applied() == only() and served.num_links() == 1
    assert tallied(push(served, link, 1)[1]) == only(1)


def test_a_defect_of_the_server_is_named_and_the_caller_is_served_on(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = served.parameters()
    with monkeypatch.context() as patched:
        patched.setattr(served.primary, "pull", lambda push: 1 // 0)
        with pytest.raises(HybridSyncError, match=r"server 0 at unix:.* failed in pull: ZeroDivisionError"):
            link.pull(served.push())
    assert tallied(link.pull(served.push())[1]) == only()


# --- lost connections to a role that lives ---


def cut(link: ConnectedParameters) -> None:
    """Lose a connection, as neither end means to."""
    lost = connection_of(link)._socket
    assert lost is not None
    lost.shutdown(socket.SHUT_RDWR)


def test_a_push_is_made_again_on_a_new_connection_and_its_contribution_is_carried_over(served: SlabPrimary) -> None:
    link = served.parameters()
    link.pull(served.push())
    link.contribution[:] = packed(2)
    cut(link)
    reply, parameters = link.push_pull(served.push(2))
    assert (reply.sequence, tallied(parameters)) == (1, only(2))
    assert tallied(push(served, link, 3)[1]) == only(2, 3), "later ones are written where they are read"
    until(lambda: served.num_links() == 1, "the lost connection is kept")


def test_a_push_whose_answer_is_lost_is_not_applied_again(served: SlabPrimary) -> None:
    link = served.parameters()
    link.contribution[:] = packed(2)
    request_sent = connection_of(link)._socket
    assert request_sent is not None

    class Deaf(socket.socket):
        """Loses the answer to a request, and the connection."""

        def send(self, data: bytes, flags: int = 0) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
            sent = super().send(data, flags)
            assert self.recv(1 << 16), "it was not answered"
            self.shutdown(socket.SHUT_RDWR)
            return sent

    connection_of(link)._socket = Deaf(fileno=request_sent.detach())
    reply, parameters = link.push_pull(served.push(2))
    assert reply.duplicate and tallied(parameters) == only(2)
    assert served.applied() == only(2)


@pytest.mark.parametrize("call", ["idle", "ready"])
def test_what_a_lost_connection_had_lent_is_read_no_more(served: SlabPrimary, call: str) -> None:
    """The server writes over it, so a call that leaves it in its reader's hands must not pass as if nothing was."""
    link = served.parameters()
    link.pull(served.push())
    cut(link)
    with pytest.raises(RoleLost, match=r"ended the connection, and what it had lent is its own again"):
        getattr(link, call)(served.push(1) if call == "ready" else served.push())
    assert tallied(link.pull(served.push())[1]) == only(), "who pulls anew goes on"
    getattr(link, call)(served.push(1) if call == "ready" else served.push())


# --- states ---


def test_a_state_is_read_where_it_lies_and_its_holder_waits_with_the_next(served: SlabPrimary) -> None:
    snapshot = served.primary.take_snapshot(served.phase.id, final=False)
    reading, lend = served.reader(), SnapshotBuffer.lend
    into = np.zeros(snapshot.num_bytes, np.uint8)
    with ThreadPoolExecutor(1) as threads:
        connection = reading._connection
        request = connection_module.pb.LinkRequest(
            call="read", snapshot_id=snapshot.snapshot_id, num_bytes=snapshot.num_bytes
        )
        lent = connection.call(request, snapshot.num_bytes)[1]
        push(served, served.parameters(), 1)
        later = threads.submit(served.primary.take_snapshot, served.phase.id, final=False)
        with pytest.raises(TimeoutError):
            later.result(timeout=0.1)
        into[:] = lent
        assert np.array_equal(tally_programs().state_layout.unpack(into).params["tally"], tally_state().params["tally"])
        connection.hang_up()
        assert later.result(timeout=SECS).held.units == 1
    assert lend is SnapshotBuffer.lend
    reading.read(later.result().snapshot_id, into)
    with pytest.MonkeyPatch.context() as patch:  # a file that is mapped counts as the reader's memory, too
        patch.delattr(shared_memory, "mapped")
        copy = np.zeros_like(into)
        reading.read(later.result().snapshot_id, copy)
    assert copy.tobytes() == into.tobytes()
    with pytest.raises(StalePhase, match=f"snapshot {snapshot.snapshot_id} is no longer kept"):
        reading.read(snapshot.snapshot_id, into)


def test_a_reader_with_another_size_is_refused(served: SlabPrimary) -> None:
    snapshot = served.primary.take_snapshot(served.phase.id, final=False)
    reader, into = served.reader(), np.zeros(snapshot.num_bytes, np.uint8)
    with pytest.raises(SchemaMismatch, match=f"has 5 bytes where {snapshot.num_bytes} are expected"):
        reader.read(snapshot.snapshot_id, np.zeros(5, np.uint8))
    served.primary.take_snapshot(served.phase.id, final=False)  # nobody reads the last one
    reader.read(snapshot.snapshot_id + 1, into)
    reader.close()
    with pytest.raises(RoleLost, match="the link is closed here"):
        reader.read(snapshot.snapshot_id + 1, into)


def test_a_read_whose_link_is_closed_meanwhile_is_none(served: SlabPrimary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder may have taken the next snapshot while this end copied the last one."""
    snapshot, reader = served.primary.take_snapshot(served.phase.id, final=False), served.reader()
    connection, call = reader._connection, reader._connection.call

    def closed_then(*arguments):
        found = call(*arguments)
        connection.close()
        return found

    monkeypatch.setattr(connection, "call", closed_then)
    with pytest.raises(RoleLost, match="was read while the link was closed here"):
        reader.read(snapshot.snapshot_id, np.zeros(snapshot.num_bytes, np.uint8))


# --- what is empty; emulated links ---


class Nothing:
    """A view of no bytes."""

    def __init__(self, memory: SlabMemory) -> None:
        self.buffer = memory.allocate(0)
        self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


class WithoutLeaves(ParameterPort):
    """Answers with nothing but zeros and no bytes."""

    def __init__(self, memory: SlabMemory) -> None:
        self.views = [Nothing(memory), Nothing(memory)]
        self.num_asked = 0

    def pull(self, push: Push) -> Answer:
        self.num_asked += 1
        return Answer(PushReply(0), self.views[self.num_asked % 2])

    def begin_push(self, push: Push):
        def offer(contribution: np.ndarray) -> Answer:
            assert contribution.nbytes == 0
            return self.pull(push)

        return offer

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...


def test_a_server_without_leaves_and_replies_of_zeros_alone(folder: Path) -> None:
    memory = SlabMemory()
    port = WithoutLeaves(memory)
    holder: SnapshotBuffer = SnapshotBuffer(tally_programs().state_layout, memory.allocate)
    services = Services(holder=holder, parameters=port)  # pyright: ignore[reportArgumentType]
    service = SlabService(services, memory, str(folder / "empty"), TOKEN, 4)
    link = ConnectedParameters(Connection(str(folder / "empty"), TOKEN, "server 0"), 0)
    caller = Push(NO_PHASE, 0, 0, (), 0)
    for _ in range(3):
        link.idle(caller)
        for reply, parameters in (link.pull(caller), link.push_pull(caller)):
            assert reply == PushReply(0) and parameters.nbytes == 0
    assert sum(view.num_released for view in port.views) == port.num_asked - 1, "all but the last are given back"
    link.close()
    service.stop(SECS)
    assert sum(view.num_released for view in port.views) == port.num_asked


def test_transfers_take_as_long_as_on_an_emulated_link(folder: Path) -> None:
    served, clock = SlabPrimary(folder), ManualClock(now=0.0)
    served.service.stop(SECS)
    wire = Wire(link_bytes_per_sec=served.contribution_bytes / 2.0)
    sizes = served.contribution_bytes, served.parameters_bytes
    pacing = Pacing(wire, *sizes, clock=clock, wait=clock.advance, stragglers=NO_STRAGGLERS)
    assert served.services.parameters is not None
    served.services = dataclasses.replace(served.services, parameters=DelayedPort(served.services.parameters, pacing))
    served.serve()
    link = served.link()
    link.pull(served.push())
    pulled = clock.now
    assert pulled == pytest.approx(2.0 * sizes[1] / sizes[0])
    reply, parameters = link.push_pull(served.push(1), gradient_of(1))
    assert clock.now == pytest.approx(pulled + 2.0 + pulled) and reply.sequence == 1
    assert round(-float(np.asarray(parameters.params["tally"])[1])) == 1
    served.close()
