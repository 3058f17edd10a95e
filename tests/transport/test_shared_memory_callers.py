"""Callers that say what no role says: each is refused by name, nothing has changed, and the others are served on."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.core.clock import pause
from hybridsync.core.errors import HybridSyncError, SchemaMismatch, Unauthenticated, WaitTimeout
from hybridsync.transport import link_service
from hybridsync.transport.connected_links import ConnectedParameters
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import encode
from hybridsync.transport.link_session import MOST_BYTES
from hybridsync.transport.shared_memory import service as service_module
from hybridsync.transport.shared_memory import slabs
from hybridsync.transport.shared_memory.connection import Connection
from tests.transport.slab_primary import SECS, TOKEN, SlabPrimary, ask, only, packed, tallied, until


@pytest.fixture(autouse=True)
def others_are_served_on(served: SlabPrimary) -> Iterator[None]:
    """Check at each test's end that a worker that was there before it still trains, and that nothing was applied."""
    link = served.parameters()
    link.pull(served.push(worker=1))
    yield
    link.contribution[:] = packed(5)
    assert tallied(link.push_pull(served.push(5, worker=1))[1]) == only(5)
    until(lambda: served.num_links() == 1, "the links of the refused are kept")
    assert [copy.readers for copy in served.pool._copies].count(1) == 1, "what was lent to the refused is kept"


def request(served: SlabPrimary, call: str, token: str = TOKEN, num_bytes: int = 0) -> bytes:
    push = encode(served.push(*([2] if call == "push_pull" else [])))
    return pb.LinkRequest(call=call, token=token, push=push, num_bytes=num_bytes, snapshot_id=1).SerializeToString()


REFUSED = {
    "a contribution that has no memory": ("push_pull", 256, "InvalidMessage", "no memory for a contribution yet"),
    "a contribution's memory of another size": ("contribution", 5, "SchemaMismatch", "has 5 bytes where 640"),
    "parameters of another size": ("pull", 5, "SchemaMismatch", "has 5 bytes where"),
    "a state that is not kept": ("read", 5, "StalePhase", "snapshot 1 is no longer kept"),
    "a call of another kind of server": ("stage", 256, "InvalidMessage", "does not answer 'stage' over shared memory"),
    "a call that there is not": ("x" * 999, 0, "InvalidMessage", f"does not answer '{'x' * 40}' over"),
    "no call": ("", 0, "InvalidMessage", "does not answer '' over"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_is_refused_by_name_and_its_caller_is_served_on(served: SlabPrimary, case: str) -> None:
    call, num_bytes, name, text = REFUSED[case]
    with served.raw() as caller:
        refused = ask(caller, request(served, call, num_bytes=num_bytes))
        assert refused.answers and refused.error == name and text in refused.text, refused
        assert ask(caller, request(served, "pull", num_bytes=served.parameters_bytes)).error == ""
    assert served.applied() == only()


def test_a_contribution_of_another_size_is_refused(served: SlabPrimary) -> None:
    with served.raw() as caller:
        assert not ask(caller, request(served, "contribution", num_bytes=served.contribution_bytes)).error
        refused = ask(caller, request(served, "push_pull", num_bytes=served.contribution_bytes - 1))
        assert refused.error == "SchemaMismatch" and "has 639 bytes where 640 are expected" in refused.text
    assert served.applied() == only()


def test_an_error_text_of_a_caller_s_words_has_no_control_characters(served: SlabPrimary) -> None:
    with served.raw() as caller:
        refused = ask(caller, request(served, "\x1b[31m"))
        assert refused.error == "InvalidMessage" and refused.text.isprintable()


@pytest.mark.parametrize("data", [b"\xff", b"garbage", bytes(range(256)), b"\x0a\xff\xff\xff\xff\x0f"])
@pytest.mark.parametrize("first", [True, False])
def test_bytes_that_are_no_request_are_refused(served: SlabPrimary, data: bytes, first: bool) -> None:
    with served.raw() as caller:
        if not first:
            assert not ask(caller, request(served, "idle")).error
        refused = ask(caller, data)
        assert refused.error == "SchemaMismatch" and "are not a LinkRequest message" in refused.text
        if first:
            assert caller.recv(1) == b"", "who does not say who it is is asked no further"
        else:
            assert not ask(caller, request(served, "idle")).error


@pytest.mark.parametrize("num_bytes", [MOST_BYTES + 1, 3 * MOST_BYTES])
def test_a_request_that_is_too_long_is_refused_though_its_beginning_is_one(served: SlabPrimary, num_bytes: int) -> None:
    once = pb.LinkRequest(call="idle", push=encode(served.push())).SerializeToString()
    call = pb.LinkRequest(call="idle").SerializeToString()
    beginning = once + pb.LinkRequest(token=TOKEN).SerializeToString()
    repeated, rest = divmod(MOST_BYTES + 1 - len(beginning), len(call))
    filler = b"\x20" + b"\x80" * (rest - 2) + b"\x00" if rest > 1 else b""  # num_bytes, of as many bytes as are left
    whole = beginning + filler + call * (repeated + num_bytes // len(call))
    assert pb.LinkRequest.FromString((beginning + filler + call * repeated)[: MOST_BYTES + 1]).call == "idle"
    with served.raw() as caller:
        assert not ask(caller, request(served, "idle")).error
        refused = ask(caller, whole[:num_bytes])
        assert refused.error == "InvalidMessage" and f"more than {MOST_BYTES} bytes" in refused.text
        assert not ask(caller, request(served, "idle")).error


def test_a_message_without_bytes_is_the_end_of_a_connection(served: SlabPrimary) -> None:
    with served.raw() as caller:
        assert not ask(caller, request(served, "pull", num_bytes=served.parameters_bytes)).error
        caller.send(b"")
        assert caller.recv(1) == b""


@pytest.mark.parametrize("token", ["", "another", TOKEN[:-1], TOKEN + "x", "ß"])
def test_who_does_not_show_the_run_s_token_first_is_not_answered(served: SlabPrimary, token: str) -> None:
    for call in ("pull", "contribution", "push_pull", "read", "nothing"):
        with served.raw() as caller:
            refused = ask(caller, request(served, call, token, served.parameters_bytes))
            assert refused.error == "Unauthenticated" and "does not show the token" in refused.text
            caller.settimeout(SECS)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                assert caller.send(request(served, "pull")) and caller.recv(1) == b"", "the token comes too late"
        until(lambda: served.num_links() == 1, "a stranger keeps its place")
    stranger = ConnectedParameters(Connection(served.path, token, "server 0"), served.parameters_bytes)
    with pytest.raises(Unauthenticated, match="is this the address of another run"):
        stranger.pull(served.push())
    stranger.close()


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
    caller.connect(sys.argv[1])
    caller.send(bytes.fromhex(sys.argv[2]))
    sys.stdout.buffer.write(caller.recv(1 << 16))
"""
"""Calls a socket as another user."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_refused_though_it_knows_the_token(served: SlabPrimary) -> None:
    os.chmod(served.path, 0o777)
    os.chmod(Path(served.path).parent, 0o777)  # as a folder that was opened to others
    asked = request(served, "pull", num_bytes=served.parameters_bytes)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, served.path, asked.hex()], capture_output=True, timeout=240, check=True
    )
    refused = pb.LinkReply.FromString(done.stdout)
    assert refused.error == "Unauthenticated" and refused.text.startswith("this call is another user's")


def known_in_time(served: SlabPrimary) -> socket.socket:
    """Return a connection whose caller has said who it is in time, for which a busy machine takes several."""
    for _ in range(100):
        caller = served.raw()
        with contextlib.suppress(ConnectionError):  # it was too late
            reply = ask(caller, request(served, "idle"))
            if reply.answers and not reply.error:
                return caller
        caller.close()
    raise AssertionError("nobody is known in time")


def test_who_connects_and_says_nothing_does_not_keep_its_place(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_FIRST_REQUEST_SECS", 0.05)
    with served.raw() as silent:
        assert silent.recv(1) == b""
    with known_in_time(served) as known:
        until(lambda: served.num_links() == 2, "it is not there")
        known.settimeout(0.3)
        with pytest.raises(TimeoutError):
            known.recv(1)


def test_more_links_than_there_are_places_for_are_refused_by_name(served: SlabPrimary) -> None:
    links = [served.parameters() for _ in range(4)]
    for link in links[:3]:
        link.pull(served.push())
    for _ in range(3):
        with pytest.raises(WaitTimeout, match="4 links are open here, of 4 at most"):
            links[3].pull(served.push())
    links[0].close()
    until(lambda: served.num_links() == 3, "a closed link keeps its place")
    assert tallied(links[3].pull(served.push())[1]) == only()
    for link in links:
        link.close()


def test_a_caller_gets_the_place_of_one_that_has_ended_and_whose_thread_has_not(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = service_module.Session.close

    def close_late(session: service_module.Session) -> None:
        pause(0.2)
        close(session)

    monkeypatch.setattr(service_module.Session, "close", close_late)
    monkeypatch.setattr(link_service, "_ROOM_SECS", SECS)  # a busy machine ends a thread late
    for _ in range(5):
        link = served.parameters()
        assert tallied(link.pull(served.push())[1]) == only()
        link.close()


def test_where_the_server_has_no_memory_its_caller_is_told_what_to_do(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    link = served.parameters()
    with monkeypatch.context() as patched:
        patched.setattr(slabs.os, "posix_fallocate", full)
        with pytest.raises(HybridSyncError, match=r"no shared memory for .*No space left on device.*--link=grpc"):
            link.contribution.fill(1)
    link.contribution.fill(1)  # once there is some
    link.close()


def test_a_caller_that_may_not_open_the_file_or_map_it_is_told_and_can_ask_again(
    served: SlabPrimary, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, receive, really = served.parameters(), socket.recv_fds, slabs.mmap.mmap

    def without_files(*arguments):
        data, files, flags, address = receive(*arguments)
        for file in files:
            os.close(file)
        return data, [], flags | (socket.MSG_CTRUNC if files else 0), address

    def no_space(*_):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "recv_fds", without_files)
        for _ in range(2):
            with pytest.raises(HybridSyncError, match=r"pull gets no memory of server 0 .*raise `ulimit -n`"):
                link.pull(served.push())
    with monkeypatch.context() as patched:
        patched.setattr(slabs.mmap, "mmap", no_space)
        for _ in range(2):
            with pytest.raises(HybridSyncError, match=r"no shared memory .*Cannot allocate memory"):
                link.pull(served.push())
    assert slabs.mmap.mmap is really
    assert tallied(link.pull(served.push())[1]) == only()
    link.close()


def test_a_reply_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, served: SlabPrimary) -> None:
    link = served.parameters()
    monkeypatch.setattr(pb.LinkReply, "SerializeToString", lambda self: b"\xff")
    with pytest.raises(SchemaMismatch, match="are not a LinkReply message"):
        link.pull(served.push())
    monkeypatch.undo()
    link.close()
