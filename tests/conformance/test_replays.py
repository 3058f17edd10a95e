"""The second oracle: the apply log of each protocol on each runtime, computed again, gives the bits that were saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync import protocols
from tests.conformance.drivers import DRIVERS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(protocols.REGISTRY))
@pytest.mark.parametrize("runtime", sorted(DRIVERS))
def test_the_apply_log_replays_bit_for_bit(tmp_path: Path, runtime: str, name: str) -> None:
    workdir = tmp_path / "run"
    values = ["plan=" + name, "workers=4", "workload=121", "telemetry.apply_log=true", "model.dropout=0.1"]
    DRIVERS[runtime](str(ROOT / "configs/digits_mlp.py"), values, workdir)
    done = subprocess.run(
        [sys.executable, "-m", "launch.replay", str(workdir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit for bit" in done.stdout
