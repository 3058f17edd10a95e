"""Long polls of these tests end at once."""

from __future__ import annotations

import pytest

from hybridsync.chief import chief as chief_module


@pytest.fixture(autouse=True)
def answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_module, "POLL_SECS", 0.02)
