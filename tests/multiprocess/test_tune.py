"""A search of real processes is killed: its roles end with it, and its run goes on where it was saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.telemetry.events import read_events
from tests.lab.tuning.jobs import SMALL_CONFIG
from tests.multiprocess.job import ROOT, users_environment


def start(folder: Path) -> subprocess.Popen[str]:
    """Search for the smaller of one setting and pure lock-step, by one run each."""
    flags = ["--runtime=processes", "--runs=1", "--settings=1", "--workers=2", "--set=workload=4000"]
    place = [f"--config={folder / 'small.py'}", f"--history={folder / 'h.sqlite'}", f"--workdir={folder / 'runs'}"]
    return subprocess.Popen(
        [sys.executable, "-m", "launch.tune", *place, *flags],
        cwd=ROOT,
        env=users_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(240)
def test_a_killed_search_over_processes_goes_on_from_the_runs_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL_CONFIG)
    run = tmp_path / "runs" / "processes" / "bsp-seed0"
    process = start(tmp_path)
    assert process.stdout is not None
    for _ in process.stdout:
        if (run / "events.jsonl").exists() and any(event["units"] for event in read_events(run, "checkpoint")):
            break
    assert not (run / "summary.json").exists(), "the run was over before it could be hurt"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)  # to the output's end: every role has it open
    again = start(tmp_path)
    output, _ = again.communicate(timeout=200)
    assert again.returncode == 0, output
    assert [event["reason"] for event in read_events(run, "run_started")] == ["start", "resume"]
    assert "cost: 2 runs" in output
