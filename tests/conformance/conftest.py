"""A job of processes takes its seconds: those of the conformance suite run with the soak tests.

test_chains.py's run in every suite, and so do two replays of jobs of processes in ../multiprocess/.
"""

from __future__ import annotations

import pytest

ONES_OF_THE_SOAK = (
    "test_the_apply_log_replays_bit_for_bit[processes-asp]",
    "test_every_unit_is_applied_exactly_once[processes-bsp]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if any(isinstance(value, str) and value == "processes" for value in item.callspec.params.values()):
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.soak)
            if item.name in ONES_OF_THE_SOAK:
                item.add_marker(pytest.mark.one_of_each_soak)
