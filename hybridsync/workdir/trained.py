"""What a run trains, by what it computes: written into config.json when it begins, compared when it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

TRACED_BY = ("hybridsync", "jax", "jaxlib", "flax", "optax")
"""Packages that a traced program depends on: between two versions of one, digests are not compared."""
RELATIVE_TOLERANCE = 1e-5
"""Of rates, which JAX computes: their last bits depend on its version."""


@dataclass(frozen=True)
class Trained:
    """What a run trains, by what it computes; the same in every process.

    Args:
      values: the clip, what the rate counts per, and the hyperparameters besides the learning rate, as text. Functions
        among these count by what they do to the update.
      rates: the schedule at places of the run, evenly spaced from its start.
      gradient: digest of a unit's gradient as it is traced: model, loss and augmentation, at `unit_size`.
      update: digest of the optimizer's update as it is traced.
      unit_size: examples of a unit.
      frozen: digest of each leaf of the model that is not trained, by its path.
      optimizer: its values for people (`Optimizer.recorded_values`); a resume does not compare them.
    """

    values: Mapping[str, str]
    rates: list[float]
    gradient: str
    update: str
    unit_size: int
    frozen: Mapping[str, str] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)


def changes(
    saved: Mapping[str, Any], now: Trained, workload: int, *, comparable: bool, gradient_of: Callable[[int], str]
) -> Iterator[str]:
    """Yield what a run would train otherwise than before, each with both values.

    Args:
      saved: a `Trained` as JSON.
      now: what it would train now.
      workload: units of the run.
      comparable: whether both were traced by the same versions of packages.
      gradient_of: digest of the gradient now, for units of another size.
    """
    yield from _value_changes(saved["values"], now.values)
    constant = len({*saved["rates"]}) == len({*now.rates}) == 1
    if saved["unit_size"] == now.unit_size or constant:  # else the places of a schedule are elsewhere
        yield from _rate_changes(saved["rates"], now.rates, workload)
    yield from frozen_changes(saved.get("frozen", {}), now.frozen)
    if not comparable:
        return
    gradient = now.gradient if saved["unit_size"] == now.unit_size else gradient_of(saved["unit_size"])
    for what, before, after in (
        ("gradient (the model, the loss or the augmentation computes something else)", saved["gradient"], gradient),
        ("update (the optimizer's factory computes something else)", saved["update"], now.update),
    ):
        if before and after and before != after:  # a program may have none
            yield f"{what}: its digest was {before}, is {after}"


def frozen_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield which leaves that are not trained have other digests, by their paths."""
    found = [path for path in sorted(before.keys() | now.keys()) if before.get(path) != now.get(path)]
    if found:
        path, more = found[0], f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield (f"frozen leaf {path}{more}: its digest was {before.get(path, 'nothing')}, is {now.get(path, 'nothing')}")


def _value_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "nothing"), now.get(name, "nothing")
        if old != new and not _are_close(old, new):
            yield f"{name} of the optimizer: it was {old}, is {new}"


def _are_close(old: str, new: str) -> bool:
    """Return whether two values are one number, written in two ways."""
    try:
        return float(old) == float(new)
    except ValueError:
        return False


def _rate_changes(before: list[float], now: list[float], workload: int) -> Iterator[str]:
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if not math.isclose(old, new, rel_tol=RELATIVE_TOLERANCE):
            place = at * workload // len(now)
            yield f"learning rate: at unit {place:,} of {workload:,} it was {old:g}, is {new:g}"
            return
