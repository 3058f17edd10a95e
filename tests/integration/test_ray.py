"""`hybridsync train --cluster=ray` trains under a real Ray; only the agent whose actor is killed is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.integration.hosts_run import (
    CONFIG,
    LIMIT_SECS,
    LONG,
    ROOT,
    SLOW,
    UNITS,
    agent_of,
    certificates,
    check_listeners,
    folder_on_disk,
    joined,
    summary_of,
    units_of,
    wait_for,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("hosts"), pytest.mark.timeout(900)]

RAY = "ray==2.58.0"
ENVIRON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
    "RAY_enable_metrics_collection": "0",
}


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with Ray; the project and what it needs come from this one's."""
    folder = ROOT / ".venv-ray"
    interpreter, installed = folder / "bin" / "python", folder / "installed.txt"
    if not installed.is_file() or installed.read_text() != RAY:
        venv.create(folder, with_pip=True)
        command = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RAY]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"{RAY} could not be installed: {done.stderr.strip()[-300:]}")
        installed.write_text(RAY)
    (packages,) = folder.glob("lib/python*/site-packages")  # Ray's own packages come before these
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "hybridsync.pth").write_text("\n".join([*ours, str(ROOT), ""]))
    return interpreter


@pytest.fixture(scope="module")
def address(python: Path) -> Iterator[str]:
    """Where a cluster of three raylets is, two of them with CPUs."""
    with subprocess.Popen(
        [python, "-m", "tests.integration.ray_cluster", "2"],
        cwd=ROOT,
        env=os.environ | ENVIRON,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as cluster:
        try:
            assert cluster.stdin is not None and cluster.stdout is not None
            line = next(line for line in iter(cluster.stdout.readline, "") if line.startswith("address "))
            yield line.split()[1]
            cluster.stdin.close()
            cluster.wait(60)
        finally:
            if cluster.poll() is None:
                os.killpg(cluster.pid, signal.SIGKILL)


@pytest.fixture
def workdir() -> Iterator[Path]:
    with folder_on_disk() as folder:
        yield folder / "run"


@contextmanager
def driver(python: Path, address: str, workdir: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command; what it prints is in `out` beside the workdir, the certificates that it makes are inside."""
    place = ["--cluster=ray", "--hosts=2", f"--ray_address={address}"]
    job = [f"--config={CONFIG}", f"--workdir={workdir}", "--link=grpc", "--collectives_network=private"]  # no loopback
    with (
        (workdir.parent / "out").open("wb") as out,
        subprocess.Popen(
            [python, "-m", "hybridsync", "train", *place, *job, *flags],
            cwd=ROOT,
            env=os.environ | ENVIRON,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_actor_s_agent_comes_back_and_the_other_one_stays(python: Path, address: str, workdir: Path) -> None:
    certs, out = workdir / "certs", workdir.parent / "out"
    began = SYSTEM_CLOCK.monotonic()
    with driver(python, address, workdir, SLOW) as process:
        wait_for(lambda: units_of(workdir) > 50 or process.poll() is not None, "training", out.read_text)
        assert process.poll() is None, out.read_text()
        check_listeners(certs, workdir, 2, has_buffers=False)
        head, agent = agent_of(certs / "0"), agent_of(certs / "1")
        actor = int((Path("/proc") / str(agent) / "stat").read_text().rpartition(")")[2].split()[1])
        os.kill(actor, signal.SIGKILL)
        secs = wait_for(lambda: joined(out.read_text(), 1) > 1, "other agent", out.read_text)
        assert (agent_of(certs / "0"), agent_of(certs / "1") != agent) == (head, True)
        assert process.wait(LIMIT_SECS) == 0, out.read_text()
    print(f"Ray: {SYSTEM_CLOCK.monotonic() - began:.1f} s, the agent of a killed actor back after {secs:.1f} s")
    assert summary_of(workdir)["exit"] == "completed" and units_of(workdir) == UNITS


def test_a_driver_that_is_asked_to_end_saves_and_the_next_one_goes_on(
    python: Path, address: str, workdir: Path
) -> None:
    out = workdir.parent / "out"
    with driver(python, address, workdir, LONG) as process:
        wait_for(lambda: units_of(workdir) > 50 or process.poll() is not None, "training", out.read_text)
        process.terminate()
        assert process.wait(LIMIT_SECS) == 75, out.read_text()
    assert summary_of(workdir)["exit"] == "preempted"
    with driver(python, address, workdir) as process:
        assert process.wait(LIMIT_SECS) == 0, out.read_text()
    assert summary_of(workdir)["exit"] == "completed"


def test_a_host_that_is_refused_at_the_start_ends_the_job(python: Path, address: str, workdir: Path) -> None:
    out = workdir.parent / "out"
    certs = certificates(workdir.parent / "certs", 2)
    (certs / "1" / "host.key").chmod(0o644)  # a key that others can read
    with driver(python, address, workdir, f"--certs={certs}") as process:
        assert process.wait(LIMIT_SECS) == 1, out.read_text()
    assert "a host was refused (see above), and so the job has ended" in out.read_text()
    assert "host.key" in out.read_text()
