"""Annotations as rules: does a value fit one, and which value does a text stand for.

>>> read_text("0.1,0.01", tuple[float, ...])
(0.1, 0.01)
>>> read_text("none", float | None) is None
True
>>> fits(True, int)
False
>>> read_text('{"fsdp": 2}', dict[str, int])
{'fsdp': 2}
"""

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@functools.cache
def annotations(cls: type) -> Mapping[str, Any]:
    """Return the annotation of each field of the dataclass `cls`, names resolved."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def is_frozen_dataclass(value: Any) -> bool:
    """Tell whether `value` is an instance of a frozen dataclass."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and vars(type(value))["__dataclass_params__"].frozen
    )


def describe(annotation: Any) -> str:
    """Return an annotation as a person would write it: `float | None`, `'a' or 'b'`."""
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in get_args(annotation))
    if annotation is type(None):
        return "none"
    if origin is not None:
        return str(annotation)
    return getattr(annotation, "__name__", str(annotation))


def fits(value: Any, annotation: Any) -> bool:
    """Tell whether `value` is what `annotation` says; an int is a float, a bool is no number."""
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, member) for member in members)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in members)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(members) == 2 and members[1] is Ellipsis:
            return all(fits(item, members[0]) for item in value)
        return len(value) == len(members) and all(map(fits, value, members))
    if origin is dict:
        keys, values = members
        return isinstance(value, dict) and all(fits(k, keys) and fits(v, values) for k, v in value.items())
    if annotation is None:
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or annotation)


def as_tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists, as fields of a configuration have them."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def read_text(text: str, annotation: Any) -> Any:
    """Return the value of type `annotation` that `text` stands for.

    Args:
        text: text after the `=` of an override.
        annotation: bool, int, float, str, None, Literal, a tuple or a union of those; a dict, or a tuple of tuples,
            as JSON.

    Raises:
        ValueError: the text stands for no value of that type.
    """
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _read_union(text, members)
    if origin is Literal:
        for choice in members:
            if text == str(choice):
                return choice
        raise ValueError(text)
    if origin is dict or (origin is tuple and text.startswith("[")):
        return _read_json(text, annotation)
    if origin is tuple:
        return _read_tuple(text, members)
    if annotation in (None, type(None)):
        if text.lower() in ("none", "null"):
            return None
        raise ValueError(text)
    if annotation is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(text)
    if annotation in (int, float, str):
        return annotation(text)
    raise ValueError(text)


def _read_union(text: str, members: tuple[Any, ...]) -> Any:
    # `none` first, `str` last: it reads everything.
    for member in sorted(members, key=lambda member: (member is str, member is not type(None))):
        try:
            return read_text(text, member)
        except ValueError:
            continue
    raise ValueError(text)


def _read_json(text: str, annotation: Any) -> Any:
    value = as_tuples(json.loads(text))
    if not fits(value, annotation):
        raise ValueError(text)
    return value


def _read_tuple(text: str, members: tuple[Any, ...]) -> tuple[Any, ...]:
    inside = text.strip().removeprefix("(").removesuffix(")")
    items = [item.strip() for item in inside.split(",") if item.strip()]
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(read_text(item, members[0]) for item in items)
    if len(items) != len(members):
        raise ValueError(text)
    return tuple(map(read_text, items, members))
