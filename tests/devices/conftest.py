"""Fixtures of the tests on several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.devices.forced import forced_devices


@pytest.fixture(scope="session")
def on_devices() -> Iterator[Callable[..., Any]]:
    """Return what calls a function in a process with eight CPU devices (see `forced_devices`)."""
    with forced_devices() as call:
        yield call
