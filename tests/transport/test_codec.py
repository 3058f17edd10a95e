from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridsync.core.errors import SchemaMismatch
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces import agents, messages, reports
from hybridsync.interfaces.phase import Phase
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode, parse

MESSAGES = [
    Phase,
    *(kind for _, kind in inspect.getmembers(messages, dataclasses.is_dataclass) if kind is not Phase),
    *(kind for _, kind in inspect.getmembers(reports, dataclasses.is_dataclass)),
    *(kind for _, kind in inspect.getmembers(agents, dataclasses.is_dataclass)),
    messages.Push,
    messages.PushReply,
    messages.AppliedUnit,
]
UNSIGNED = {"nonce", "incarnation", "snapshot_id"}


def values(annotation: Any, name: str = "") -> st.SearchStrategy:
    """Return a strategy for the values that a field of a message may have."""
    if annotation is int:
        return st.integers(0, 2**64 - 1) if name in UNSIGNED else st.integers(-(2**63), 2**63 - 1)
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=20)  # printable
    if annotation == tuple[int, int]:
        return st.tuples(st.integers(0, 2**62), st.integers(1, 2**62 - 1)).map(lambda pair: (pair[0], sum(pair)))
    if isinstance(annotation, types.UnionType):
        return st.one_of(*(st.none() if kind is type(None) else values(kind) for kind in get_args(annotation)))
    if get_origin(annotation) is tuple:
        item, rest = get_args(annotation)
        if rest is ...:
            return st.lists(values(item), max_size=4).map(tuple)
        return st.tuples(values(item), values(rest))
    return st.builds(annotation, **{field: values(hint, field) for field, hint in get_type_hints(annotation).items()})


@pytest.mark.parametrize("kind", [PhaseId, *MESSAGES], ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_equal_from_the_wire(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    wire = encode(value).SerializeToString()
    assert decode(kind, parse(getattr(pb, kind.__name__), wire)) == value


@pytest.mark.parametrize("kind", [PhaseId, *MESSAGES], ids=lambda kind: kind.__name__)
def test_the_proto_has_the_fields_of_the_value_in_order(kind: type) -> None:
    assert list(getattr(pb, kind.__name__).DESCRIPTOR.fields_by_name) == list(get_type_hints(kind))


def test_a_lease_is_a_few_bytes() -> None:
    request = messages.LeaseRequest(3, 2**63, PhaseId(5, 2**64 - 1), known=1000, completed=990)
    assert len(encode(request).SerializeToString()) < 40


@pytest.mark.parametrize(("start", "stop"), [(3, 3), (5, 4), (-1, 4)])
def test_a_range_that_is_no_range_is_refused_with_both_ends(start: int, stop: int) -> None:
    wire = pb.LeaseReply(ranges=[pb.Range(start=start, stop=stop)])
    with pytest.raises(SchemaMismatch, match=rf"\({start}, {stop}\)"):
        decode(messages.LeaseReply, wire)


def test_bytes_that_are_no_message_are_refused_by_name() -> None:
    with pytest.raises(SchemaMismatch, match="Phase"):
        parse(pb.Phase, b"\xff\xff\xff")
