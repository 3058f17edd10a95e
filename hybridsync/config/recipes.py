"""Recipes: the configuration files that come with the package, named `recipe:NAME` instead of by a path."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hybridsync.core.errors import ConfigError

PREFIX = "recipe:"
PACKAGE = "hybridsync.recipes"
"""The package in which an installation has the files of `configs/` (see `package-dir` in pyproject.toml)."""


def located(name: str) -> Path:
    """Return the path of a configuration or scenario file.

    Args:
      name: a path, or `recipe:NAME` such as `recipe:digits_mlp` or `recipe:scenarios/straggler`.

    Raises:
      ConfigError: there is no such recipe.
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
    if wanted not in known:
        listed = ", ".join(known) or "none, because the package is not installed; name a file by its path"
        raise ConfigError(f"there is no recipe {wanted!r}; known: {listed}")
    return known[wanted]
