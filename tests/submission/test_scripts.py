"""The job scripts start agents again, end with the run, and save when they are asked to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.cluster.ssh_hosts import addresses_of
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.submission.programs import TEMPLATES
from tests.submission.stand_ins import Cluster

ROOT = Path(__file__).resolve().parents[2]
SBATCH, SSH = TEMPLATES / "train.sbatch", TEMPLATES / "train.sh"
FLAGS = ["--config=recipe:digits_mlp", "--workdir=/runs/a b"]


@contextmanager
def started(cluster: Cluster, script: Path, *variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script; nothing of it outlives the test.

    Args:
      cluster: on which.
      script: which one.
      variables: further ones of its environment, as NAME=VALUE.
    """
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"}
    hosts = [str(cluster.folder / "hosts")] if script == SSH else []
    # A shell that runs the tests in its background has them ignore SIGINT, one under nohup SIGHUP.
    with subprocess.Popen(
        ["env", "--default-signal=INT,HUP", "bash", str(script), *hosts, "/certs", *FLAGS],
        env=os.environ | slurm | cluster.environ | dict(each.split("=", 1) for each in variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


def run(cluster: Cluster, script: Path, *variables: str) -> tuple[int, str]:
    """Run a script to its end; returns its exit code and what it printed."""
    with started(cluster, script, *variables) as job:
        printed, _ = job.communicate(timeout=60)
    return job.returncode, printed


def wait_for(*files: Path) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 30
    while missing := [path.name for path in files if not path.is_file()]:
        assert SYSTEM_CLOCK.monotonic() < deadline, f"no {missing} after 30 s"
        pause(0.02)


@pytest.fixture(params=[SBATCH, SSH], ids=["slurm", "ssh"])
def script(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_bash_reads_the_script(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_that_dies_is_started_again_alone_and_the_script_ends_as_the_run_does(
    script: Path, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, head="0", other="137 0")
    code, printed = run(cluster, script)
    assert code == 0, printed
    assert (len(cluster.calls(0)), len(cluster.calls(1))) == (1, 2), printed
    assert re.search(r"the agent of (n2|10\.0\.0\.2) ended with 137 after \d+ s and is started again", printed)
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_run_s_own_end_is_not_started_again(script: Path, tmp_path: Path, code: int) -> None:
    cluster = Cluster(tmp_path, head=str(code), other=str(code))
    ended, printed = run(cluster, script)
    assert (ended, len(cluster.calls(0)), len(cluster.calls(1))) == (code, 1, 1), printed
    assert not (tmp_path / "requeued").exists()  # saved by `hybridsync stop`: nobody asked for more


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_script_that_is_asked_to_end_saves_the_run(script: Path, tmp_path: Path, number: signal.Signals) -> None:
    cluster = Cluster(tmp_path, head="save", other="save")
    with started(cluster, script) as job:
        wait_for(tmp_path / "pid.0", tmp_path / "pid.1")
        job.send_signal(number)
        printed, _ = job.communicate(timeout=60)
    assert job.returncode == 75, printed
    assert (tmp_path / "requeued").exists() == (script == SBATCH and number == signal.SIGTERM)
    assert (tmp_path / "stopped").read_text() == "stop|/runs/a b|--nowait|"


def test_a_script_whose_whole_group_is_asked_to_end_saves_the_run(script: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="save", other="save")
    with started(cluster, script) as job:
        wait_for(tmp_path / "pid.0", tmp_path / "pid.1")
        os.killpg(job.pid, signal.SIGTERM)
        printed, _ = job.communicate(timeout=60)
    assert job.returncode == 75, printed


def test_an_agent_that_dies_while_the_run_is_to_be_saved_is_not_started_again(script: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="die 0", other="save")
    with started(cluster, script) as job:
        wait_for(tmp_path / "pid.0", tmp_path / "pid.1")
        job.send_signal(signal.SIGINT)
        printed, _ = job.communicate(timeout=60)
    assert (job.returncode, len(cluster.calls(0))) == (70, 1), printed
    assert re.search(r"^error: the agent of \S+ ended with 137 while the run was to be saved; run it", printed, re.M)


def end_of_script_with_an_agent_left(cluster: Cluster, script: Path) -> tuple[int, str]:
    """Run a script whose other host's agent does not end by itself; returns its exit code and what it printed."""
    with started(cluster, script) as job:
        try:
            job.wait(timeout=25)
        finally:
            wait_for(cluster.folder / "pid.1")
            os.kill(int((cluster.folder / "pid.1").read_text()), signal.SIGTERM)
        printed, _ = job.communicate(timeout=60)
    return job.returncode, printed


def test_a_script_whose_head_is_refused_does_not_wait_for_agents_that_look_for_it(script: Path, tmp_path: Path) -> None:
    code, printed = end_of_script_with_an_agent_left(Cluster(tmp_path, head="1", other="save"), script)
    assert code == 1, printed


def test_a_head_that_ssh_does_not_reach_ends_the_script(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    (tmp_path / "unreached").touch()
    code, printed = run(cluster, SSH)
    assert (code, (tmp_path / "calls.0").exists()) == (1, False), printed
    assert re.search(r"^error: ssh does not reach the head, 10\.0\.0\.1; correct \S+/hosts, or let", printed, re.M)


def test_a_head_that_ssh_has_lost_may_train_on_and_have_the_workdir(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="255 1 0", other="0")
    code, printed = run(cluster, SSH, "HYBRIDSYNC_PAUSE=0")
    assert (code, len(cluster.calls(0))) == (0, 3), printed
    assert "is it the former head that has the workdir?" in printed


def test_a_host_that_is_refused_from_the_start_ends_the_job(script: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="save", other="1")
    code, printed = run(cluster, script)
    assert (code, len(cluster.calls(1))) == (1, 1), printed
    assert re.search(r"^error: the job has ended, because a (host|node) was refused", printed, re.M), printed
    assert not (tmp_path / "requeued").exists()


def test_a_run_that_is_refused_itself_blames_no_host(script: Path, tmp_path: Path) -> None:
    """Hosts hear of its end before its head has ended, and end with the same code."""
    code, printed = run(Cluster(tmp_path, head="refused", other="1"), script)
    assert code == 1, printed
    assert "was refused (see above)" not in printed


def test_a_host_that_is_refused_later_ends_no_job(script: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="train", other="1")  # its certificate was revoked
    code, printed = run(cluster, script, "SECONDS=60")  # so long ago bash started, as it says
    assert code == 0, printed


def test_an_address_of_ipv6_has_brackets_where_a_port_follows(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    (tmp_path / "hosts").write_text("fd00::1\nfd00::2\n")
    code, printed = run(cluster, SSH)
    assert code == 0, printed
    assert cluster.calls(1)[0][1:5] == ["--head=[fd00::1]:4711", "--index=1", "--hosts=2", "--address=fd00::2"]


def test_a_terminal_that_closes_saves_the_run_on_hosts_by_ssh(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="save", other="save")
    with started(cluster, SSH) as job:
        wait_for(tmp_path / "pid.0", tmp_path / "pid.1")
        job.send_signal(signal.SIGHUP)
        printed, _ = job.communicate(timeout=60)
    assert job.returncode == 75, printed


@pytest.mark.parametrize("text", ["10.0.0.1\n10.0.0.2", "10.0.0.1\r\n10.0.0.2\r\n"], ids=["unended", "dos"])
def test_the_script_for_ssh_reads_the_hosts_that_the_command_has_checked(tmp_path: Path, text: str) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    (tmp_path / "hosts").write_bytes(text.encode())
    code, printed = run(cluster, SSH)
    assert (code, len(cluster.calls(0)), len(cluster.calls(1))) == (0, 1, 1), printed
    assert len(addresses_of(text, "hosts")) == 2


def test_the_hosts_run_with_the_interpreter_that_is_named(script: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    code, printed = run(cluster, script, "HYBRIDSYNC_PYTHON=python-of-hosts")
    assert (code, len(cluster.calls(0)), len(cluster.calls(1))) == (0, 1, 1), printed


def test_hosts_without_the_program_end_the_script_with_its_name(script: Path, tmp_path: Path) -> None:
    code, printed = run(Cluster(tmp_path, head="0", other="0"), script, "HYBRIDSYNC_PYTHON=/nowhere/python")
    assert code == 1
    assert re.search(r"^error: \S+ has no /nowhere/python; install HybridSync at the same path on all", printed, re.M)


def test_examples_has_links_to_the_scripts_and_no_copies() -> None:
    links = {ROOT / "examples" / "slurm" / "train.sbatch": SBATCH, ROOT / "examples" / "ssh" / "train.sh": SSH}
    assert {link: link.is_symlink() and link.resolve() for link in links} == links


def test_slurm_s_agents_take_index_and_number_from_slurm_and_the_head_from_the_script(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    assert run(cluster, SBATCH)[0] == 0
    for index in (0, 1):
        assert cluster.calls(index) == [
            ["host", f"--address=10.0.0.{index + 1}", f"--certs=/certs/{index}", *FLAGS, "10.0.0.1:20017"]
        ]


def test_agents_by_ssh_get_their_place_by_flags(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, head="0", other="0")
    assert run(cluster, SSH)[0] == 0
    for index in (0, 1):
        place = ["--head=10.0.0.1:4711", f"--index={index}", "--hosts=2", f"--address=10.0.0.{index + 1}"]
        assert cluster.calls(index) == [["host", *place, f"--certs=/certs/{index}", *FLAGS, ""]]


def test_a_script_without_a_workdir_or_hosts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("# nobody\n")
    calls = {"names no host": FLAGS, "no --workdir=DIR was given": FLAGS[:1]}
    for says, flags in calls.items():
        command = ["bash", SSH, tmp_path / "none", "/certs", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and says in done.stderr
