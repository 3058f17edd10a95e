"""Replay of runs whose roles were processes: lock-step phases in a fresh process group, served ones in a process
alone."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.telemetry.events import read_events
from tests.multiprocess.job import Job, users_environment
from tests.multiprocess.random_faults import WORKERS_ONLY, Victims
from tests.multiprocess.scenarios import GRPC, until_told
from tests.sweeps import swept

ROOT = Path(__file__).resolve().parents[2]
SECS = 200.0
DEATHS = 10


def launch(module: str, *arguments: str, secs: float = SECS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"launch.{module}", *arguments]
    environment = users_environment()
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=secs, check=False)


@pytest.mark.timeout(620)
@pytest.mark.parametrize("link", swept(["auto", "tcp"]))
def test_a_run_of_processes_replays_bit_for_bit_and_a_wrong_update_is_found(tmp_path: Path, link: str) -> None:
    flags = [
        f"--link={link}",
        "--plan=bsp:50%,asp",
        "--workers=3",
        "--apply_log",
        "--set=model.dropout=0.1",
        "--set=workload=122",
    ]
    job = launch("train", "--config=configs/digits_mlp.py", f"--workdir={tmp_path}", *flags)
    assert job.returncode == 0, job.stdout + job.stderr

    done = launch("replay", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("82 updates replayed, bit for bit: fingerprint ")  # 21 of 3 units, the last of 1; 61

    log = tmp_path / "apply_log"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[4]["units"].reverse()  # of three: two would have the same sum
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = launch("replay", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr
    (entered, _) = read_events(tmp_path, "phase_entered")
    assert f"since phase {entered['phase']} (bsp, updates 1 to 21)" in done.stdout


@pytest.mark.parametrize("link", [pytest.param(GRPC, marks=pytest.mark.soak), "--link=shm"])
@pytest.mark.timeout(620)
def test_a_worker_and_a_server_are_killed_while_pushes_and_pulls_are_in_flight_and_the_run_replays_bit_for_bit(
    tmp_path: Path, link: str
) -> None:
    """A transfer is emulated to take as long as a unit: a worker has a push and a pull in flight at any time."""
    flags = ["--plan=psplus:70%,bsp", "--workers=3", "--servers=2", "--apply_log", link, "--checkpoint_secs=1"]
    flags += ["--compute_secs=0.1", "--set=emulation.latency_secs=0.1", "--set=workload=450"]
    flags += ["--set=telemetry.log_secs=0.1"]
    with Job(tmp_path / "run", "configs/digits_mlp.py", *flags, planted=until_told()) as job:
        job.until_units(40)
        job.until_lost(job.kill_worker(1))
        job.until_units(job.units() + 20)
        server = next(e["pid"] for e in job.events("role_started") if (e["role"], e["id"]) == ("server", 0))
        os.kill(server, signal.SIGKILL)
        job.until_lost(server)
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        reasons = [(event["protocol"], event["reason"]) for event in job.events("phase_entered")]
        assert (reasons[0], reasons[-1]) == (("psplus", "start"), ("bsp", "planned")), reasons
        assert ("psplus", "death") in reasons
        units = job.summary()["units"]
        assert units["applied"] == 450 and units["outstanding"] == 0
        assert units["issued"] == units["applied"] + units["dropped"]
        assert job.tracebacks() == []
    done = launch("replay", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert " updates replayed, bit for bit: fingerprint " in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_lock_step_run_that_lost_members_again_and_again_replays_bit_for_bit(tmp_path: Path) -> None:
    rng = random.Random(10)
    flags = ["--plan=bsp", "--workers=4", "--apply_log", "--compute_secs=0.02", "--checkpoint_secs=3"]
    flags += ["--set=workload=100000", "--set=telemetry.log_secs=0.1"]
    with Job(tmp_path / "run", "configs/digits_mlp.py", *flags) as job:
        victims = Victims(job, WORKERS_ONLY)
        job.until_phase("bsp")
        for _ in range(DEATHS):
            job.until_units(job.units() + rng.randrange(10, 250))
            victims.hurt(rng)
        for pid in victims.hit:
            job.until_lost(pid)
        job.until(lambda: len(job.events("phase_entered")[-1]["members"]) == 4, "all members were back")
        job.until_phase("bsp")
        job.send(signal.SIGTERM)
        assert job.wait() == 75, job.output + job.logs()
        entered = job.events("phase_entered")
    assert len({(*event["members"], event["lane"]) for event in entered}) == len(entered), "a dead mesh was used again"
    assert sum(event["reason"] == "death" for event in entered) > 3 and any(e["reason"] == "join" for e in entered)
    assert len({len(event["members"]) for event in entered}) > 1
    done = launch("replay", str(tmp_path / "run"), secs=1200.0)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert re.match(r"\d+ updates replayed, bit for bit: fingerprint ", done.stdout), done.stdout
