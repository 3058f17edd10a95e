"""Runs on several devices, computed again: bit for bit with one device a worker, and refused by name otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.replay.logged_run import read_record
from tests.devices.forced import forced_devices

OnDevices = Callable[..., Any]


@pytest.fixture(scope="module")
def on_devices() -> Iterator[OnDevices]:
    with forced_devices(4) as call:
        yield call


def test_xla_with_a_device_for_each_worker_replays_bit_for_bit(on_devices: OnDevices, tmp_path: Path) -> None:
    assert on_devices("logged", str(tmp_path / "run"), {}) == "xla"
    with forced_devices(1) as on_one_device:  # a process of its own: programs compiled otherwise have other bits
        assert on_one_device("replayed", str(tmp_path / "run")) == [None, 30]


def test_a_mesh_of_several_devices_is_refused_by_name(on_devices: OnDevices, tmp_path: Path) -> None:
    assert on_devices("logged", str(tmp_path / "run"), {"fsdp": 2}) == "xla"
    with pytest.raises(WorkdirError, match=r"phase 1 .* was computed on the mesh {'fsdp': 2} for each worker"):
        read_record(tmp_path / "run")
