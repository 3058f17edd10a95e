"""`hybridsync train --cluster=ssh` and its script train behind real sshds; a killed agent alone is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.integration import ssh_hosts
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
    kill_agent_in_training,
    lines_of,
    summary_of,
    units_of,
    wait_for,
)
from tests.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("hosts"), pytest.mark.timeout(600)]

SCRIPT = ROOT / "examples" / "ssh" / "train.sh"
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = unpacked(ssh_hosts.PACKAGES, tmp_path_factory.mktemp("ssh-packages"))
    with ssh_hosts.started(root, tmp_path_factory.mktemp("ssh"), ADDRESSES) as command:
        yield command


def by_hand(folder: Path) -> list[str]:
    """Return the script, with its hosts and certificates."""
    return [str(SCRIPT), str(folder / "hosts"), str(folder / "certs")]


def by_flag(folder: Path) -> list[str]:
    """Return the command that runs the script."""
    command = [sys.executable, "-m", "hybridsync", "train", "--cluster=ssh", "--collectives_network=private"]
    return [*command, f"--hosts={folder / 'hosts'}", f"--certs={folder / 'certs'}"]


@contextmanager
def started(
    ssh: str, folder: Path, command: Callable[[Path], list[str]], *flags: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run on all hosts; what it prints is in `out`. Nothing of it outlives the test."""
    (folder / "hosts").write_text("".join(f"{address}\n" for address in ADDRESSES))
    (port,) = free_ports(1)
    own = {"HYBRIDSYNC_SSH": ssh, "HYBRIDSYNC_PORT": str(port)}
    own["HYBRIDSYNC_PYTHON"] = sys.executable
    job = [f"--config={CONFIG}", f"--workdir={folder / 'run'}", *flags]
    with (
        (folder / "out").open("wb") as out,
        subprocess.Popen(
            [*command(folder), *job],
            cwd=ROOT,
            env=os.environ | own,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            for index in range(len(ADDRESSES)):  # they have sshd for a parent
                if agent := agent_of(folder / "certs" / str(index)):
                    os.kill(agent, signal.SIGKILL)


def test_only_the_agent_that_is_killed_is_started_again(ssh: str, tmp_path: Path) -> None:
    certs, workdir, out = certificates(tmp_path / "certs", 3), tmp_path / "run", tmp_path / "out"
    began = SYSTEM_CLOCK.monotonic()
    with started(ssh, tmp_path, by_hand, SLOW) as process:
        wait_for(lambda: all(agent_of(certs / name) for name in "012"), "agents", out.read_text)
        head, other = agent_of(certs / "0"), agent_of(certs / "2")
        secs = kill_agent_in_training(certs / "1", workdir, out)
        assert (agent_of(certs / "0"), agent_of(certs / "2")) == (head, other)
        assert process.wait(LIMIT_SECS) == 0, out.read_text()
    print(f"ssh: {SYSTEM_CLOCK.monotonic() - began:.1f} s, a killed agent back after {secs:.1f} s")
    assert len(lines_of(out.read_text(), "is started again")) == 1
    assert summary_of(workdir)["exit"] == "completed" and units_of(workdir) == UNITS


def test_a_command_that_is_asked_to_end_saves_and_the_script_goes_on(ssh: str, tmp_path: Path) -> None:
    certificates(tmp_path / "certs", 3)
    workdir, out = tmp_path / "run", tmp_path / "out"
    with started(ssh, tmp_path, by_flag, LONG) as process:
        wait_for(lambda: units_of(workdir) > 50 or process.poll() is not None, "training", out.read_text)
        process.terminate()
        assert process.wait(LIMIT_SECS) == 75, out.read_text()
    assert summary_of(workdir)["exit"] == "preempted"
    with started(ssh, tmp_path, by_hand) as process:
        assert process.wait(LIMIT_SECS) == 0, out.read_text()
    assert summary_of(workdir)["exit"] == "completed"
