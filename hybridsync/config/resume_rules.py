"""A configuration as JSON and back, and what of it a resume may change.

>>> from hybridsync.config.run_config import RunConfig
>>> saved = to_json(RunConfig(workload=10, unit_size=1))
>>> check_resumable(saved, RunConfig(workload=10, unit_size=1, workers=8))
>>> check_resumable(saved, RunConfig(workload=10, unit_size=1, seed=7))
Traceback (most recent call last):
...
hybridsync.core.errors.ResumeError: this run cannot go on with another seed: it was started with 0, the
configuration says 7; use the earlier value or a fresh workdir
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hybridsync.config.run_config import OptimizerConfig, RunConfig
from hybridsync.config.typing import as_tuples
from hybridsync.core.errors import ConfigError, ResumeError
from hybridsync.core.plan import Plan

FIXED = ("workload", "seed", "model", "optimizer", "data")
"""Fields that identify a run; all others may change when it resumes."""

ACCEPTABLE = ("model", "optimizer")
"""Those of them that a run may change where its user accepts it."""
ACCEPT = "pass --accept_changes (Trainer(accept_changes=True)) to train on with the new one"

MORE = "to train on from its state, name it with --init_from (Trainer(init_from=...)) and take a fresh workdir"

ABSENT = "nothing"


def to_json(config: RunConfig | OptimizerConfig) -> dict[str, Any]:
    """Return the configuration, or its optimizer's, as JSON values: what a reader of config.json sees."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def restore_values(values: Any, saved: Mapping[str, Any], path: str = "") -> Any:
    """Return the configuration `values`, a frozen dataclass, with what its JSON form says.

    >>> from hybridsync.config import RunConfig
    >>> restore_values(RunConfig(workload=10, unit_size=1), {"seed": 7, "optimizer": {"momentum": 0.5}}).seed
    7

    Raises:
        ConfigError: the file has no such key, or the value does not fit it.
    """
    known = {field.name for field in dataclasses.fields(values)}
    changes: dict[str, Any] = {}
    for key, value in saved.items():
        if key not in known:
            raise ConfigError(
                f"the run was configured with {path}{key}={value!r}, which the configuration file does not know; "
                "name the file as it was with --config"
            )
        current = getattr(values, key)
        nested = dataclasses.is_dataclass(current) and not isinstance(current, type) and isinstance(value, dict)
        changes[key] = restore_values(current, value, f"{path}{key}.") if nested else as_tuples(value)
    return dataclasses.replace(values, **changes)


def check_resumable(
    saved: Mapping[str, Any], config: RunConfig, *, convert_units: bool = False, accept_changes: bool = False
) -> None:
    """Check that `config` continues the run that `saved` describes.

    Workers, servers, plan, checkpoints, telemetry, emulation and drain_secs may differ; where the momentum is handled
    at a switch, what that rests on may not.

    Args:
        saved: `to_json` of the configuration that the workdir's run had.
        config: the configuration to resume with.
        convert_units: whether a run may go on with units of another size.
        accept_changes: whether it may go on with another model or optimizer.

    Raises:
        ResumeError: something that makes the run what it is differs; the message holds both values of each.
    """
    wanted = to_json(config)
    differences = [
        f"{path}: it was started with {before}, the configuration says {now}"
        for name in FIXED
        if name not in ACCEPTABLE or not accept_changes
        for path, before, now in leaf_differences(name, saved.get(name, ABSENT), wanted[name])
    ]
    plan = Plan.parse(config.plan)
    before, now = _momentum(saved), _momentum(wanted)
    if plan.has_passes:  # the saved plan has units in their place; compared again once the data are known
        before["plan"] = now["plan"]
    differences += [
        f"{path} while its momentum is handled by it: it was started with {before[path]}, the configuration says "
        f"{now[path]}"
        for path in before
        if {before["policy.momentum"], now["policy.momentum"]} != {"keep"} and before[path] != now[path]
    ]
    if differences:
        acceptable = all(difference.startswith(ACCEPTABLE) for difference in differences)
        longer = f"; {MORE}" if config.workload > saved.get("workload", math.inf) else ""
        raise ResumeError(
            f"this run cannot go on with another {'; another '.join(differences)}; "
            f"use the earlier value or a fresh workdir{f', or {ACCEPT}' if acceptable else ''}{longer}"
        )
    unit_size = saved.get("unit_size", ABSENT)
    if unit_size != config.unit_size and not convert_units:
        raise ResumeError(
            f"this run cannot go on with another unit_size: it was started with {unit_size}, "
            f"the configuration says {config.unit_size}; use the earlier value, or pass --convert_units"
        )
    if unit_size != config.unit_size:
        for each in (Plan.parse(saved["plan"]), plan):
            if any(stage.measure != "%" for stage in each.stages):
                raise ResumeError(
                    f"--convert_units converts shares of the workload, and the plan {str(each)!r} has lengths in "
                    f"units; keep unit_size={unit_size}, or train with shares from the start"
                )


def _momentum(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the handling of the momentum is a function of, for a replay of the whole run."""
    policy = {"momentum": "keep", "ramp": ABSENT, **config.get("policy", {})}
    rest = {name: config.get(name, ABSENT) for name in ("plan", "workers")}
    return {"policy.momentum": policy["momentum"], "policy.ramp": policy["ramp"], **rest}


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted keys.

    >>> flattened({"plan": "asp", "optimizer": {"name": "sgd"}})
    {'plan': 'asp', 'optimizer.name': 'sgd'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str | int | float | None) else str(value)
    return found


def leaf_differences(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of every leaf in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from leaf_differences(f"{path}.{key}", before.get(key, ABSENT), now.get(key, ABSENT))
    elif before != now:
        yield path, before, now
