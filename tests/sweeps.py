"""Wide sweeps: a few representative values in every suite, the rest with the soak tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def swept(values: Sequence[Any], kept: int = 1) -> list[Any]:
    """Return parameters: the first `kept` run in every suite, the others in `make soak`.

    The first of the others also is the one case of its soak that `make integration` runs.
    """
    soak, one = pytest.mark.soak, pytest.mark.one_of_each_soak
    rest = [pytest.param(value, marks=soak if index else [soak, one]) for index, value in enumerate(values[kept:])]
    return [*values[:kept], *rest]
