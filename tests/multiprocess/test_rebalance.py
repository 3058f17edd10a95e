"""A straggler of real processes gets a smaller share of each step, and nobody leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.job import ROOT, Job, assert_exactly_once, users_environment


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_slow_worker_gets_one_unit_of_a_step_without_a_process_ending_and_the_run_replays(tmp_path: Path) -> None:
    workdir, slow = tmp_path / "run", "worker=2,delay_ms=90,from=0%,to=100%"
    flags = ["--plan=bsp", "--workers=4", "--policy=rebalance", "--apply_log", "--compute_secs=0.03"]
    with Job(workdir, "configs/tally.py", *flags, f"--stragglers={slow}", "--set=workload=1000") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert not job.events("role_lost") and not job.tracebacks()
        entered = job.events("phase_entered")
        assert [event["members"] for event in entered] == [[0, 1, 2, 3]] * len(entered)
        assert "shares" not in entered[0] and len(entered) > 1
        first, second, slowest, last = entered[1]["shares"]
        assert slowest == 1 and min(first, second, last) > 1, "a unit takes the slow one 4 times as long"
        stalls = [switch["stall_secs"] for switch in job.events("switch")]
        assert len(stalls) == len(entered) - 1 and max(stalls) < 2.0
    command = [sys.executable, "-m", "launch.replay", str(workdir)]
    done = subprocess.run(
        command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0 and "bit for bit" in done.stdout, done.stdout + done.stderr
