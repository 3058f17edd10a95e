"""Harnesses of reporters, and a chief that looks again at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.phases.harness import Harness


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the chief look again at once."""
    monkeypatch.setattr("hybridsync.chief.service.POLL_SECS", 0.0)


@pytest.fixture
def make_harness(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    with ExitStack() as recorders:

        def make(**options: Any) -> Harness:
            harness = Harness(tmp_path, **options)
            recorders.callback(harness.recorder.close)
            return harness

        yield make


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness()
