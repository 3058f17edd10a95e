"""Checks of a configuration's fields: their types, their ranges, and whether config.json can hold them.

>>> require(0 >= 1, "workers", "at least 1", 0, "give the run a worker")
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: workers must be at least 1, got 0; give the run a worker
"""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from hybridsync.config.typing import annotations, describe, fits
from hybridsync.core.errors import ConfigError


def check_types(config: Any, prefix: str) -> None:
    """Check that each field of a group has the type that it declares, and that numbers are finite.

    Args:
        config: an instance of a dataclass.
        prefix: stands before the fields' names in errors, for example "policy.".

    Raises:
        ConfigError: a field has not; the message names it.
    """
    for name, annotation in annotations(type(config)).items():
        value = getattr(config, name)
        if not fits(value, annotation):
            raise ConfigError(
                f"{prefix}{name} must be {describe(annotation)}, got {value!r} ({type(value).__name__}); "
                "change its type"
            )
        if not _is_finite(value):
            raise ConfigError(f"{prefix}{name} must be finite, got {value!r}; give it a number")


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def require(holds: bool, name: str, rule: str, value: Any, advice: str) -> None:
    """Check that a field keeps its rule.

    Args:
        holds: whether the value keeps the rule.
        name: name of the field.
        rule: text of the rule.
        value: value of the field.
        advice: advice for the user.

    Raises:
        ConfigError: the value breaks the rule.
    """
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {value!r}; {advice}")


def check_json(name: str, value: Any) -> None:
    """Check that config.json can hold a value of the file's own groups.

    Raises:
        ConfigError: it cannot; the message names the field.
    """
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            check_json(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for item in value:
            check_json(name, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_scalar(f"{name} has the key", key)
            check_json(name, item)
    else:
        _check_scalar(f"{name} is", value)


def _check_scalar(what: str, value: Any) -> None:
    """Check that JSON knows a value that has no parts; keys can be nothing else."""
    if not isinstance(value, str | int | float | None):
        raise ConfigError(
            f"{what} {value!r} ({type(value).__name__}), which config.json cannot hold; give its name as a text, "
            "and make it of that in task(config)"
        )
