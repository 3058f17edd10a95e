"""Workers and readers over TCP: buffers in one frame and in many, on one socket and on several."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hybridsync.core.errors import RoleLost, SchemaMismatch, StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport.connected_links import ConnectedParameters, ConnectedReader
from hybridsync.transport.tcp import lanes
from hybridsync.transport.tcp.connection import TcpConnection
from tests.roles import push_of
from tests.transport.scripted_role import Scripted
from tests.transport.slab_primary import only, packed, tallied, until
from tests.transport.tcp_primary import Served, TcpPrimary

CALLER = Push(PhaseId(1, 1), 0, 1, (), 0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[TcpPrimary]:
    primary = TcpPrimary(folder)
    yield primary
    primary.close()


@pytest.fixture(params=["whole", "in many frames"])
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tally, too, go in many frames over all sockets."""
    if request.param != "whole":
        monkeypatch.setattr(lanes, "FRAME_BYTES", 60)
        monkeypatch.setattr(lanes, "SMALL_BYTES", 1)


def push(served: TcpPrimary, link: ConnectedParameters, unit: int, worker: int = 0) -> tuple[PushReply, np.ndarray]:
    link.contribution[:] = packed(unit)
    return link.push_pull(served.push(unit, worker=worker))


@pytest.mark.parametrize("num_sockets", [1, 2, 5])
@pytest.mark.usefixtures("split")
def test_each_unit_is_applied_once_whatever_the_sockets_and_the_frames(served: TcpPrimary, num_sockets: int) -> None:
    link = served.parameters(num_sockets=num_sockets)
    assert tallied(link.pull(served.push())[1]) == only()
    for unit in range(5):
        assert tallied(push(served, link, unit)[1]) == only(*range(unit + 1))
    assert push(served, link, 3)[0].duplicate
    link.idle(served.push())
    link.ready(served.push(6))
    assert served.applied() == only(*range(5))
    link.close()
    until(lambda: served.num_links() == 0, "a closed link is kept")
    assert all(not copy.readers for copy in served.pool._copies)


def test_many_workers_push_at_once(served: TcpPrimary) -> None:
    links = [served.parameters() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for unit in range(0, 8, 4):
            list(threads.map(lambda worker: push(served, links[worker], unit + worker, worker), range(4)))  # noqa: B023
    assert served.applied() == only(*range(8))


@pytest.mark.usefixtures("split")
def test_a_refused_push_is_thrown_away_and_the_next_request_is_found(served: TcpPrimary) -> None:
    link = served.parameters()
    for _ in range(3):
        link.contribution[:] = packed(1)
        with pytest.raises(StalePhase):
            link.push_pull(push_of(dataclasses.replace(served.phase, id=NO_PHASE), 1))
        assert served.num_links() == 1
    assert tallied(push(served, link, 2)[1]) == only(2)
    assert isinstance(link._connection, TcpConnection) and served.applied() == only(2)


def test_parameters_that_a_worker_has_are_not_sent(served: TcpPrimary) -> None:
    link = served.parameters()
    found = link.pull(served.push())[1]
    found[:] = 7
    link.contribution[:] = packed(1)
    push(served, link, 1)
    again = link.push_pull(served.push(1)._replace(base=1))
    assert again[0].duplicate and again[1] is found and tallied(again[1]) == only(1)
    found[:] = 7
    assert link.push_pull(served.push(1)._replace(base=1))[1].tolist() == [7] * found.nbytes, "they were sent"


@pytest.mark.usefixtures("split")
def test_a_state_is_received_where_it_is_wanted_and_goes_back(served: TcpPrimary) -> None:
    snapshot = served.primary.take_snapshot(served.phase.id, final=False)
    reader, into, expected = served.reader(), *(np.zeros(snapshot.num_bytes, np.uint8) for _ in "ab")
    served.primary.read(snapshot.snapshot_id, expected)
    for _ in range(2):
        into[:] = 0
        reader.read(snapshot.snapshot_id, into)
        assert np.array_equal(into, expected)
    until(lambda: served.num_links() == 0, "a reader's link is kept")
    with pytest.raises(SchemaMismatch, match=f"has 5 bytes where {snapshot.num_bytes} are expected"):
        reader.read(snapshot.snapshot_id, np.zeros(5, np.uint8))
    assert served.primary.take_snapshot(served.phase.id, final=False).snapshot_id == snapshot.snapshot_id + 1
    with pytest.raises(StalePhase, match=f"snapshot {snapshot.snapshot_id} is no longer kept"):
        reader.read(snapshot.snapshot_id, into)
    reader.close()
    with pytest.raises(RoleLost, match="the link is closed here"):
        reader.read(snapshot.snapshot_id + 1, into)


SIZES = [0, 1, lanes.SMALL_BYTES - 1, lanes.FRAME_BYTES, lanes.FRAME_BYTES + 1, 5 * lanes.FRAME_BYTES + 77]


@pytest.mark.parametrize("num_bytes", SIZES)
def test_buffers_of_any_size_arrive_as_they_are(folder: Path, num_bytes: int) -> None:
    role = Scripted(num_bytes)
    served = Served(folder, role.services())
    connection = served.connection()
    link = ConnectedParameters(connection, num_bytes)
    for _ in range(2):
        assert np.array_equal(link.pull(CALLER)[1], role.view.buffer)
        link.contribution[:] = role.view.buffer[::-1]
        assert np.array_equal(link.push_pull(CALLER._replace(units=(1,)))[1], role.view.buffer)
        assert np.array_equal(role.pushed[-1], role.view.buffer[::-1])
    into = np.zeros(num_bytes, np.uint8)
    ConnectedReader(connection).read(1, into)
    assert np.array_equal(into, role.view.buffer)
    until(lambda: role.view.num_lent == role.view.num_released == 5, "what was lent is kept")
    served.close()


def test_the_last_of_the_parameters_is_handed_over_when_the_emulated_link_has_them(folder: Path) -> None:
    role, seen = Scripted(3 * lanes.FRAME_BYTES), list[np.ndarray]()
    served = Served(folder, role.services())
    link = ConnectedParameters(served.connection(), role.view.buffer.nbytes)
    link.pull(CALLER)
    found = link.pull(CALLER)[1]
    found[:] = 0
    frames = lanes.FRAME_BYTES

    def all_but_the_last() -> None:
        until(lambda: np.array_equal(found[: 2 * frames], role.view.buffer[: 2 * frames]), "nothing came before it")
        seen.append(found[2 * frames :].copy())

    role.on_arrival = all_but_the_last
    link.pull(CALLER)
    assert not seen[0].any() and np.array_equal(found, role.view.buffer)
    served.close()


def test_a_small_buffer_starts_no_thread(folder: Path) -> None:
    role = Scripted(lanes.SMALL_BYTES - 1)
    served = Served(folder, role.services())
    connection = served.connection()
    ConnectedParameters(connection, role.view.buffer.nbytes).pull(CALLER)
    assert connection._lanes is not None and connection._lanes._threads is None
    served.close()
