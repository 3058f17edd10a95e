"""Scenario files: Python files with `scenario() -> Scenario`, read and written."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from hybridsync.config import check_present, explained, run_file
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.cluster import Scenario

FUNCTION = "scenario"


def load_scenario(path: str | Path) -> Scenario:
    """Run the scenario file at `path` and return what happens in it.

    Raises:
      ConfigError: the file is absent, raises, lacks `scenario()`, or that returns something else.
    """
    file = Path(path)
    check_present(file, "scenario", "--scenario")
    module = run_file(file, "--scenario")
    make = getattr(module, FUNCTION, None)
    if not callable(make):
        raise ConfigError(f"{path} has no function scenario(); a scenario file defines one that returns a Scenario")
    try:
        made = make()
    except (Exception, SystemExit) as error:  # the file is its author's: whatever it raises becomes one clear message
        raise explained(file, error) from error
    if not isinstance(made, Scenario):
        raise ConfigError(f"{path}: scenario() returned {type(made).__name__}, not Scenario; return a Scenario")
    return made


def write_scenario(path: str | Path, scenario: Scenario, about: str) -> None:
    """Write a scenario file that gives `scenario` back.

    Raises:
      ConfigError: the file cannot be written.
    """
    try:
        Path(path).write_text(scenario_text(scenario, about), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the scenario {path}: {error.strerror}; name another file") from None


def scenario_text(scenario: Scenario, about: str) -> str:
    """Return a scenario file that gives `scenario` back.

    Args:
      scenario: scenario to write.
      about: docstring of the file, one line.

    >>> from hybridsync.lab.simulator.cluster import Slow
    >>> scenario_text(Scenario(slow=(Slow(3, 0.03),)), "One is slow.").splitlines()[2]
    'from hybridsync.lab.simulator.cluster import Scenario, Slow'
    """
    used: set[str] = set()
    body = _text(scenario, used, 4)
    about = about.replace("\\", "/").replace('"', "'")
    return (
        f'"""{about}"""\n\nfrom hybridsync.lab.simulator.cluster import {", ".join(sorted(used))}\n\n\n'
        f'def {FUNCTION}() -> Scenario:\n    """Return the cluster, and what happens to it."""\n    return {body}\n'
    )


def _text(value: Any, used: set[str], indent: int) -> str:
    """Return an expression of `value`, without what is as by default."""
    pad, end = " " * (indent + 4), " " * indent
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        used.add(type(value).__name__)
        changed = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        default = {field.name: _default(field) for field in dataclasses.fields(value)}
        lines = [f"{pad}{name}={_text(held, used, indent + 4)},\n" for name, held in changed if held != default[name]]
        return f"{type(value).__name__}(" + (f"\n{''.join(lines)}{end})" if lines else ")")
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        return "(\n" + "".join(f"{pad}{_text(item, used, indent + 4)},\n" for item in value) + f"{end})"
    if isinstance(value, tuple) and any(isinstance(item, tuple) for item in value):
        return "(" + "".join(f"{_text(item, used, indent)}, " for item in value).rstrip(" ") + ")"
    if isinstance(value, tuple) and math.inf in value:
        return f"({', '.join(_text(item, used, indent) for item in value)})"
    return 'float("inf")' if value == math.inf else repr(value)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
