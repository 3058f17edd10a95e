"""Values to protobuf and back: one mapping, derived from the dataclasses' annotations.

A dataclass travels as the protobuf message of the same name, each field under its own name.

    >>> from hybridsync.messages import LeaseReply
    >>> decode(LeaseReply, encode(LeaseReply(((0, 4),), final=True)))
    LeaseReply(ranges=((0, 4),), final=True, meet=False)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from hybridsync.errors import SchemaMismatch
from hybridsync.rpc import hybridsync_pb2 as pb

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_SCALARS = (int, float, str, bool)


def encode(value: Any) -> Any:
    """Return the protobuf message of a dataclass of `messages.py`, a `Phase` or an `Epoch`."""
    return _wire(type(value)).encode(value)


def decode(kind: type[T], message: Message) -> T:
    """Return the `kind` that a message carries.

    Raises:
      SchemaMismatch: a range of units is empty, reversed or negative.
    """
    return _wire(kind).decode(message)


def parse(kind: type[M], data: bytes) -> M:
    """Return the message that was serialized as `data`.

    Raises:
      SchemaMismatch: the bytes are not such a message.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise SchemaMismatch(
            f"{len(data)} bytes are not a {kind.__name__} message ({error}); are both roles of one version?"
        ) from error


class _Wire(NamedTuple):
    """How values of one annotation travel; None stands for "as it is"."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _encode_range(units: tuple[int, int]) -> pb.Range:
    return pb.Range(start=units[0], stop=units[1])


def _decode_range(message: pb.Range) -> tuple[int, int]:
    start, stop = message.start, message.stop
    if not 0 <= start < stop:
        raise SchemaMismatch(f"a range of units needs 0 <= start < stop, got ({start}, {stop})")
    return start, stop


_PAIRS: dict[Any, _Wire] = {
    tuple[int, int]: _Wire(_encode_range, _decode_range),
    tuple[int, str]: _Wire(
        lambda pair: pb.DroppedUnit(unit=pair[0], reason=pair[1]),
        lambda message: (message.unit, message.reason),
    ),
}


@cache
def _wire(annotation: Any) -> _Wire:
    if annotation in _SCALARS:
        return _Wire(_same, _same)
    if annotation in _PAIRS:
        return _PAIRS[annotation]
    if get_origin(annotation) is tuple:
        item, rest = get_args(annotation)
        assert rest is ..., f"no protobuf message stands for {annotation}"
        return _repeated(_wire(item))
    return _record(annotation)


def _repeated(item: _Wire) -> _Wire:
    if item.encode is _same:
        return _Wire(_same, tuple)
    return _Wire(
        lambda values: [item.encode(value) for value in values], lambda wires: tuple(map(item.decode, wires))
    )


def _record(kind: type) -> _Wire:
    message = getattr(pb, kind.__name__)
    copied: list[str] = []
    mapped: list[tuple[str, _Wire]] = []
    optional: list[tuple[str, _Wire]] = []
    for name, annotation in get_type_hints(kind).items():
        if get_origin(annotation) in (Union, types.UnionType):
            inner, none = get_args(annotation)
            assert none is type(None), f"no protobuf message stands for {annotation}"
            optional.append((name, _wire(inner)))
        elif _wire(annotation) == (_same, _same):
            copied.append(name)
        else:
            mapped.append((name, _wire(annotation)))

    def encode_record(value: Any) -> Any:
        fields = {name: getattr(value, name) for name in copied}
        for name, wire in mapped:
            fields[name] = wire.encode(getattr(value, name))
        for name, wire in optional:
            inner = getattr(value, name)
            if inner is not None:
                fields[name] = wire.encode(inner)
        return message(**fields)

    def decode_record(wired: Any) -> Any:
        fields = {name: getattr(wired, name) for name in copied}
        for name, wire in mapped:
            fields[name] = wire.decode(getattr(wired, name))
        for name, wire in optional:
            fields[name] = wire.decode(getattr(wired, name)) if wired.HasField(name) else None
        return kind(**fields)

    return _Wire(encode_record, decode_record)
