"""What goes over the sockets of a connection, and which error is told where several sockets fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridsync.core.errors import DamagedState, HybridSyncError
from hybridsync.transport.tcp import lanes as lanes_module
from hybridsync.transport.tcp.lanes import Lanes
from tests.fuzz.link_calls import tcp_pair
from tests.transport.tcp_primary import fail_to_start

SECS = 10.0


def pair(num_sockets: int) -> tuple[Lanes, Lanes]:
    near, far = zip(*(tcp_pair() for _ in range(num_sockets)), strict=True)
    ends = Lanes(near), Lanes(far)
    for each in ends:
        each.within(SECS)
    return ends


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "FRAME_BYTES", 7)
    monkeypatch.setattr(lanes_module, "SMALL_BYTES", 20)


@pytest.fixture
def ends(small_frames: None) -> Iterator[tuple[Lanes, Lanes]]:
    ends = pair(3)
    yield ends
    for each in ends:
        each.close()


@pytest.mark.parametrize("num_bytes", [1, 7, 19, 20, 21, 42, 1000])
def test_buffers_follow_their_messages_and_the_next_message_is_found(ends: tuple[Lanes, Lanes], num_bytes: int) -> None:
    near, far = ends
    sent, found = np.resize(np.arange(251, dtype=np.uint8), num_bytes), np.zeros(num_bytes, np.uint8)
    for _ in range(2):
        near.send(b"first", sent)
        assert far.await_message() == b"first"
        far.receive(found)
        assert np.array_equal(sent, found)
        near.send(b"second", sent)
        assert far.await_message(forever=True) == b"second"
        far.discard(num_bytes)
    near.shut()
    assert far.await_message() is None


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_whatever_bytes_come_they_are_a_message_or_an_error_by_name(data: bytes) -> None:
    near, far = tcp_pair()
    lanes = Lanes([far])
    with near:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        try:
            found = lanes.await_message()
        except (HybridSyncError, ConnectionResetError):
            found = None
        assert found is None
        lanes.hang_up()
    lanes.close()


def test_damage_is_told_though_other_sockets_were_lost(ends: tuple[Lanes, Lanes]) -> None:
    _, far = ends

    def move(lane: int) -> None:
        if lane == 1:
            raise DamagedState("damaged")
        if lane == 2:
            raise ConnectionResetError
        assert not far._sockets[0].recv(1), "it was not shut"
        raise ConnectionResetError

    with pytest.raises(DamagedState):
        far._each(3, move)


def test_what_is_late_on_one_socket_is_told_as_late(ends: tuple[Lanes, Lanes]) -> None:
    near, far = ends
    near.within(0.2)
    with pytest.raises(BlockingIOError):
        near.receive(np.zeros(100, np.uint8))
    assert far.await_message() is None, "the others were shut"


def test_what_is_begun_after_the_deadline_is_late(ends: tuple[Lanes, Lanes]) -> None:
    near, far = ends
    far.send(b"message", np.zeros(100, np.uint8))
    near.within(-1.0)
    for late in (lambda: near.receive(np.zeros(100, np.uint8)), lambda: near.send(b"message")):
        with pytest.raises(BlockingIOError):
            late()


@pytest.mark.parametrize("num_started", [0, 1])
def test_without_a_thread_for_each_socket_the_connection_is_ended_by_name(
    ends: tuple[Lanes, Lanes], monkeypatch: pytest.MonkeyPatch, num_started: int
) -> None:
    near, far = ends
    fail_to_start(monkeypatch, num_started)
    with pytest.raises(ConnectionAbortedError, match="no thread could be started for one of its sockets: can't start"):
        near.receive(np.zeros(100, np.uint8))
    assert far.await_message() is None, "it was left open, and out of step"
    near.close()
