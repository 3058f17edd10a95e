"""Synchronisation protocols, one file each; `resolve` turns a plan's stage into one of them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from types import UnionType
from typing import Any, Union, get_origin, get_type_hints

from hybridsync.config.keywords import did_you_mean
from hybridsync.config.typing import read_text
from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.core.plan import SPEC_CHARS, Plan, Stage
from hybridsync.protocols.base import Protocol


def _found() -> Iterator[type[Protocol]]:
    """Yield each protocol that a file of this folder defines; what several of them have in common has no name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            is_own = isinstance(value, type) and value.__module__ == module.name
            if is_own and issubclass(value, Protocol) and "name" in vars(value):
                yield value


REGISTRY: dict[str, type[Protocol]] = {cls.name: cls for cls in _found()}
"""Name -> protocol."""


def resolve(stage: Stage) -> Protocol:
    """Return the protocol that `stage` names, with its arguments typed.

    Raises:
      PlanError: unknown protocol or argument, or a value of the wrong type.
    """
    cls = REGISTRY.get(stage.protocol)
    if cls is None:
        raise PlanError(f"unknown protocol {stage.protocol!r}; {did_you_mean(stage.protocol, sorted(REGISTRY))}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    values = {}
    for key, text in stage.arguments:
        if key not in fields:
            raise PlanError(f"protocol {stage.protocol!r} has no argument {key!r}; {did_you_mean(key, sorted(fields))}")
        values[key] = _typed(stage, key, text, _kind_of(cls, fields[key]))
    return cls(**values)


def parse(spec: str) -> Protocol:
    """Return the protocol of a stage written as in a plan, without its share.

    Raises:
      PlanError: as `resolve`, or the text is not one stage.
    """
    return resolve(Plan.parse(spec, SPEC_CHARS).stages[0])


def with_scaling(plan: Plan, scaling: str, num_workers: int) -> Plan:
    """Return the plan whose stages scale the rate so, where it matters and they do not say it themselves.

    Raises:
      PlanError: unknown protocol or argument.
      ConfigError: a stage's rate cannot be scaled so.
    """
    if scaling == "linear":
        return plan
    return replace(plan, stages=tuple(_scaled(stage, scaling, num_workers) for stage in plan.stages))


def _scaled(stage: Stage, scaling: str, num_workers: int) -> Stage:
    protocol = resolve(stage)
    if protocol.units_per_update(num_workers) == 1 or "scaling" in dict(stage.arguments):
        return stage
    if "scaling" in {field.name for field in dataclasses.fields(protocol)}:  # pyright: ignore[reportArgumentType]
        return replace(stage, arguments=(*stage.arguments, ("scaling", scaling)))
    if protocol.lr_factor(1, num_workers) == 1.0:
        return stage
    raise ConfigError(
        f"policy.rate={scaling} is for updates on the mean of several units, but a worker of {stage.spec!r} steps by "
        f"itself, at {num_workers} times the rate because its step is averaged away; use policy.rate=linear"
    )


def _kind_of(cls: type[Protocol], field: dataclasses.Field[Any]) -> Any:
    """Return what a field may be: its default's type, or all of a union's."""
    hint = get_type_hints(cls)[field.name]
    return hint if get_origin(hint) in (Union, UnionType) else type(field.default)


def _typed(stage: Stage, key: str, text: str, kind: Any) -> object:
    try:
        return read_text(text, kind)
    except ValueError:
        named = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise PlanError(
            f"protocol {stage.protocol!r}: {key}={text!r} is not a {named}; change it in the plan"
        ) from None
