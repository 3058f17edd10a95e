"""Dotted names of this package that stand in backticks, in its files and its pages, name what is there."""

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"`(hybridsync(?:\.[A-Za-z_]\w*)+)[`(]")
FILES = [*sorted((ROOT / "hybridsync").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
FOUND = sorted({name for file in FILES for name in NAME.findall(file.read_text(encoding="utf-8"))})
NO_MODULES = ("hybridsync.recipes", "hybridsync.proto")
"""A package that an installation makes of `configs/`, and a file."""


@pytest.mark.parametrize("name", [name for name in FOUND if not name.startswith(NO_MODULES)])
def test_a_dotted_name_in_backticks_is_there(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None


def test_there_are_such_names() -> None:
    assert len(FOUND) > 10
