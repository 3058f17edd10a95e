"""benchmarks/README.md has a row for each benchmark, and the page that a row names quotes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| .* \| (.*) \| .*\|$", TEXT, re.MULTILINE)


def test_each_script_and_package_is_named() -> None:
    names = {path.stem for path in FOLDER.glob("[a-z]*.py")} | {
        path.parent.name for path in FOLDER.glob("*/__init__.py")
    }
    assert names - set(re.findall(r"`(\w+)`", TEXT)) == set()


def test_each_row_is_a_benchmark_and_has_one_row() -> None:
    names = [name for name, _ in ROWS]
    assert len(names) == len(set(names)) > 30
    assert [name for name in names if not ((FOLDER / f"{name}.py").exists() or (FOLDER / name).is_dir())] == []


@pytest.mark.parametrize(("name", "page"), [row for row in ROWS if row[1].startswith("[")])
def test_the_page_of_a_row_names_the_benchmark(name: str, page: str) -> None:
    (path,) = re.findall(r"\((.*)\)", page)
    assert re.search(rf"benchmarks[./]{name}\b", (FOLDER / path).read_text(encoding="utf-8"))
