"""The second oracle: the apply log of each protocol on each runtime, computed again, gives the bits that were saved."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from hybridsync import protocols
from hybridsync.config import load_config, restore_values
from hybridsync.replay.record import read_record
from hybridsync.replay.story import replay
from hybridsync.run import Run
from hybridsync.runtime.nursery import Nursery
from tests.conformance.drivers import DRIVERS

CONFIG = Path(__file__).resolve().parents[2] / "configs/digits_mlp.py"


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
@pytest.mark.parametrize("runtime", sorted(DRIVERS))
def test_the_apply_log_replays_bit_for_bit(tmp_path: Path, runtime: str, name: str) -> None:
    workdir = tmp_path / "run"
    values = ["plan=" + name, "workers=4", "workload=121", "telemetry.apply_log=true", "model.dropout=0.1"]
    DRIVERS[runtime](str(CONFIG), values, workdir)
    record, loaded = read_record(workdir), load_config(CONFIG)
    config = restore_values(loaded.config, record.config)
    run = Run(config, loaded.module.task(config), loaded.module.optimizer(config), workdir, CONFIG)
    command = [sys.executable, "-m", "launch.replay", str(workdir)]
    with contextlib.closing(Nursery(command, workdir / "replay-seed.log")) as nursery:
        replayed = replay(record, run, nursery)
    assert replayed.difference is None, replayed
    assert "bit for bit" in str(replayed)
