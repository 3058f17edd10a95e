"""Hosts of a private network on one machine: network namespaces on a bridge, each with a name and a share of the cores.

Everything that is made has a name that begins with this process's id, and is gone after `Network.close`. Needs root,
`ip`, `tc`, `iptables` and the cgroup controller `cpu` (version 1); `missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from hybridsync.core.clock import SYSTEM_CLOCK, pause

CPU = Path("/sys/fs/cgroup/cpu")
"""Where the controller of processor time is mounted."""
PERIOD_USECS = 100_000
KILL_SECS = 30.0
DEVICE = "net0"
"""Name of each host's network device."""
_NUMBERS = itertools.count()


def missing() -> str:
    """Return what this machine lacks for hosts of its own; "" where nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "iptables", "unshare"):
        if shutil.which(program) is None:
            return f"the program {program!r} is not installed"
    if not (CPU / "cpu.cfs_quota_us").exists() and not (CPU / "cgroup.procs").exists():
        return f"there is no cgroup controller at {CPU}"
    trial = f"hs{os.getpid()}-trial"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True, timeout=240, check=False)
    if made.returncode != 0:
        return f"ip netns add does not work here: {made.stderr.strip()}"
    _run("ip", "netns", "del", trial)
    return ""


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


class Network:
    """Makes hosts with the addresses 10.77.0.1, 10.77.0.2, ...; as a context manager it leaves nothing behind.

    Args:
      num_hosts: how many.
    """

    def __init__(self, num_hosts: int) -> None:
        self._name = f"hs{os.getpid()}n{next(_NUMBERS)}"
        self.num_hosts = num_hosts

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        hub = self._hub
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge0", "up")
        for host in range(self.num_hosts):
            space, port = self._space(host), f"port{host}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", space)
            _run("ip", "-n", hub, "link", "set", port, "master", "bridge0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "address", "add", f"{self.address(host)}/24", "dev", DEVICE)
            _run("ip", "-n", space, "link", "set", DEVICE, "up")
            (CPU / space).mkdir()

    def close(self) -> None:
        """Kill what still runs on the hosts, and remove them."""
        for host in range(self.num_hosts):
            self.kill_all(host)
            group = CPU / self._space(host)
            if group.exists():
                group.rmdir()
        spaces = {line.split()[0] for line in _run("ip", "netns", "list").splitlines()}
        for space in (*map(self._space, range(self.num_hosts)), self._hub):
            if space in spaces:
                _run("ip", "netns", "del", space)

    @property
    def _hub(self) -> str:
        return f"{self._name}hub"

    def _space(self, host: int) -> str:
        return f"{self._name}h{host}"

    def address(self, host: int) -> str:
        """Return the host's address."""
        return f"10.77.0.{host + 1}"

    def inside(self, host: int) -> list[str]:
        """Return what stands before a command that is to run on a host; its process keeps its id."""
        space = self._space(host)
        join = f'echo $$ > {CPU / space}/cgroup.procs && exec "$@"'
        named = f'hostname host{host} && exec "$@"'
        within = ["ip", "netns", "exec", space, "unshare", "--uts"]
        return ["sh", "-c", join, "sh", *within, "sh", "-c", named, "sh"]

    def processes(self, host: int) -> list[int]:
        """Return the ids of a host's processes."""
        try:
            return [int(pid) for pid in (CPU / self._space(host) / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []

    def kill_all(self, host: int) -> None:
        """Kill every process of a host, and wait until none is left."""
        deadline = SYSTEM_CLOCK.monotonic() + KILL_SECS
        while pids := self.processes(host):
            assert SYSTEM_CLOCK.monotonic() < deadline, f"processes {pids} of host {host} outlive SIGKILL"
            self.send_all(host, signal.SIGKILL)
            pause(0.01)

    def send_all(self, host: int, number: signal.Signals) -> None:
        """Send a signal to every process of a host; one that ends meanwhile needs none."""
        for pid in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # --- what goes wrong ---

    def cut(self, host: int, *, into: bool = True, out_of: bool = True) -> None:
        """Drop what the others send to a host, what it sends to them, or both; nobody is told."""
        for chain, flag, wanted in (("INPUT", "-i", into), ("OUTPUT", "-o", out_of)):
            if wanted:
                self._in(host, "iptables", "-w", "-A", chain, flag, DEVICE, "-j", "DROP")

    def heal(self, host: int) -> None:
        """End what `cut`, `slow_link` and `slow_cores` did to a host."""
        self._in(host, "iptables", "-w", "-F")
        for space, device in ((self._space(host), DEVICE), (self._hub, f"port{host}")):
            if "tbf" in _run("tc", "-n", space, "qdisc", "show", "dev", device):
                _run("tc", "-n", space, "qdisc", "del", "dev", device, "root")
        self._quota(host, -1)

    def slow_link(self, host: int, bytes_per_sec: float) -> None:
        """Let a host send and receive no more than this."""
        rate = ("rate", f"{int(8 * bytes_per_sec)}bit", "burst", "64kb", "latency", "400ms")
        for space, device in ((self._space(host), DEVICE), (self._hub, f"port{host}")):
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def slow_cores(self, host: int, cores: float) -> None:
        """Let a host compute on no more than so many cores, all its processes together."""
        self._quota(host, int(cores * PERIOD_USECS))

    def _quota(self, host: int, usecs: int) -> None:
        group = CPU / self._space(host)
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_USECS))
        (group / "cpu.cfs_quota_us").write_text(str(usecs))

    def _in(self, host: int, *command: object) -> str:
        return _run("ip", "netns", "exec", self._space(host), *command)
