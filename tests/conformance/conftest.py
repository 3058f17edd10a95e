"""A job of processes takes its seconds: those of the suite run with the soak tests, but for test_chains.py's."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if any(isinstance(value, str) and value == "processes" for value in item.callspec.params.values()):
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.soak)
