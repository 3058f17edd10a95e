"""Long polls of these tests end at once."""

from __future__ import annotations

import pytest

from hybridsync.chief import service


@pytest.fixture(autouse=True)
def answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "POLL_SECS", 0.02)
