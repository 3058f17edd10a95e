"""Wide sweeps: a few representative values in every suite, the rest with the soak tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def swept(values: Sequence[Any], kept: int = 1) -> list[Any]:
    """Return parameters: the first `kept` run in every suite, the others in `make soak`.

    Where none is kept, `make integration` runs the first one, so that the soak does not break unseen.
    """
    soak, one = pytest.mark.soak, pytest.mark.one_of_each_soak
    marks = [[soak] if index or kept else [soak, one] for index, _ in enumerate(values[kept:])]
    return [*values[:kept], *(pytest.param(value, marks=of) for value, of in zip(values[kept:], marks, strict=True))]
