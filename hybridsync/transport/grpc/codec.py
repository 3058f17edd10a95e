"""Values to protobuf and back: one mapping, derived from the dataclasses' annotations.

A dataclass travels as the protobuf message of the same name, each field under its own name. Decoded values keep to the
limits below, whatever the field means: lists and texts no longer than any role sends, texts without control characters,
finite numbers.

    >>> from hybridsync.interfaces.messages import LeaseReply
    >>> decode(LeaseReply, encode(LeaseReply(((0, 4),), final=True)))
    LeaseReply(ranges=((0, 4),), final=True, join_group=False)
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from hybridsync.core.errors import InvalidMessage, SchemaMismatch
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.interfaces.agents import MOST_LINE_CHARS, MOST_LINES, AgentReply, AgentReport
from hybridsync.interfaces.messages import MOST_CHARS, MOST_REASON_CHARS, GroupReply, RoleState, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.transport.grpc import hybridsync_pb2 as pb

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_SCALARS = (int, float, str, bool)

MOST_STATE_ENTRIES = 100_000
"""Ranges in the account of a whole state: of applied units, or of dropped ones; also its group rounds."""

_OF_STATES: set[tuple[type, str]] = {
    *((kind, name) for kind in (Phase, Snapshot, GroupReply) for name in ("applied", "dropped", "updates")),
    (RoleState, "stream"),  # all that a worker was leased in the phase
}
_LINES: set[tuple[type, str]] = {(AgentReport, "events"), (AgentReply, "orders")}
"""Lists of long texts, of which a message has few."""
_REASONS = {"reason", "failure", "non_finite", "dropped"}
"""Texts that say why; all others are names."""


def encode(value: Any) -> Any:
    """Return the protobuf message of a dataclass of `interfaces/messages.py`, a `Phase` or an `PhaseId`."""
    return _wire(type(value)).encode(value)


def decode(kind: type[T], message: Message) -> T:
    """Return the `kind` that a message carries.

    Raises:
      SchemaMismatch: a range of units is empty, reversed or negative.
      InvalidMessage: a value is longer than any role sends it, a text no plain text, or a number not finite.
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


def check_length(what: str, entries: Sized, most: int = MOST_ENTRIES) -> None:
    """Refuse a list that is longer than any role sends it, before time or memory is spent on it.

    Raises:
      InvalidMessage: the list is too long.
    """
    if len(entries) > most:
        raise InvalidMessage(f"{what} has {len(entries)} entries, above the {most} of a message; send several messages")


def _check_text(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidMessage(f"{what} has {len(text)} characters, above the {most} of a message; shorten it")
    if not text.isprintable():
        raise InvalidMessage(f"{what} is {text[:MOST_CHARS]!r}; send a text without control characters")


def _check_finite(what: str, number: float) -> None:
    if not math.isfinite(number):
        raise InvalidMessage(f"{what} is {number}; send a finite number")


class _Wire(NamedTuple):
    """Converts values of one annotation to the wire's and back."""

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


def _decode_reason(message: pb.DroppedUnit) -> tuple[int, str]:
    _check_text("reason of DroppedUnit", message.reason, MOST_REASON_CHARS)
    return message.unit, message.reason


_PAIRS: dict[Any, _Wire] = {
    tuple[int, int]: _Wire(_encode_range, _decode_range),
    tuple[int, str]: _Wire(
        lambda pair: pb.DroppedUnit(unit=pair[0], reason=pair[1]),
        _decode_reason,
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
        return _repeated(item)
    return _record(annotation)


def _repeated(annotation: Any) -> _Wire:
    item = _wire(annotation)
    if annotation is float:
        return _Wire(_same, _decode_floats)
    if annotation is str:
        return _Wire(_same, _decode_texts)
    if item.encode is _same:
        return _Wire(_same, tuple)
    return _Wire(lambda values: [item.encode(value) for value in values], lambda wires: tuple(map(item.decode, wires)))


def _decode_floats(numbers: Iterable[float]) -> tuple[float, ...]:
    found = tuple(numbers)
    if not all(map(math.isfinite, found)):
        _check_finite("a number in a list", next(number for number in found if not math.isfinite(number)))
    return found


def _decode_texts(texts: Iterable[str]) -> tuple[str, ...]:
    for text in texts:
        _check_text("a text in a list", text, MOST_CHARS)
    return tuple(texts)


def _decode_lines(lines: Iterable[str]) -> tuple[str, ...]:
    for line in lines:
        _check_text("a line in a list", line, MOST_LINE_CHARS)
    return tuple(lines)


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads these attributes of a value."""
    if len(names) == 1:
        (name,) = names
        return lambda value: (getattr(value, name),)
    return operator.attrgetter(*names) if names else lambda value: ()


def _most_entries(kind: type, name: str) -> int:
    """Return how many entries a list of a message may have."""
    if (kind, name) in _LINES:
        return MOST_LINES
    return MOST_STATE_ENTRIES if (kind, name) in _OF_STATES else MOST_ENTRIES


def _record(kind: type) -> _Wire:
    message = getattr(pb, kind.__name__)
    copied: list[str] = []
    mapped: list[tuple[str, _Wire]] = []
    optional: list[tuple[str, _Wire]] = []
    repeated = {field.name for field in message.DESCRIPTOR.fields if field.is_repeated}
    for name, annotation in get_type_hints(kind).items():
        if get_origin(annotation) in (Union, types.UnionType):
            inner, none = get_args(annotation)
            assert none is type(None), f"no protobuf message stands for {annotation}"
            optional.append((name, _wire(inner)))
        elif _wire(annotation) == (_same, _same):
            copied.append(name)
        elif (kind, name) in _LINES:
            mapped.append((name, _Wire(_same, _decode_lines)))
        else:
            mapped.append((name, _wire(annotation)))

    values_of = _values_of(copied)

    def encode_record(value: Any) -> Any:
        fields = dict(zip(copied, values_of(value), strict=True))
        for name, wire in mapped:
            fields[name] = wire.encode(getattr(value, name))
        for name, wire in optional:
            inner = getattr(value, name)
            if inner is not None:
                fields[name] = wire.encode(inner)
        return message(**fields)

    hints = get_type_hints(kind)
    texts = [
        (name, f"{name} of {kind.__name__}", MOST_REASON_CHARS if name in _REASONS else MOST_CHARS)
        for name in copied
        if hints[name] is str
    ]
    floats = [(name, f"{name} of {kind.__name__}") for name in copied if hints[name] is float]
    lengths = {name: (f"{name} of {kind.__name__}", _most_entries(kind, name)) for name in repeated}

    def decode_record(wired: Any) -> Any:
        fields = dict(zip(copied, values_of(wired), strict=True))
        for name, what, most in texts:
            if fields[name]:
                _check_text(what, fields[name], most)
        for name, what in floats:
            _check_finite(what, fields[name])
        for name, wire in mapped:
            inner = getattr(wired, name)
            if name in lengths:
                what, most = lengths[name]
                check_length(what, inner, most)
            fields[name] = wire.decode(inner)
        for name, wire in optional:
            fields[name] = wire.decode(getattr(wired, name)) if wired.HasField(name) else None
        return kind(**fields)

    return _Wire(encode_record, decode_record)
