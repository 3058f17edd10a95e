"""Recipes: configuration and scenario files that come with the package, named `recipe:NAME` instead of by a path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from hybridsync.core.errors import ConfigError

PREFIX = "recipe:"
SCENARIOS = "scenarios/"
PACKAGE = "hybridsync.recipes"
"""The package in which an installation has the files of `configs/` (see `package-dir` in pyproject.toml)."""


def located(name: str, *, kind: Literal["recipe", "scenario"] = "recipe") -> Path:
    """Return the path of a configuration or scenario file.

    Args:
      name: a path, or `recipe:NAME` such as `recipe:digits_mlp` or `recipe:scenarios/straggler`.
      kind: whether the file is to be a configuration or a scenario.

    Raises:
      ConfigError: there is no such recipe or scenario.
    """
    if not name.startswith(PREFIX):
        return Path(name)
    wanted = name.removeprefix(PREFIX).removesuffix(".py")
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    known = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    }
    of_kind = {path: file for path, file in known.items() if path.startswith(SCENARIOS) == (kind == "scenario")}
    if wanted not in of_kind:
        listed = ", ".join(of_kind) or "none, because the package is not installed; name a file by its path"
        what = f"{wanted!r} is no {kind}" if wanted in known else f"there is no {kind} {wanted!r}"
        raise ConfigError(f"{what}; known: {listed}")
    return of_kind[wanted]
