"""Recipes: configuration and scenario files that come with the package, named `recipe:NAME` instead of by a path."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hybridsync.core.errors import ConfigError
from hybridsync.core.paths import local_path

PREFIX = "recipe:"
SCENARIOS = "scenarios/"
PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "recipes", PACKAGE.parent / "configs")
"""Where an installation has them (see setup.py), and where a checkout has them."""


def located(name: str, *, kind: Literal["recipe", "scenario"] = "recipe") -> Path:
    """Return the path of a configuration or scenario file.

    Args:
      name: a path, or `recipe:NAME` such as `recipe:digits_mlp` or `recipe:scenarios/straggler`.
      kind: whether the file is to be a configuration or a scenario.

    Raises:
      ConfigError: there is no such recipe or scenario.
    """
    if not name.startswith(PREFIX):
        return local_path(name)
    wanted = name.removeprefix(PREFIX).removesuffix(".py")
    folder = next(filter(Path.is_dir, FOLDERS), FOLDERS[0])
    known = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    }
    of_kind = {path: file for path, file in known.items() if path.startswith(SCENARIOS) == (kind == "scenario")}
    if wanted not in of_kind:
        listed = ", ".join(of_kind) or "none; name a file by its path"
        what = f"{wanted!r} is no {kind}" if wanted in known else f"there is no {kind} {wanted!r}"
        raise ConfigError(f"{what}; known: {listed}")
    return of_kind[wanted]
