"""A push, a unit's life and a switch cross no more files than they may.

Each function that the tool marks is where the mark says: one that is moved takes its mark along.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from tests.multiprocess.job import ROOT
from tests.tools.files_crossed import BOUNDS, MARKS, ROLES, measure, num_crossed


def functions(code: CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname
            yield from functions(inner)


@pytest.mark.parametrize("name", [*MARKS, *ROLES])
def test_a_marked_function_is_where_its_mark_says(name: str) -> None:
    file, _, function = name.partition(":")
    path = ROOT / "hybridsync" / file
    assert function in functions(compile(path.read_text(), str(path), "exec"))


@pytest.mark.soak
@pytest.mark.one_of_each_soak
def test_windows_cross_no_more_files_than_their_bounds(tmp_path: Path) -> None:
    crossed = {kind: num_crossed(windows) for kind, windows in measure(tmp_path).items()}
    assert {kind: count for kind, count in crossed.items() if count > BOUNDS[kind]} == {}, f"of {crossed}"
