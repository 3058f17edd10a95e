"""Supervised runs that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.supervised import WAIT_SECS, Begin, Run


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[Run] = []

    def start(actions: dict[str, Any] | None = None, **options: Any) -> Run:
        runs.append(Run(tmp_path / "run", actions or {}, {"grace_secs": 0.2, **options}))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.communicate(timeout=WAIT_SECS)
