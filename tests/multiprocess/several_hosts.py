"""A job on several hosts of one machine: each has an address of its own on the loopback interface."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from hybridsync.security.certificates import Authority
from hybridsync.security.identity import HEAD, HOST
from tests.multiprocess.job import ROOT, Job, processes_of, send_to, users_environment

PROGRAM = "hybridsync.cli.host"
END_SECS = 240.0
"""How long an agent may take to end, on a machine that is busy with other things."""


class SeveralHosts(Job):
    """`hybridsync host` once a host; the head's process is the job's.

    Args:
      workdir: of the run.
      config: path of a configuration file.
      flags: more flags, of every host.
      num_hosts: of the run.
      port: of the head; no other job of the same time has it.
      program: module that every host runs.
    """

    def __init__(
        self, workdir: Path, config: str, *flags: str, num_hosts: int, port: int, program: str = PROGRAM
    ) -> None:
        self._program = (sys.executable, "-m", program)
        self._certificates = workdir.with_name(f"{workdir.name}.certificates")
        self._config, self._flags, self._num_hosts, self._port = config, flags, num_hosts, port
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._make_certificates()
        super().__init__(workdir, config, *self._place(0), *flags, command=self._program)
        for index in range(1, num_hosts):
            self.start_agent(index)

    def _make_certificates(self) -> None:
        self._certificates.mkdir(mode=0o700, exist_ok=True)
        if (self._certificates / "0").exists():
            return
        authority = Authority.create(self._certificates / "0")
        authority.issue(HEAD).write(self._certificates / "0", HEAD)
        for index in range(1, self._num_hosts):
            authority.issue(HOST, index).write(self._certificates / str(index), HOST)

    def _place(self, index: int) -> tuple[str, ...]:
        return (
            f"--head=127.0.0.1:{self._port}",
            f"--index={index}",
            f"--hosts={self._num_hosts}",
            f"--address=127.0.0.{1 + index}",
            f"--certs={self._certificates / str(index)}",
        )

    def start_agent(self, index: int, *more: str) -> None:
        """Start the agent of a host, with `more` flags; its words go to `agent_screen`."""
        with open(self._agent_screen(index), "ab") as screen:
            flags = [f"--config={self._config}", f"--workdir={self.workdir}", *self._place(index), *self._flags, *more]
            self._agents[index] = subprocess.Popen(
                [*self._program, *flags],
                cwd=ROOT,
                env=users_environment(),
                stdout=screen,
                stderr=subprocess.STDOUT,
            )

    def agents(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes of the agents."""
        return [*self._agents.values()]

    def kill_agent(self, index: int) -> None:
        """Kill the agent of a host, and with it all that runs there."""
        self._agents[index].kill()
        self._agents[index].wait(timeout=END_SECS)

    def stop_agent(self, index: int) -> None:
        """Have the agent of a host stand still; what it has started goes on."""
        self._agents[index].send_signal(signal.SIGSTOP)

    def end_agent(self, index: int, number: int) -> int:
        """Send a signal to the agent of a host; returns its exit code."""
        self._agents[index].send_signal(number)
        return self._agents[index].wait(timeout=END_SECS)

    def send_to_all_hosts(self, number: signal.Signals) -> None:
        """Send a signal to every process of every host."""
        for agent in self._agents.values():
            send_to(processes_of(agent.pid), number)
        self.send_to_all(number)

    def wait_agent(self, index: int, secs: float = END_SECS) -> int:
        """Return the exit code of an agent that ends by itself, within `secs`."""
        return self._agents[index].wait(timeout=secs)

    def wait_agents(self) -> dict[int, int]:
        """Return the exit code of each agent, once the run has ended."""
        return {index: agent.wait(timeout=END_SECS) for index, agent in self._agents.items()}

    def agent_screen(self, index: int) -> str:
        """Return what the agents of a host have printed."""
        return self._agent_screen(index).read_text(errors="replace")

    def _agent_screen(self, index: int) -> Path:
        return self.workdir.with_name(f"{self.workdir.name}.screen-{index}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.wait(timeout=END_SECS)
        super().__exit__(kind, error, trace)
