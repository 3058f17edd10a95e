"""Messages as hypothesis draws them, by their descriptors: a new field is drawn without a line here."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.fuzz.mutation import FLOATS, INTEGERS, TEXTS

MOST_ITEMS = 4
"""Of a repeated field; the seeded generator sends the long lists."""
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_SHORT = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_INT32)


def messages(kind: Descriptor) -> st.SearchStrategy[Message]:
    """Return messages of a kind, each field of which may be missing."""
    build = GetMessageClass(kind)
    return st.fixed_dictionaries({}, optional={field.name: _values(field) for field in kind.fields}).map(
        lambda fields: build(**fields)
    )


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    one = messages(field.message_type) if field.message_type is not None else _scalars(field)
    return st.lists(one, max_size=MOST_ITEMS) if field.is_repeated else one


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return st.sampled_from(FLOATS) | st.floats()
    if field.cpp_type == field.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=700)
    if field.type == field.TYPE_STRING:
        return st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), max_size=20)
    bits = 32 if field.cpp_type in _SHORT else 64
    least, most = (0, 2**bits - 1) if field.cpp_type in _UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.sampled_from([number for number in INTEGERS if least <= number <= most]) | st.integers(least, most)
