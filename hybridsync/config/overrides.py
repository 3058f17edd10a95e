"""Changes from the command line: `--set optimizer.learning_rate=0.1`, checked before anything starts.

>>> from hybridsync.config.run_config import RunConfig
>>> apply_overrides(RunConfig(workload=10, unit_size=1), ["optimiser.momentum=0"])
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: unknown configuration key 'optimiser'; did you mean 'optimizer'?
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from hybridsync.config.keywords import did_you_mean
from hybridsync.config.run_config import RunConfig
from hybridsync.config.typing import annotations, describe, is_frozen_dataclass, read_text
from hybridsync.core.errors import ConfigError


def apply_overrides(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """Return `config` with values replaced; all of them take effect together.

    Args:
        config: configuration to start from; it is not changed.
        overrides: `path=value` texts, the path's names separated by dots; the later of two holds.

    Raises:
        ConfigError: a key is unknown (the message names the nearest), is a group, or its value does not fit.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"cannot read the override {override!r}; write path=value, as in optimizer.momentum=0.8")
        _place(changes, config, path.strip(), text.strip())
    return _replace(config, changes)


def _place(changes: dict[str, Any], group: Any, path: str, text: str) -> None:
    """Check `path=text` against the types on the way and put its value into the nested `changes`."""
    *parents, leaf = path.split(".")
    for depth, name in enumerate(parents):
        _check_known(group, name, ".".join(parents[:depth]))
        group = getattr(group, name)
        if not is_frozen_dataclass(group):
            here = ".".join(parents[: depth + 1])
            raise ConfigError(f"{here!r} is a value and has no key {path.split('.')[depth + 1]!r}; set {here}=...")
        changes = changes.setdefault(name, {})
    _check_known(group, leaf, ".".join(parents))
    current = getattr(group, leaf)
    if is_frozen_dataclass(current):
        keys = ", ".join(f"{path}.{field.name}" for field in dataclasses.fields(current))
        raise ConfigError(f"{path!r} is a group, got {text!r} for it; set one of {keys or 'no keys: it is empty'}")
    annotation = annotations(type(group))[leaf]
    try:
        changes[leaf] = read_text(text, annotation)
    except ValueError as error:
        raise ConfigError(
            f"{path} must be {describe(annotation)}, got {text!r} in place of {current!r}; correct the value"
        ) from error


def _check_known(group: Any, name: str, parent: str) -> None:
    known = [field.name for field in dataclasses.fields(group)]
    if name in known:
        return
    dot = f"{parent}." if parent else ""
    raise ConfigError(f"unknown configuration key {dot + name!r}; {did_you_mean(name, known, dot)}")


def _replace(group: Any, changes: dict[str, Any]) -> Any:
    values = {}
    for name, change in changes.items():
        current = getattr(group, name)
        values[name] = _replace(current, change) if is_frozen_dataclass(current) else change
    return dataclasses.replace(group, **values)
