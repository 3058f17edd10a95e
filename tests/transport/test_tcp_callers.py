"""Callers that prove nothing, or say what no role says: each is refused, nothing has changed, others are served on."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from hybridsync.core.clock import pause
from hybridsync.core.errors import AddressError, InvalidMessage, RoleLost, Unauthenticated, WaitTimeout
from hybridsync.security.keyring import Keyring
from hybridsync.transport import link_service
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.bulk_link import BulkLinkClient
from hybridsync.transport.link_session import MOST_BYTES
from hybridsync.transport.tcp import lanes as lanes_module
from hybridsync.transport.tcp import service as service_module
from hybridsync.transport.tcp.handshake import (
    ANSWER_BYTES,
    CALLER,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ROLE,
    HandshakeKey,
    Hello,
)
from hybridsync.transport.tcp.lanes import Lanes
from hybridsync.transport.tcp.service import TcpService
from tests.transport.slab_primary import only, packed, tallied, until
from tests.transport.tcp_primary import SECS, TcpPrimary, answer, fail_to_start, is_ended


@pytest.fixture
def served() -> Iterator[TcpPrimary]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        primary = TcpPrimary(Path(folder), most=4)
        yield primary
        primary.close()


@pytest.fixture(autouse=True)
def others_are_served_on(served: TcpPrimary) -> Iterator[None]:
    """Check at each test's end that a worker that was there before it still trains, and that nothing was applied."""
    link = served.parameters()
    link.pull(served.push(worker=1))
    yield
    link.contribution[:] = packed(5)
    assert tallied(link.push_pull(served.push(5, worker=1))[1]) == only(5)
    until(lambda: served.num_links() == 1, "the links of the refused are kept")
    let_time_pass(served)
    until(lambda: not served.service._unproven and not served.service._expected, "the sockets of strangers are kept")
    buffers = served.service.contributions
    assert len(buffers._free) + buffers._spare == 2, "a buffer of the refused is kept"
    until(lambda: all(not copy.readers for copy in served.pool._copies), "what was lent to the refused is kept")


def let_time_pass(served: TcpPrimary) -> None:
    """End the time of all that have proven nothing so far."""
    with served.service._lock:
        for each in [*served.service._expected.values(), *served.service._unproven.copy().values()]:
            each.until = 0.0
    served.stranger().close()  # the accepting thread looks up


# --- who proves nothing ---


@pytest.mark.parametrize(
    "said", [b"x" * HELLO_BYTES, Hello(b"i" * 16, 0, b"n" * 32).pack(), b"GET / HTTP/1.1\r\n" * 9, b"\x00" * 999]
)
def test_who_was_given_no_place_is_sent_away_without_a_word(served: TcpPrimary, said: bytes) -> None:
    with served.stranger() as stranger:
        stranger.sendall(said)
        assert is_ended(stranger)


@pytest.mark.parametrize("said", [b"", b"H", Hello(b"i" * 16, 0, b"n" * 32).pack()[:-1]])
def test_who_says_nothing_or_half_is_sent_away_in_time(served: TcpPrimary, said: bytes) -> None:
    with served.stranger() as stranger:
        stranger.sendall(said)
        until(lambda: bool(served.service._unproven), "it was not accepted")
        let_time_pass(served)
        assert is_ended(stranger)


def greeted(served: TcpPrimary, lane: int = 0, num_sockets: int = 1) -> tuple[socket.socket, HandshakeKey, Hello]:
    place = served.place(num_sockets)
    hello = Hello(place.connection_id, lane, secrets.token_bytes(NONCE_BYTES))
    stranger = served.stranger()
    stranger.sendall(hello.pack())
    return stranger, HandshakeKey(place.connection_id, place.key), hello


@pytest.mark.parametrize("wrong", ["the role's own", "another key's", "of another nonce", "of another socket", "zeros"])
def test_a_wrong_proof_is_the_end(served: TcpPrimary, wrong: str) -> None:
    stranger, key, hello = greeted(served)
    said = stranger.recv(ANSWER_BYTES, socket.MSG_WAITALL)
    nonce, proof = said[:NONCE_BYTES], said[NONCE_BYTES:]
    assert key.is_proof(ROLE, hello, nonce, proof)
    shown = {
        "the role's own": proof,
        "another key's": replace(key, key=b"k" * 32).proof(CALLER, hello, nonce),
        "of another nonce": key.proof(CALLER, hello, b"n" * 32),
        "of another socket": key.proof(CALLER, hello._replace(lane=1), nonce),
        "zeros": bytes(PROOF_BYTES),
    }
    stranger.sendall(shown[wrong] + b"a request behind it")
    assert is_ended(stranger)
    assert served.num_links() == 1


def test_who_was_greeted_and_then_says_nothing_is_sent_away(served: TcpPrimary) -> None:
    stranger, *_ = greeted(served)
    assert len(stranger.recv(ANSWER_BYTES, socket.MSG_WAITALL)) == ANSWER_BYTES
    let_time_pass(served)
    assert is_ended(stranger)


def test_a_place_is_for_once(served: TcpPrimary) -> None:
    place = served.place(1)
    first = served.proven(place, 0)
    until(lambda: served.num_links() == 2, "it was not taken")
    again = served.stranger()
    again.sendall(Hello(place.connection_id, 0, b"n" * 32).pack())
    assert is_ended(again)
    first.close()


def test_a_socket_of_a_place_is_for_once_and_for_as_many_as_were_asked_for(served: TcpPrimary) -> None:
    place = served.place(2)
    first = served.proven(place, 0)
    for lane in (0, 2, 255):
        with served.stranger() as other:
            other.sendall(Hello(place.connection_id, lane, b"n" * 32).pack())
            assert is_ended(other)
    assert served.num_links() == 1, "it has one socket of two"
    until(lambda: bool(served.service._expected[place.connection_id].proven), "it is not proven")
    let_time_pass(served)
    assert is_ended(first), "the second one did not come in time"


def test_a_place_is_for_a_while(served: TcpPrimary) -> None:
    place = served.place(1)
    served.service._expected[place.connection_id].until = 0.0
    with served.stranger() as late:
        late.sendall(Hello(place.connection_id, 0, b"n" * 32).pack())
        assert is_ended(late)


def test_floods_of_silent_sockets_take_neither_places_nor_memory(
    served: TcpPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MOST_UNPROVEN", 6)
    flood = [served.stranger() for _ in range(20)]
    link = served.parameters()
    assert tallied(link.pull(served.push())[1]) == only()
    assert len(served.service._unproven) <= 6
    link.close()
    for each in flood:
        each.close()


def test_the_token_is_asked_for_before_a_place_is_given(served: TcpPrimary) -> None:
    for token in ("", "another"):
        stranger = BulkLinkClient(served.address, "server 0", Keyring(token))
        with pytest.raises(Unauthenticated, match="is this the address of another run"):
            stranger.open(1)
        stranger.close()
    assert not served.service._expected


@pytest.mark.parametrize("num_sockets", [0, -1, 9])
def test_a_connection_of_no_sockets_or_of_many_is_refused(served: TcpPrimary, num_sockets: int) -> None:
    with pytest.raises(InvalidMessage, match=rf"a connection of {num_sockets} sockets was asked for; ask for 1 to 8"):
        served.place(num_sockets)


def test_more_links_than_there_are_places_for_are_refused_by_name(served: TcpPrimary) -> None:
    links = [served.parameters() for _ in range(4)]
    for link in links[:3]:
        link.pull(served.push())
    for _ in range(3):
        with pytest.raises(WaitTimeout, match="4 links are open here and 0 are expected, of 4 at most"):
            links[3].pull(served.push())
    links[0].close()
    until(lambda: served.num_links() == 3, "a closed link keeps its place")
    served.place()
    with pytest.raises(WaitTimeout, match="3 links are open here and 1 are expected, of 4 at most"):
        served.place()
    let_time_pass(served)
    assert tallied(links[3].pull(served.push())[1]) == only()
    for link in links:
        link.close()


def test_a_caller_gets_the_place_of_one_that_has_ended_and_whose_thread_has_not(
    served: TcpPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = service_module.TcpSession.close

    def close_late(session: service_module.TcpSession) -> None:
        pause(0.2)
        close(session)

    monkeypatch.setattr(service_module.TcpSession, "close", close_late)
    monkeypatch.setattr(link_service, "_ROOM_SECS", SECS)  # a busy machine ends a thread late
    for _ in range(5):
        link = served.parameters()
        assert tallied(link.pull(served.push())[1]) == only()
        link.close()


def test_a_socket_that_the_kernel_cannot_watch_is_sent_away_and_others_are_accepted(
    served: TcpPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # of the watches that a user may have

    with monkeypatch.context() as patch:
        patch.setattr(served.service._selector, "register", full)
        assert is_ended(served.stranger())
    link = served.parameters()
    assert tallied(link.pull(served.push())[1]) == only()
    link.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_role_whose_accepting_thread_has_failed_gives_no_places(
    served: TcpPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        other = TcpPrimary(Path(folder))

        def fails() -> None:
            raise AssertionError("a fault of ours")

        monkeypatch.setattr(other.service, "_send_late_away", fails)
        other.stranger()
        other.service._thread.join(60)
        with pytest.raises(RoleLost, match=r"takes no more connections: the thread that accepts them has failed"):
            other.place()
        other.close()


def test_a_place_does_not_print_its_key(served: TcpPrimary) -> None:
    place = served.place()
    assert repr(place.connection_id) in repr(place) and repr(place.key) not in repr(place)


# --- who is known, and says something else ---


REFUSED = {
    "parameters of another size": ("pull", 5, "SchemaMismatch", "has 5 bytes where"),
    "a state that is not kept": ("read", 5, "StalePhase", "snapshot 0 is no longer kept"),
    "a call of another kind of server": ("pull_at", 256, "InvalidMessage", "does not answer 'pull_at' over TCP"),
    "a call of shared memory": ("contribution", 640, "InvalidMessage", "does not answer 'contribution' over TCP"),
    "a call that there is not": ("x" * 999, 0, "InvalidMessage", f"does not answer '{'x' * 40}' over TCP"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_is_refused_by_name_and_its_caller_is_served_on(served: TcpPrimary, case: str) -> None:
    call, num_bytes, name, text = REFUSED[case]
    caller = served.raw()
    caller.send(served.request(call, num_bytes=num_bytes))
    refused = answer(caller)
    assert refused.answers and refused.error == name and text in refused.text, refused
    caller.send(served.request("idle"))
    assert answer(caller).error == ""
    caller.close()


@pytest.mark.parametrize("num_bytes", [5, 639, 641, 10 * lanes_module.FRAME_BYTES])
def test_a_contribution_of_another_size_is_refused_and_what_is_larger_ends_the_connection(
    served: TcpPrimary, num_bytes: int
) -> None:
    caller = served.raw()
    caller.send(served.request("push_pull", 2, num_bytes=num_bytes), np.zeros(num_bytes, np.uint8))
    refused = answer(caller)
    assert refused.error == "SchemaMismatch" and f"has {num_bytes} bytes where 640 are expected" in refused.text
    if num_bytes > 640:
        assert caller.await_message() is None
    else:
        caller.send(served.request("idle"))
        assert answer(caller).error == ""
    caller.close()


@pytest.mark.parametrize("num_bytes", [1 << 40, (1 << 64) - 1])
def test_a_contribution_of_an_absurd_size_is_refused_before_it_comes(served: TcpPrimary, num_bytes: int) -> None:
    caller = served.raw()
    caller.send(served.request("push_pull", 2, num_bytes=num_bytes))
    assert answer(caller).error == "SchemaMismatch" and caller.await_message() is None
    caller.close()


@pytest.mark.parametrize("data", [b"\xff", b"garbage", bytes(range(256)), b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_request_are_refused_and_end_the_connection(served: TcpPrimary, data: bytes) -> None:
    caller = served.raw()
    caller.send(data)
    refused = answer(caller)
    assert refused.error == "SchemaMismatch" and "are not a LinkRequest message" in refused.text
    assert caller.await_message() is None
    caller.close()


def test_a_request_that_is_too_long_is_refused(served: TcpPrimary) -> None:
    caller = served.raw()
    caller.send(bytes(MOST_BYTES + 1))
    refused = answer(caller)
    assert refused.error == "InvalidMessage" and f"more than {MOST_BYTES} bytes" in refused.text
    caller.close()


def test_an_empty_request_is_one_without_a_call(served: TcpPrimary) -> None:
    caller = served.raw()
    caller.send(b"")
    assert "does not answer ''" in answer(caller).text
    caller.close()


# --- damage on the way ---


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "FRAME_BYTES", 60)
    monkeypatch.setattr(lanes_module, "SMALL_BYTES", 1)


def frames(buffer: np.ndarray) -> list[bytearray]:
    """Return the frames of a buffer as they go over the sockets."""
    size, found = lanes_module.FRAME_BYTES, []
    for index in range(-(-buffer.nbytes // size)):
        part = buffer[index * size : (index + 1) * size].tobytes()
        found.append(bytearray(struct.pack("<IIQ", index, len(part), xxhash.xxh3_64_intdigest(part)) + part))
    return found


def send_frames(caller: Lanes, frames: list[bytearray]) -> None:
    for index, frame in enumerate(frames):
        caller._sockets[index % len(caller._sockets)].sendall(frame)


def test_frames_by_hand_are_a_push(served: TcpPrimary, split: None) -> None:
    caller = served.raw()
    caller.send(served.request("push_pull", 5, num_bytes=640))
    send_frames(caller, frames(packed(5)))
    assert not answer(caller).error and served.applied() == only(5)
    caller.close()


DAMAGE = {
    "a bit of a frame": (3, 40, "frame 3 of a buffer arrived damaged: its digest is"),
    "a bit of the last frame": (10, 17, "frame 10 of a buffer arrived damaged"),
    "a digest": (2, 9, "frame 2 of a buffer arrived damaged"),
    "an index": (4, 0, "frame 5 of 60 bytes came where frame 4 of 60 is due"),
    "a size": (4, 4, "frame 4 of 61 bytes came where frame 4 of 60 is due"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_frame_is_refused_by_name_and_nothing_is_applied(served: TcpPrimary, split: None, case: str) -> None:
    index, byte, text = DAMAGE[case]
    caller, sent = served.raw(), frames(packed(2))
    sent[index][byte] ^= 1
    caller.send(served.request("push_pull", 2, num_bytes=640))
    with contextlib.suppress(OSError):  # it may have heard enough
        send_frames(caller, sent)
    refused = answer(caller)
    assert refused.error == "DamagedState" and refused.text.startswith(text), refused
    assert caller.await_message() is None
    assert served.applied() == only()
    caller.close()


@pytest.mark.parametrize("after", [0, 1])
def test_an_end_that_cannot_start_a_thread_ends_the_connection_and_the_call_is_made_again(
    served: TcpPrimary, split: None, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    fail_to_start(monkeypatch, after)  # the role's that sends, or the caller's that receives
    link = served.parameters()
    assert tallied(link.pull(served.push())[1]) == only()
    link.close()


def said(data: bytes) -> bytearray:
    return bytearray(struct.pack("<IQ", len(data), xxhash.xxh3_64_intdigest(data)) + data)


@pytest.mark.parametrize("byte", [5, 12, 20])
def test_a_damaged_request_is_refused_by_name(served: TcpPrimary, byte: int) -> None:
    damaged = said(served.request("idle"))
    damaged[byte] ^= 2
    caller = served.raw()
    caller._sockets[0].sendall(damaged)
    refused = answer(caller)
    assert refused.error == "DamagedState" and "a message of" in refused.text
    assert caller.await_message() is None
    caller.close()


@pytest.mark.parametrize("half", [1, 11, 12, 20])
def test_a_caller_that_ends_in_the_middle_of_a_request_is_let_go(served: TcpPrimary, half: int) -> None:
    caller = served.raw()
    caller._sockets[0].sendall(said(served.request("idle"))[:half])
    caller.close()
    until(lambda: served.num_links() == 1, "its link is kept")


@pytest.mark.parametrize("num_sent", [0, 1, 4, 10])
@pytest.mark.parametrize("half", [0, 7, 30])
def test_a_caller_that_ends_in_the_middle_of_its_push_leaves_nothing(
    served: TcpPrimary, split: None, num_sent: int, half: int
) -> None:
    caller, sent = served.raw(), frames(packed(2))
    caller.send(served.request("push_pull", 2, num_bytes=640))
    send_frames(caller, [*sent[:num_sent], sent[num_sent][:half]])
    caller.close()
    until(lambda: served.num_links() == 1, "its link is kept")
    assert served.applied() == only()


def test_one_socket_that_ends_ends_the_connection(served: TcpPrimary, split: None) -> None:
    caller, sent = served.raw(), frames(packed(2))
    caller.send(served.request("push_pull", 2, num_bytes=640))
    send_frames(caller, sent[:3])
    caller._sockets[1].shutdown(socket.SHUT_RDWR)
    assert caller.await_message() is None
    caller.close()


# --- where buffers go ---


@pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0", "::", "2001:4860:4860::8888", "100.64.0.1"])
def test_a_public_address_is_refused_by_name(served: TcpPrimary, host: str) -> None:
    with pytest.raises(AddressError, match=rf"no buffers go to '{host}': {host} is no private address"):
        TcpService(served.services, host, 4)
    public = served.connection()
    public._address = f"[{host}]:1" if ":" in host else f"{host}:1"
    with pytest.raises(AddressError, match="is no private address, and they are not encrypted"):
        public.call(pb.LinkRequest(call="idle"))
