"""`hybridsync train --cluster=...` from the command line to the agents' flags; the clusters are stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_lines import CommandLines, command_lines
from tests.integration.hosts_run import folder_on_disk
from tests.multiprocess.job import ROOT
from tests.submission.stand_ins import Cluster

JOB = ["--config=configs/digits_mlp.py", "--plan=asp"]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("printed"), "train") as train:
        yield train


REFUSED = [
    (["--hosts=2"], "--hosts is for --cluster=slurm, ray or ssh, and this is --cluster=local; name the cluster"),
    (["--cluster=slurm"], "--cluster=slurm is told of no hosts; add --hosts=N, the number of hosts"),
    (["--cluster=ssh", "--hosts=h", "--sbatch=-p gpu"], "--sbatch is for --cluster=slurm, and this is --cluster=ssh"),
    (["--cluster=ssh", "--hosts=/nowhere/h"], "--hosts=/nowhere/h cannot be read: No such file or directory;"),
    (["--cluster=ssh", "--hosts=HOSTS"], "--certs is missing; make certificates with: hybridsync certs init"),
    (["--cluster=ssh", "--hosts=HOSTS", "--certs=c", "--plan=bsp"], "bsp sums between hosts over gloo, which neither"),
    (["--cluster=ssh", "--hosts=HOSTS", "--certs=c", "--workers=1"], "--hosts=2 is more than the 1 worker; each host"),
    (["--cluster=ssh", "--hosts=HOSTS", "--runtime=inprocess"], "--runtime=inprocess is for one machine, and this is"),
    (["--cluster=ssh", "--hosts=HOSTS", "--certs=c", "--bind=127.0.0.1"], "--bind=127.0.0.1 is for one host; on"),
    (["--cluster=ssh", "--hosts=HOSTS", "--certs=c", "--switch=restart"], "--switch=restart is for one host, and the"),
    (
        ["--cluster=ssh", "--hosts=HOSTS", "--workdir=runs/a"],
        "--workdir=runs/a is relative, and every host has to find",
    ),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_what_no_cluster_can_do_is_refused_before_anything_is_made(
    train: CommandLines, tmp_path: Path, flags: list[str], message: str
) -> None:
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2\n")
    named = [flag.replace("HOSTS", str(tmp_path / "hosts")) for flag in flags]
    done = train(*JOB, f"--workdir={tmp_path / 'run'}", *named)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {message}"), done.stderr
    assert not (tmp_path / "run").exists()


def trained(cluster: Cluster, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "hybridsync", "train", *JOB, *flags]
    environ = os.environ | cluster.environ | {"HYBRIDSYNC_PYTHON": "python-of-hosts"}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)


def test_by_ssh_the_command_becomes_the_script_and_the_flags_reach_every_host(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="75", other="137 75")
    flags = ["--set", "workload=200", "optimizer.momentum=0.5", "--noapply_log", f"--workdir={tmp_path}/a run"]
    done = trained(cluster, "--cluster=ssh", f"--hosts={tmp_path}/hosts", "--certs=my certs", *flags)
    assert done.returncode == 75, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"the agent {index} runs in {ROOT}" for index in (0, 1, 1)]
    assert "the agent of 10.0.0.2 ended with 137 after" in done.stderr
    passed = ["--apply_log=False", "--config=configs/digits_mlp.py", "--set=workload=200"]
    passed += ["--set=optimizer.momentum=0.5", f"--workdir={tmp_path}/a run", "--plan=asp"]
    for index in (0, 1):
        place = ["--head=10.0.0.1:4711", f"--index={index}", "--hosts=2", f"--address=10.0.0.{index + 1}"]
        call = ["host", *place, f"--certs=my certs/{index}", *passed, ""]
        assert cluster.calls(index) == [call] * (1 + index)


def test_slurm_gets_a_job_with_certificates_that_are_made_in_the_workdir() -> None:
    with folder_on_disk() as folder:
        cluster, workdir = Cluster(folder, head="0", other="0"), folder / "run"
        flags = ["--cluster=slurm", "--hosts=2", f"--workdir={workdir}", "--resume=never", "--slots=2"]
        try:
            done = trained(cluster, *flags)
        finally:
            cluster.end()
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines() == [
            f"made certificates of the run's hosts in {workdir}/certs, for you alone",
            f"submitted job 17 of 2 hosts; its output is {workdir}/logs/slurm-17.log",
        ]
        assert (workdir / "logs" / "slurm-17.log").read_text() == done.stdout
        passed = ["--config=configs/digits_mlp.py", "--slots=2", f"--workdir={workdir}", "--plan=asp"]
        for index in (0, 1):
            place = [f"--address=10.0.0.{index + 1}", f"--certs={workdir}/certs/{index}"]
            assert cluster.calls(index) == [["host", *place, *passed, "10.0.0.1:20017"]]
        assert (workdir / "certs" / "1" / "host.key").stat().st_mode & 0o077 == 0


def test_a_host_of_a_job_is_told_nothing_of_the_whole_job(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridsync", "host", *JOB, f"--workdir={tmp_path}/run", "--hosts=2"]
    done = subprocess.run(
        [*command, "--cluster=slurm"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: --cluster is for hybridsync train, which starts every host of a job; leave it out\n"
