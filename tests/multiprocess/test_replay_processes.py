"""Replay of runs whose roles were processes: lock-step phases in a fresh world, served ones in a process alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.telemetry.events import read_events
from tests.multiprocess.job import users_environment

ROOT = Path(__file__).resolve().parents[2]
SECS = 200.0


def launch(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"launch.{module}", *arguments]
    environment = users_environment()
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECS, check=False
    )


@pytest.mark.timeout(620)
def test_a_run_of_processes_replays_bit_for_bit_and_a_wrong_update_is_found(tmp_path: Path) -> None:
    flags = ["--plan=bsp:50%,asp", "--workers=4", "--apply_log", "--set=model.dropout=0.1", "--set=workload=242"]
    job = launch("train", "--config=configs/digits_mlp.py", f"--workdir={tmp_path}", *flags)
    assert job.returncode == 0, job.stdout + job.stderr

    done = launch("replay", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith(
        "152 updates replayed, bit for bit: fingerprint "
    )  # 31 of 4 units, the last of 1; 121

    log = tmp_path / "apply_log"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[4]["units"].reverse()
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = launch("replay", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    (entered, _) = read_events(tmp_path, "phase_entered")
    assert f"since epoch {entered['epoch']} (bsp, updates 1 to 31)" in done.stdout
