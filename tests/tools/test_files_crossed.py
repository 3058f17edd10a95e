"""Each function that the tool marks is where the mark says: one that is moved takes its mark along."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

import pytest

from tests.multiprocess.job import ROOT
from tests.tools.files_crossed import MARKS, ROLES


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
