"""Units that cannot be trained on, met by processes: dropped and named, and the run completes without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.job import ROOT, Job, assert_exactly_once, users_environment
from tests.sweeps import swept

CONFIG = "tests/multiprocess/spoiled.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shares", swept(["3,0,2", ""]))
def test_units_without_a_finite_loss_are_dropped_on_every_replica_and_the_run_replays(
    tmp_path: Path, shares: str
) -> None:
    workdir, flags = tmp_path / "run", [f"--set=policy.shares={shares}"] if shares else []
    with Job(workdir, CONFIG, "--plan=bsp:50%,asp", "--set=model.not_finite=3", "--apply_log", *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
        summary = job.summary()
        assert_exactly_once(summary)
        assert summary["units"]["dropped"] == 27, "3, 13, ... 263 of the 267 units that it takes"
        assert summary["units"]["rolled_back"] == 0
        assert len(summary["switches"]) == 1 and not job.tracebacks()
        assert not job.events("role_lost")
        entered = job.events("phase_entered")
        assert {tuple(event.get("shares", ())) for event in entered if event["protocol"] == "bsp"} == {
            tuple(map(int, shares.split(","))) if shares else ()
        }
    command = [sys.executable, "-m", "launch.replay", str(workdir)]
    done = subprocess.run(
        command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0 and "bit for bit" in done.stdout, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plan", "how", "reason"),
    [
        ("asp", "raises", "exit 1"),
        pytest.param("bsp", "raises", "exit 1", marks=pytest.mark.soak),
        pytest.param("asp", "crashes", "signal SIGSEGV", marks=pytest.mark.soak),
    ],
)
def test_a_unit_that_ends_two_workers_is_left_out_and_named(tmp_path: Path, plan: str, how: str, reason: str) -> None:
    with Job(tmp_path / "run", CONFIG, f"--plan={plan}", f"--set=model.{how}=17") as job:
        assert job.wait() == 0, job.output + job.logs()
        summary = job.summary()
        assert_exactly_once(summary)
        assert summary["units"]["dropped"] == 1
        (found,) = job.events("unit_quarantined")
        lost = job.events("role_lost")
        assert (found["unit"], len(lost)) == (17, 2)
        assert found["workers"] == [event["id"] for event in lost] and len(set(found["workers"])) == 2
        assert f"ended on it with {reason}" in found["reason"]
        if how == "raises":
            assert "the examples of unit 17 are not to be had" in job.log(f"worker-{found['workers'][0]}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", ["bsp", pytest.param("asp", marks=pytest.mark.soak)])
def test_a_short_unit_ends_the_run_by_name_and_what_was_applied_is_saved(tmp_path: Path, plan: str) -> None:
    with Job(tmp_path / "run", CONFIG, f"--plan={plan}", "--set=model.short=60") as job:
        assert job.wait() == 1, job.output + job.logs()
        assert "error: unit 60 has 0 examples, unit_size is 1: the source returned its field 'unit'" in job.output
        summary = job.summary()
        assert summary["units"]["applied"] >= 50 and summary["units"]["rolled_back"] == 0
        assert {event["restart_count"] for event in job.events("role_started") if event["role"] == "worker"} == {0}
