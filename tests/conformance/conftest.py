"""A job of processes takes its seconds: but for the widest plan of each protocol, they run with the soak tests."""

from __future__ import annotations

import pytest

WIDEST = "test_every_unit_is_applied_exactly_once"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if any(isinstance(value, str) and value == "processes" for value in item.callspec.params.values()):
            item.add_marker(pytest.mark.timeout(600))
            if item.originalname != WIDEST or item.callspec.params["plan"].count(",") < 3:
                item.add_marker(pytest.mark.soak)
