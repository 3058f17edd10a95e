"""The counts of `house` stay within their bounds, which only fall; each row finds what it counts, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tools import house


@pytest.fixture(scope="module")
def package() -> list[house.File]:
    return house.package()


@pytest.mark.parametrize("row", [row for row in house.ROWS if row.bound is not None], ids=lambda row: row.name)
def test_a_count_is_within_its_bound(row: house.Row, package: list[house.File]) -> None:
    count = len(row.places(package))
    assert row.bound is not None
    assert count <= row.bound, f"python -m tests.tools.house --where='{row.name}' shows where; the bound may only fall"
    assert count > 0 or row.bound == 0, "the row finds nothing any more: its bound is 0 from now on"


@pytest.mark.parametrize("pages", house.PAGES, ids=lambda pages: pages.name)
def test_pages_are_within_their_bounds(pages: house.Pages) -> None:
    assert 0 < pages.count <= pages.bound, "say a thing once, and link it; the bound may only fall"


TEXT = '''
"""A module.

# no comment
"""

# A comment.
FIELD = 1
"""What documents it."""


class Port(Protocol):
    def pull(self) -> int: ...


class Call(NamedTuple):
    def idle(self) -> int:
        """Return one."""
        return 1  # no line of its own

    def _once(self, a, b, c, d, e, f, g, h) -> None:
        self.idle()
        self.idle()

    def both(self, a, b, c, d, e, f, g, *, h, **i):
        self._once(a, b, c, d, e, f, g, h)
        call(*(a, b), c=c)
        call(*a)
'''


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lines of docstrings", [2, 3, 4, 5, 9, 18]),
        ("own-line comments", [7]),
        ("lines of code", [8, 12, 13, 16, 17, 19, 21, 22, 23, 25, 26, 27, 28]),
        ("classes", [12, 16]),
        ("functions of one statement", [17]),
        ("private functions with one caller", [21]),
        ("Protocols", [12]),
        ("definitions of push_pull, pull, idle, upload_opt_state", [13, 17]),
        ("functions with more than 8 parameters", [25]),
        ("calls with *(a, b)", [27]),
        ("calls with more than 5 positional arguments", [26]),
    ],
)
def test_a_row_finds_what_it_counts(
    name: str, found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    ast.parse(TEXT)
    (row,) = [row for row in house.ROWS if row.name == name]
    assert [place.line for place in row.places([house.read(path)])] == found
