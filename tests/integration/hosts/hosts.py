"""A run on several hosts of a `Network`: `hybridsync host` on each, watched through the workdir, and hurt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.security.certificates import Authority
from hybridsync.security.identity import HEAD, HOST
from tests.integration.hosts.network import Network
from tests.multiprocess.job import ROOT, Job, users_environment

PORT = 4711
PRIVATE = "--collectives_network=private"
END_SECS = 60.0


class Hosts:
    """Runs `hybridsync host` on every host of a network; as a context manager it leaves no process behind.

    All hosts share this machine's files. The head's workdir is theirs, too.

    Args:
      network: where they are.
      folder: for certificates, the workdir and what the programs print.
      config: path of a configuration file.
      flags: more flags, the same for all.
      absent: hosts whose agents are started later.

    Attributes:
      head: the job, whose supervisor runs on host 0.
    """

    def __init__(self, network: Network, folder: Path, config: str, *flags: str, absent: Collection[int] = ()) -> None:
        self.network, self._folder, self._config, self._flags = network, folder, config, flags
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self.workdir = folder / "run"
        if not (folder / "certs").exists():
            make_certificates(folder / "certs", network.num_hosts)
        self.head = self._new_head()
        for host in range(1, network.num_hosts):
            if host not in absent:
                self.start_agent(host)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_everything()

    def kill_everything(self) -> None:
        """Kill every process of every host; nothing happens where none runs."""
        for host in range(self.network.num_hosts):
            self.network.kill_all(host)
        for agent in self._agents.values():
            agent.wait(END_SECS)
        self.head.kill_everything()

    # --- starts ---

    def _command(self, host: int) -> list[str]:
        place = [f"--head={self.network.address(0)}:{PORT}", f"--index={host}", f"--hosts={self.network.num_hosts}"]
        certificates = f"--certs={self._folder / 'certs' / str(host)}"
        program = [sys.executable, "-m", "hybridsync.cli.host", *place, certificates]
        return [*self.network.inside(host), *program]

    def _new_head(self) -> Job:
        return Job(self.workdir, self._config, *self._flags, command=self._command(0))

    def start_head(self) -> None:
        """Start the head's host again, whose program has ended."""
        self.head = self._new_head()

    def start_agent(self, host: int) -> None:
        """Start a host's agent, for the first time or again."""
        with open(self._screen(host), "ab") as screen:
            self._agents[host] = subprocess.Popen(
                [*self._command(host), f"--config={self._config}", f"--workdir={self.workdir}", *self._flags],
                cwd=ROOT,
                env=users_environment(),
                stdout=screen,
                stderr=subprocess.STDOUT,
            )

    # --- ends ---

    def kill_host(self, host: int) -> None:
        """Kill all processes of a host at once, as when its machine dies; its network stays."""
        self.network.kill_all(host)
        (self.head.process if host == 0 else self._agents[host]).wait(END_SECS)

    def kill_agent(self, host: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a host's agent, and wait for its end; returns the exit code."""
        self._agents[host].send_signal(number)
        return self._agents[host].wait(END_SECS)

    def wait(self, secs: float = 240.0) -> list[int]:
        """Wait until every host's program has ended; returns the exit codes, the head's first.

        Raises:
          AssertionError: one did not, in time.
        """
        codes = [self.head.wait(secs)]
        for host, agent in sorted(self._agents.items()):
            try:
                codes.append(agent.wait(END_SECS))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the agent of host {host} outlives the run:\n{self.screen(host)}") from None
        return codes

    # --- what is seen ---

    def _screen(self, host: int) -> Path:
        return self._folder / f"host{host}.screen"

    def screen(self, host: int) -> str:
        """Return what a host's program has printed so far."""
        return self.head.screen() if host == 0 else self._screen(host).read_text()

    def screens(self) -> str:
        """Return what all have printed."""
        return "\n".join(f"== host {host}\n{self.screen(host)}" for host in range(self.network.num_hosts))

    def until(self, condition: Callable[[], Any], what: str, secs: float = 120.0) -> float:
        """Wait until something is true; returns the seconds that it took."""
        begun = SYSTEM_CLOCK.monotonic()
        try:
            self.head.until(condition, what, secs)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screens()}") from None
        return SYSTEM_CLOCK.monotonic() - begun

    def until_said(self, text: str, times: int = 1, host: int = 0, secs: float = 120.0) -> float:
        """Wait until a host's program has printed a text so often; returns the seconds that it took."""
        return self.until(lambda: self.screen(host).count(text) >= times, f"host {host} said {text!r}", secs)

    def roles_on(self, host: int) -> list[str]:
        """Return the roles that run on a host, by the logs that they write to, for example "worker-2"."""
        roles = [role for pid in self.network.processes(host) if (role := _log_of(pid)) is not None]
        return sorted(role for role in roles if not role.startswith("fork-server"))

    def pss_bytes(self, pid: int) -> int:
        """Return a process's memory, where a page that several share counts in parts."""
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"process {pid} has no memory")

    def program(self, host: int) -> int:
        """Return the process id of a host's program: the supervisor's or an agent's."""
        return (self.head.process if host == 0 else self._agents[host]).pid


def _log_of(pid: int) -> str | None:
    """Return the name of the log that a process writes to; None for a terminal, or where it has just ended."""
    try:
        path = Path(os.readlink(f"/proc/{pid}/fd/2"))
    except OSError:
        return None
    return path.stem if path.suffix == ".log" else None


def make_certificates(folder: Path, num_hosts: int) -> None:
    """Make an authority, and a folder of certificates for each host, named by its number."""
    folder.mkdir(parents=True)
    os.chmod(folder, 0o700)
    authority = Authority.create(folder / "0")
    authority.issue(HEAD).write(folder / "0", HEAD)
    for host in range(1, num_hosts):
        authority.issue(HOST, host).write(folder / str(host), HOST)
