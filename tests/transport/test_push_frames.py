"""The two small messages of a unit: what they say arrives, what they cannot say goes another way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridsync.core.errors import SchemaMismatch
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.transport import connected_links, push_frames
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode
from hybridsync.transport.named_errors import KINDS
from hybridsync.transport.push_frames import frame_of_push, frame_of_reply, is_frame, push_in, reply_in
from tests.transport.slab_primary import TOKEN, SlabPrimary, ask, only, packed, tallied

SIGNED, UNSIGNED = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
PUSHES = st.builds(
    lambda number, nonce, worker, incarnation, unit, base: Push(
        PhaseId(number, nonce), worker, incarnation, (unit,), base
    ),
    *(SIGNED, UNSIGNED, SIGNED, UNSIGNED, SIGNED, SIGNED),
)
PUSH = Push(PhaseId(3, 7), 1, 2, (40,), 9)


@given(PUSHES, UNSIGNED)
def test_a_push_arrives_as_it_would_by_protobuf(push: Push, num_bytes: int) -> None:
    frame = frame_of_push(push, num_bytes)
    assert frame is not None and push_in(frame) == (push, num_bytes)
    assert decode(Push, encode(push)) == push


@given(SIGNED, SIGNED)
def test_a_reply_arrives(sequence: int, slab: int) -> None:
    frame = frame_of_reply(PushReply(sequence), slab)
    assert frame is not None and reply_in(frame) == (PushReply(sequence), slab)


@pytest.mark.parametrize(
    "more",
    [
        {"units": ()},
        {"units": (1, 2)},
        {"non_finite": "leaf w"},
        {"restart_count": 1},
        {"newest": 1},
        {"push_only": True},
    ],
)
def test_a_push_that_says_more_has_no_place_in_a_frame(more: dict[str, Any]) -> None:
    assert frame_of_push(PUSH._replace(**more), 8) is None


@pytest.mark.parametrize(
    "more", [{"duplicate": True}, {"dropped": "late"}, {"units": 1}, {"own": 1}, {"fastest": 1}, {"settled": (4,)}]
)
def test_a_reply_that_says_more_has_no_place_in_a_frame(more: dict[str, Any]) -> None:
    assert frame_of_reply(PushReply(5)._replace(**more), 1) is None


def test_every_field_of_a_push_and_of_a_reply_is_known_to_the_frames() -> None:
    """A new field would silently be left out."""
    assert Push._fields[5:] == ("non_finite", "restart_count", "newest", "push_only")
    assert PushReply._fields[1:] == ("duplicate", "dropped", "units", "own", "fastest", "settled")
    assert tuple(Push._field_defaults.values()) == push_frames._NOTHING_MORE
    assert tuple(PushReply._field_defaults.values()) == push_frames._ONLY_A_SEQUENCE


def test_no_protobuf_message_begins_as_a_frame_does() -> None:
    frame = frame_of_push(PUSH, 8)
    assert frame is not None and is_frame(frame)
    for field in pb.LinkRequest.DESCRIPTOR.fields, pb.LinkReply.DESCRIPTOR.fields:
        assert all((each.number << 3) > frame[0] for each in field)


@pytest.mark.parametrize("read", [push_in, reply_in])
@pytest.mark.parametrize("num_bytes", [1, 16, 18, 56, 58, 4096])
def test_a_frame_of_another_length_is_refused(read: Any, num_bytes: int) -> None:
    with pytest.raises(SchemaMismatch, match=f"{num_bytes} bytes are not the frame of a"):
        read(b"\x07" * num_bytes)


# --- at a role ---


def test_a_unit_is_pushed_without_a_protobuf(served: SlabPrimary, monkeypatch: pytest.MonkeyPatch) -> None:
    link = served.parameters()
    link.pull(served.push())
    link.contribution[:] = packed(1)
    link.push_pull(served.push(1))  # whose reply brings the file of its memory

    def encoded(value: Any) -> Any:
        raise AssertionError(f"{value} was encoded")

    monkeypatch.setattr(connected_links, "encode", encoded)
    link.contribution[:] = packed(2)
    reply, parameters = link.push_pull(served.push(2))
    assert reply == PushReply(2) and tallied(parameters) == only(1, 2)


def test_a_push_again_says_what_became_of_the_first(served: SlabPrimary) -> None:
    link = served.parameters()
    link.contribution[:] = packed(1)
    assert link.push_pull(served.push(1))[0] == PushReply(1)
    reply, parameters = link.push_pull(served.push(1))
    assert reply == PushReply(1, duplicate=True, settled=(1,)) and tallied(parameters) == only(1)


def test_a_frame_is_no_first_message(served: SlabPrimary) -> None:
    """It shows no token."""
    frame = frame_of_push(served.push(1), served.contribution_bytes)
    assert frame is not None
    with served.raw() as caller:
        assert ask(caller, frame).error == "SchemaMismatch"
        assert caller.recv(1) == b""
    assert served.applied() == only()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(push=PUSHES, num_bytes=UNSIGNED, keeps=st.booleans(), damage=st.integers(0, 2**16))
def test_hostile_frames_are_refused_by_name(
    served: SlabPrimary, push: Push, num_bytes: int, keeps: bool, damage: int
) -> None:
    if keeps:  # all that lets it come further in
        no_unit = push.units[0] | 1 << 40
        push = push._replace(phase_id=served.phase.id, incarnation=1, units=(no_unit,))
        num_bytes = served.contribution_bytes
    frame = bytearray(frame_of_push(push, num_bytes) or b"")
    if damage < 2**15:
        del frame[1 + damage % len(frame) :]
    with served.raw() as caller:
        first = pb.LinkRequest(call="idle", token=TOKEN, push=encode(served.push()))
        assert not ask(caller, first.SerializeToString()).error
        memory = pb.LinkRequest(call="contribution", num_bytes=served.contribution_bytes)
        assert not ask(caller, memory.SerializeToString()).error
        refused = ask(caller, bytes(frame))
        assert refused.answers and refused.error and refused.error in KINDS
        assert not ask(caller, pb.LinkRequest(call="idle", push=encode(served.push())).SerializeToString()).error
    assert served.applied() == only()


def test_a_frame_needs_memory_for_its_contribution(served: SlabPrimary) -> None:
    frame = frame_of_push(served.push(1), served.contribution_bytes)
    assert frame is not None
    with served.raw() as caller:
        first = pb.LinkRequest(call="idle", token=TOKEN, push=encode(served.push()))
        assert not ask(caller, first.SerializeToString()).error
        refused = ask(caller, frame)
        assert refused.error == "InvalidMessage" and "no memory for a contribution yet" in refused.text
