"""`hybridsync train --cluster=slurm` and the job script train under a real Slurm; a killed agent alone comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.integration import slurm_cluster
from tests.integration.debian import unpacked
from tests.integration.hosts_run import (
    CONFIG,
    LIMIT_SECS,
    LONG,
    ROOT,
    SLOW,
    UNITS,
    agent_of,
    certificates,
    folder_on_disk,
    joined,
    kill_agent_in_training,
    lines_of,
    summary_of,
    units_of,
    wait_for,
)
from tests.integration.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("hosts"), pytest.mark.timeout(600)]

SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
NODES = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
PLACES = "import os; from hybridsync.cluster.discovery import discover; print(discover(os.environ))"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    root = unpacked(slurm_cluster.PACKAGES, tmp_path_factory.mktemp("slurm-packages"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # a job has its submitter's
        with slurm_cluster.started(root, tmp_path_factory.mktemp("slurm"), NODES) as cluster:
            yield cluster


def submit(slurm: SlurmCluster, folder: Path, *flags: object) -> str:
    """Submit the job script; what it prints is in `out`. Returns the job's number."""
    job = [SCRIPT, folder / "certs", f"--config={CONFIG}", f"--workdir={folder / 'run'}", *flags]
    return slurm.call("sbatch", "--parsable", f"--output={folder / 'out'}", *job).strip()


def state_of(slurm: SlurmCluster, job: str) -> str:
    """Return a job's state and exit code, as "COMPLETED 0:0"."""
    words = dict(word.split("=", 1) for word in slurm.call("scontrol", "show", "job", job).split() if "=" in word)
    return f"{words['JobState']} {words['ExitCode']}"


@pytest.fixture
def shared() -> Iterator[Path]:
    with folder_on_disk() as folder:
        yield folder


@contextmanager
def follower(
    slurm: SlurmCluster, folder: Path, name: str, *flags: str, **own: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `hybridsync train --cluster=slurm`; what it prints is in the file `name` of the folder."""
    job = [f"--config={CONFIG}", f"--workdir={folder / 'run'}", "--collectives_network=private", *flags]
    # A shell that runs the tests in its background has them ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "hybridsync", "train"]
    place = ["--cluster=slurm", "--hosts=2"]
    with (
        (folder / name).open("wb") as out,
        subprocess.Popen(
            [*command, *place, *job],
            cwd=ROOT,
            env=slurm.environ | own,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def job_of(text: str) -> str:
    """Return the number of the job that the command has submitted, by what it prints."""
    return text.partition("submitted job ")[2].split()[0] if "submitted job " in text else ""


@pytest.mark.parametrize("kind", ["a step a node", "one step"])
def test_each_node_of_a_real_job_finds_its_own_place(slurm: SlurmCluster, tmp_path: Path, kind: str) -> None:
    place = f"{sys.executable} -c '{PLACES}'"
    one = f"srun --ntasks-per-node=1 {place}\n"
    each = "".join(f"srun --overlap -N1 -n1 -w {node} {place}\n" for node in NODES)
    (tmp_path / "job").write_text(f"#!/bin/bash\ncd {ROOT}\n{each if kind == 'a step a node' else one}")
    slurm.call("sbatch", "--wait", "--nodes=2", f"--output={tmp_path / 'out'}", tmp_path / "job")
    told = sorted(line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("Place"))
    assert told == [f"Place(head='n1:4711', index={index}, hosts=2)" for index in (0, 1)]


def test_one_command_submits_a_job_of_two_nodes_and_ends_as_the_run_does(slurm: SlurmCluster, shared: Path) -> None:
    began = SYSTEM_CLOCK.monotonic()
    with follower(slurm, shared, "told") as process:
        assert process.wait(LIMIT_SECS) == 0, (shared / "told").read_text()
    print(f"Slurm: a job of two nodes took {SYSTEM_CLOCK.monotonic() - began:.1f} s")
    told = (shared / "told").read_text()
    assert state_of(slurm, job_of(told)) == "COMPLETED 0:0"
    assert f"its output is {shared}/run/logs/slurm-{job_of(told)}.log" in told
    assert f"made certificates of the run's hosts in {shared}/run/certs" in told
    assert f"completed: {UNITS:,} of {UNITS:,} units" in told  # as hybridsync train says
    assert summary_of(shared / "run")["exit"] == "completed" and units_of(shared / "run") == UNITS


def test_a_follower_that_leaves_is_followed_by_the_next_and_the_job_saves_when_it_is_told_to(
    slurm: SlurmCluster, shared: Path
) -> None:
    first, second = shared / "first", shared / "second"
    with follower(slurm, shared, "first", LONG) as process:
        wait_for(lambda: units_of(shared / "run") > 50 or process.poll() is not None, "training", first.read_text)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECS) == 130, first.read_text()
    job = job_of(first.read_text())
    stop = f"scancel --signal=INT --batch {job}"
    assert f"job {job} goes on; the same command shows it again; have it save and end with: {stop}" in first.read_text()
    with follower(slurm, shared, "other", LONG, "--seed=3") as process:
        assert process.wait(LIMIT_SECS) == 1
    with follower(slurm, shared, "second", LONG) as process:
        wait_for(lambda: "phase 1 " in second.read_text() or process.poll() is not None, "output", second.read_text)
        slurm.call(*stop.split())
        assert process.wait(LIMIT_SECS) == 75, second.read_text()
    assert f"job {job} trains in {shared / 'run'} already, with the same flags" in second.read_text()
    assert "submitted" not in second.read_text() + (shared / "other").read_text()
    assert f"error: job {job} trains in {shared / 'run'} already, with other flags" in (shared / "other").read_text()
    assert summary_of(shared / "run")["exit"] == "preempted"


def test_a_job_that_fails_before_the_run_begins_says_why(slurm: SlurmCluster, shared: Path) -> None:
    with follower(slurm, shared, "told", HYBRIDSYNC_PYTHON="/nowhere/python") as process:
        assert process.wait(LIMIT_SECS) == 1, (shared / "told").read_text()
    told = (shared / "told").read_text()
    assert f"error: job {job_of(told)} ended as FAILED (exit code 1, NonZeroExitCode); its output is " in told
    assert "has no /nowhere/python; install HybridSync at the same path on all nodes" in told.splitlines()[-1]


def test_only_the_agent_that_is_killed_is_started_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    certs, out = certificates(tmp_path / "certs", 2), tmp_path / "out"
    began = SYSTEM_CLOCK.monotonic()
    job = submit(slurm, tmp_path, SLOW)
    wait_for(lambda: agent_of(certs / "0"), "head", lambda: state_of(slurm, job))
    head = agent_of(certs / "0")
    secs = kill_agent_in_training(certs / "1", tmp_path / "run", out)
    assert agent_of(certs / "0") == head
    wait_for(lambda: state_of(slurm, job) == "COMPLETED 0:0", "end of the job", out.read_text)
    print(f"Slurm: {SYSTEM_CLOCK.monotonic() - began:.1f} s, a killed agent back after {secs:.1f} s")
    assert len(lines_of(out.read_text(), "is started again")) == 1
    assert "the agent of n2 ended with 137" in out.read_text()
    assert summary_of(tmp_path / "run")["units"]["applied"] == UNITS  # pyright: ignore[reportIndexIssue]


def test_a_head_that_is_killed_resumes_under_the_same_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    certs, out, workdir = certificates(tmp_path / "certs", 2), tmp_path / "out", tmp_path / "run"
    job = submit(slurm, tmp_path, SLOW, "--checkpoint_secs=2")
    wait_for(lambda: units_of(workdir) > 600, "training", lambda: state_of(slurm, job))
    head, other = agent_of(certs / "0"), agent_of(certs / "1")
    os.kill(head, signal.SIGKILL)
    secs = wait_for(lambda: joined(out.read_text(), 1) > 1, "agent at the next head", out.read_text)
    assert agent_of(certs / "0") not in (0, head) and agent_of(certs / "1") == other
    wait_for(lambda: state_of(slurm, job) == "COMPLETED 0:0", "end of the job", out.read_text)
    print(f"Slurm: the next head has its hosts {secs:.1f} s after the former one was killed")
    assert "the agent of n1 ended with 137" in out.read_text()
    assert summary_of(workdir)["exit"] == "completed" and units_of(workdir) == UNITS


def test_a_job_that_is_preempted_saves_waits_in_the_queue_and_goes_on(slurm: SlurmCluster, shared: Path) -> None:
    told, workdir = shared / "told", shared / "run"
    with follower(slurm, shared, "told", SLOW) as process:
        wait_for(lambda: units_of(workdir) > 50 or process.poll() is not None, "training", told.read_text)
        job = job_of(told.read_text())
        slurm.call("scancel", "--signal=TERM", "--batch", job)  # what --signal=B:TERM@120 does
        wait_for(lambda: state_of(slurm, job).startswith("PENDING"), "job in the queue again", told.read_text)
        assert summary_of(workdir)["exit"] == "preempted"
        slurm.call(
            "scontrol", "update", f"JobId={job}", "StartTime=now+5seconds"
        )  # at once, its credential is still revoked
        assert process.wait(LIMIT_SECS) == 0, told.read_text()
    assert told.read_text().count(f"job {job} waits in the queue") >= 1
    assert state_of(slurm, job) == "COMPLETED 0:0"
    assert summary_of(workdir)["exit"] == "completed" and units_of(workdir) == UNITS
