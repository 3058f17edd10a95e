"""Desks of reporters, and a chief that looks again at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.phases.desks import Desk


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the chief look again at once."""
    monkeypatch.setattr("hybridsync.chief.service.POLL_SECS", 0.0)


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    with ExitStack() as recorders:

        def make(**options: Any) -> Desk:
            desk = Desk(tmp_path, **options)
            recorders.callback(desk.recorder.close)
            return desk

        yield make


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()
