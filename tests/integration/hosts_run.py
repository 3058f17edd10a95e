"""What a run on several hosts needs and shows, whichever cluster manager starts it; all hosts are this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.telemetry.events import read_events
from tests.security.listeners import ports_by_role

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "digits_mlp.py"
UNITS = 4000
SLOW = "--compute_secs=0.02"
"""Makes a run of `CONFIG` take about half a minute, so that something can happen to it."""
LONG = "--compute_secs=0.2"
"""Makes it take minutes: it is to be stopped."""

LIMIT_SECS = 240.0
"""Of a run, on a slow machine that is busy with other things."""


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """Make a folder that could be shared: pytest's own may be in memory, and a job for a cluster refuses such ones."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def certificates(folder: Path, num_hosts: int) -> Path:
    """Make the certificates of all hosts; returns the folder in which each host's has its index as its name."""
    folder.mkdir()
    own = f"--folder={folder / '0'}"
    calls = [["init", own], *(["issue", own, f"--host={n}", f"--out={folder / str(n)}"] for n in range(1, num_hosts))]
    for call in calls:
        subprocess.run(
            [sys.executable, "-m", "hybridsync", "certs", *call],
            cwd=ROOT,
            check=True,
            timeout=240,
            stdout=subprocess.DEVNULL,
        )
    return folder


def agent_of(certs: Path) -> int:
    """Return the process of the agent that uses these certificates; 0 where there is none.

    Roles have the words of their agent. The agent is the one whose parent has not. While a role is forked, its parent
    may already have ended, and for a moment it looks like a second agent. The search is repeated until one is left.
    """
    deadline = SYSTEM_CLOCK.monotonic() + 10
    while len(tops := _tops(certs)) > 1:
        assert SYSTEM_CLOCK.monotonic() < deadline, f"{certs} has the agents {tops}"
        pause(0.05)
    return tops[0] if tops else 0


def _tops(certs: Path) -> list[int]:
    found: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
        if f"--certs={certs}" in words and Path(words[0]).name.startswith("python"):
            found[int(process.name)] = parent
    return [pid for pid, parent in found.items() if parent not in found]


def wait_for(ready: Callable[[], object], what: str, told: Callable[[], str], secs: float = LIMIT_SECS) -> float:
    """Wait until something is so; returns the seconds that it took.

    Args:
      ready: whether it is.
      what: the test waits for.
      told: what to show where it does not come.
      secs: to wait at most.
    """
    began = SYSTEM_CLOCK.monotonic()
    while not ready():
        if SYSTEM_CLOCK.monotonic() > began + secs:
            pytest.fail(f"no {what} after {secs:g} s:\n{told()[-6000:]}")
        pause(0.05)
    return SYSTEM_CLOCK.monotonic() - began


def check_listeners(certs: Path, workdir: Path, num_hosts: int, *, has_buffers: bool = True) -> None:
    """Check that a run in lock-step listens where it is known to, and nowhere else.

    Args:
      certs: folder with the certificates of each host.
      workdir: of the run.
      num_hosts: of it.
      has_buffers: whether buffers have ports of their own (`--link=tcp`).
    """
    programs = {agent_of(certs / str(host)): f"host {host}" for host in range(num_hosts)}
    roles = {e["pid"]: f"{e['role']} {e['id']}" for e in read_events(workdir) if e["kind"] == "role_started"}
    found = {name: len(places) for name, places in ports_by_role(programs, roles).items()}
    calls = {"chief": 1 + has_buffers, "server": 1 + has_buffers, "worker": 2 + has_buffers}  # gloo
    head = {"host 0": 2}  # its own, and that of the coordination service
    assert found == {name: head.get(name, calls.get(name.split()[0], 0)) for name in found}
    assert {"host 0", "host 1", "chief 0", "server 0", "worker 0", "worker 3"} <= set(found)


def kill_agent_in_training(certs: Path, workdir: Path, log: Path) -> float:
    """Check who listens, and kill the agent of host 1 while the run trains in lock-step.

    Args:
      certs: of host 1.
      workdir: of the run.
      log: what the head prints.

    Returns:
      the seconds until the head has its successor.
    """

    def read() -> str:
        return log.read_text() if log.is_file() else ""

    wait_for(lambda: units_of(workdir) > 50, "training", read)
    check_listeners(certs.parent, workdir, len(list(certs.parent.iterdir())))
    agent = agent_of(certs)
    assert agent and joined(read(), 1) == 1, read()
    os.kill(agent, signal.SIGKILL)
    return wait_for(lambda: joined(read(), 1) > 1, "other agent", read)


def joined(text: str, index: int) -> int:
    """Return how often an agent of this host has joined, by what the head prints."""
    return sum(f"host {index} (" in line for line in lines_of(text, "has joined with"))


def lines_of(text: str, said: str) -> list[str]:
    """Return the lines in which something is said."""
    return [line for line in text.splitlines() if said in line]


def units_of(workdir: Path) -> int:
    """Return how far a run is by its newest line of metrics."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["units"]) if whole else 0


def summary_of(workdir: Path) -> dict[str, object]:
    """Return a finished run's summary."""
    return json.loads((workdir / "summary.json").read_text())
