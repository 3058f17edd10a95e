"""A running job is asked, told to switch and to stop, and goes on from there: every unit is applied once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hybridsync.runtime.control_file import CONTROL_FILE
from tests.multiprocess.job import ROOT, Job, assert_exactly_once, users_environment
from tests.multiprocess.scenarios import tally, until_told
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(600)
UNITS = 1000


def command(*arguments: str) -> tuple[int, str]:
    """Run `hybridsync` with these arguments; returns the exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "hybridsync", *arguments],
        cwd=ROOT,
        env=users_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout


def start(workdir: Path, *more: str) -> Job:
    """Start or resume a job whose units take their time until `Job.hurry`."""
    planted = until_told()
    return tally(workdir, *more, plan="bsp:50%,asp", units=UNITS, workers=2, unit_secs=1.0, planted=planted)


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Return each sample of a run's metrics by its name and its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240) as reply:
        families = [*text_string_to_metric_families(reply.read().decode())]
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, " ".join(f"{key}={s.labels[key]}" for key in sorted(s.labels))): s.value for s in samples}


def test_a_job_is_asked_switched_and_stopped_and_goes_on(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    run = str(workdir)
    assert command("status", run)[0] == 1
    (port,) = free_ports(1)
    with start(workdir, f"--metrics_port={port}") as job:
        job.until_phase("bsp")
        metrics = scraped(port)
        assert metrics["hybridsync_phase", ""] == 1 and metrics["hybridsync_workload_units", ""] == UNITS
        sent = "hybridsync_worker_bytes_total", "direction=sent worker=0"
        job.until(lambda: scraped(port).get(sent, 0) > 0, "worker 0 told what it has sent")
        code, said = command("train", "--config=configs/tally.py", f"--workdir={run}-2", f"--metrics_port={port}")
        assert code == 1 and f"--metrics_port={port} cannot be served on at 127.0.0.1" in said
        assert not (tmp_path / "run-2").exists()
        assert (workdir / CONTROL_FILE).stat().st_mode & 0o777 == 0o600
        code, said = command("status", run, "--json")
        status = json.loads(said)
        assert code == 0 and status["exit"] == "" and status["protocol"] == "bsp"
        assert status["issued"] == status["applied"] + status["dropped"] + status["outstanding"]
        members = {(each["role"], each["id"]): each["state"] for each in status["members"]}
        assert members == {("server", 0): "waiting", ("worker", 0): "training", ("worker", 1): "training"}

        code, said = command("switch", run, "sps")
        assert code == 1 and said == "error: unknown protocol 'sps'; did you mean 'ssp'?\n"
        assert command("switch", run, "diloco")[0] == 1
        assert job.events("switch_ordered") == [] and len(job.events("phase_entered")) == 1

        code, said = command("switch", run, "ssp(staleness=2)", "--why=the network is slow")
        assert code == 0 and "the run goes on under ssp(staleness=2)" in said
        (event,) = job.until(lambda: job.events("switch_ordered"), "the order was written")
        assert (event["protocol"], event["why"]) == ("ssp(staleness=2)", "the network is slow")
        chief = [e["pid"] for e in job.events("role_started") if e["role"] == "chief"][-1]
        os.kill(chief, signal.SIGKILL)  # it has promised the switch, whether it has made it or not
        job.until_phase("ssp(staleness=2)")
        assert "ssp(staleness=2)" in command("status", run)[1]
        info = "protocol=ssp(staleness=2) reason="
        assert any(name == "hybridsync_phase_info" and labels.startswith(info) for name, labels in scraped(port))

        code, said = command("stop", run, "--why=lunch")
        assert code == 0 and said.startswith("stopped: preempted at unit "), said
        assert job.wait() == 75
        assert [(event["why"], event["for_good"]) for event in job.events("stop_ordered")] == [("lunch", False)]
        assert not (workdir / CONTROL_FILE).exists()
    code, said = command("switch", run, "asp")
    assert code == 1 and "is not running; start it with the command" in said
    code, said = command("status", run)
    assert code == 0 and said.splitlines()[0].split()[1] == "preempted,"
    with start(workdir) as job:
        job.until_phase("ssp(staleness=2)")  # what was ordered lasts to the end of its stage
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    assert job.summary()["units"]["rolled_back"] == 0
    assert [event["protocol"] for event in job.events("phase_entered")][-1] == "asp"
    assert len(job.events("switch_ordered")) == 1 and job.tracebacks() == []
    assert "completed" in command("status", run)[1]
    assert "chief, restart count" in command("logs", run, "chief")[1]
