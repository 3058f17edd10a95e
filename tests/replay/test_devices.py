"""Runs on several devices, computed again: bit for bit with one device a worker, and refused by name otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.replay.logged_run import read_record
from hybridsync.replay.verdict import replay
from tests.devices.forced import forced_devices
from tests.trainers import mlp_trainer

OnDevices = Callable[..., Any]


@pytest.fixture(scope="module")
def on_devices() -> Iterator[OnDevices]:
    with forced_devices(4) as call:
        yield call


@pytest.mark.usefixtures("quickly_compiled")
def test_xla_with_a_device_for_each_worker_replays_bit_for_bit(on_devices: OnDevices, tmp_path: Path) -> None:
    assert on_devices("logged", str(tmp_path / "run"), {}) == "xla"
    trainer = mlp_trainer("bsp:50%,asp", 48)
    replayed = replay(read_record(tmp_path / "run"), trainer._run)
    assert replayed.difference is None
    assert replayed.updates == 30


def test_a_mesh_of_several_devices_is_refused_by_name(on_devices: OnDevices, tmp_path: Path) -> None:
    assert on_devices("logged", str(tmp_path / "run"), {"fsdp": 2}) == "xla"
    with pytest.raises(WorkdirError, match=r"phase 1 .* was computed on the mesh {'fsdp': 2} for each worker"):
        read_record(tmp_path / "run")
