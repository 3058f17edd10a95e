"""What floods cost a run on several hosts: `python -m benchmarks.floods [--rounds=4] [--secs=6]`.

Three `hybridsync host` commands on this machine train the tally in `asp`, with emulated compute. One run is flooded and
left alone in turns. A ratio is of the rate in a flooded window to the mean rate of the two windows beside it that were
not; its median and spread are shown, and how many attempts a second there were. Every port at which a process of the
run listens is flooded, as `/proc` tells; calls go to the roles that serve gRPC. The flooder runs on the same
processors, at the lowest priority.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.faults import until
from benchmarks.flooder import Targets
from benchmarks.jobs import ROOT, Row, load, report
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.interfaces.ports import CommandPort
from hybridsync.runtime.control_file import command_port, read_control
from hybridsync.security.certificates import Authority
from hybridsync.security.identity import HEAD, HOST
from hybridsync.telemetry.events import read_events

NUM_HOSTS = 3
UNIT_SECS = 0.05
FLOODS = (
    "silent connections",
    "TLS to plaintext, and plaintext to TLS",
    "slow handshakes",
    "wrong tokens",
    "silent streams",
)
SETTLE_SECS = 1.0
"""Between two windows."""


def listening(pid: int) -> Iterator[tuple[str, int]]:
    """Yield where a process, and whatever it has started, listens for TCP."""
    with contextlib.suppress(OSError):
        own = _open_files(pid)
        for name in ("tcp", "tcp6"):  # gRPC takes IPv4 at sockets of IPv6
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    host, _, port = fields[1].partition(":")
                    yield socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1]), int(port, 16)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from listening(int(child))


def _open_files(pid: int) -> set[str]:
    found = set[str]()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.add(str(link.readlink()))
    return found


@contextlib.contextmanager
def run_on_hosts(folder: Path, workdir: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Train on several hosts until the end of the block; yields their processes, the head's first."""
    authority = Authority.create(folder / "0")
    authority.issue(HEAD).write(folder / "0", HEAD)
    hosts = list[subprocess.Popen[bytes]]()
    for index in range(NUM_HOSTS):
        if index:
            authority.issue(HOST, index).write(folder / str(index), HOST)
        flags = [
            f"--head=127.0.0.1:{port}",
            f"--index={index}",
            f"--hosts={NUM_HOSTS}",
            f"--address=127.0.0.{1 + index}",
        ]
        flags += [f"--certs={folder / str(index)}", "--config=configs/tally.py", f"--workdir={workdir}", "--plan=asp"]
        flags += [f"--workers={NUM_HOSTS}", f"--compute_secs={UNIT_SECS}", "--set=workload=40000"]
        command = [sys.executable, "-m", "hybridsync.cli.host", *flags]
        hosts.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        yield hosts
    finally:
        for host in reversed(hosts):
            host.kill()
            host.wait()


class Windows:
    """Measures one run in windows.

    Args:
      port: of the run's chief.
      flooder: floods it when it is told.
      secs: of a window.
    """

    def __init__(self, port: CommandPort, flooder: subprocess.Popen[str], secs: float) -> None:
        self._port, self._flooder, self._secs = port, flooder, secs
        self._never = threading.Event()

    def rate(self, flood: str = "") -> float:
        """Return the units a second of a window in which the run is flooded, or is not."""
        self.tell(flood)
        self._never.wait(SETTLE_SECS)
        first, began = self._port.status().applied, SYSTEM_CLOCK.monotonic()
        self._never.wait(self._secs)
        last = self._port.status().applied
        return (last - first) / (SYSTEM_CLOCK.monotonic() - began)

    def tell(self, flood: str) -> int:
        """Begin a flood, or rest; returns how many attempts the former flood has made."""
        assert self._flooder.stdin is not None and self._flooder.stdout is not None
        self._flooder.stdin.write(f"{flood}\n")
        self._flooder.stdin.flush()
        return int(self._flooder.stdout.readline())


def ratios_of(rates: list[float]) -> list[float]:
    """Return the flooded windows' rates to the mean of those beside them.

    >>> ratios_of([100.0, 95.0, 90.0, 180.0, 110.0])
    [1.0, 1.8]

    Args:
      rates: in turns, without a flood first and last.
    """
    return [2 * rates[at] / (rates[at - 1] + rates[at + 1]) for at in range(1, len(rates), 2)]


def measure(rounds: int, secs: float, port: int) -> list[Row]:
    """Flood one run with everything in turns; returns the rows."""
    rows = list[Row]()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "certs").mkdir(mode=0o700)
        with run_on_hosts(folder / "certs", folder / "run", port) as hosts:
            until(lambda: len(read_events(folder / "run", "worker_joined")) >= NUM_HOSTS, "the workers", hosts[0])
            control = read_control(folder / "run")
            roles = [e["address"] for e in read_events(folder / "run", "role_started") if e["role"] != "supervisor"]
            ports = sorted({each for host in hosts for each in listening(host.pid)})
            credentials = Authority.load(folder / "certs" / "0").issue("worker", 0).as_dict()
            targets = Targets(ports, [*roles, f"127.0.0.1:{port}"], credentials, control.token)
            command = [sys.executable, "-m", "benchmarks.flooder"]
            with subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as flooder:
                assert flooder.stdin is not None
                flooder.stdin.write(f"{targets.as_json()}\n")
                windows = Windows(command_port(control), flooder, secs)
                windows.rate()
                for flood in FLOODS:
                    rates, attempts = [windows.rate()], 0
                    for _ in range(rounds):
                        rates.append(windows.rate(flood))
                        attempts += windows.tell("")
                        rates.append(windows.rate())
                    found, busy = ratios_of(rates), load()
                    rows.append(Row(f"{flood}, rate to that without", median(found), "", ">=", 0.95, busy))
                    rows.append(Row(f"{flood}, least", min(found), "", load=busy))
                    rows.append(Row(f"{flood}, most", max(found), "", load=busy))
                    rows.append(Row(f"{flood}, attempts", attempts / (rounds * (secs + SETTLE_SECS)), "1/s", load=busy))
                lost = len(read_events(folder / "run", "role_lost"))
                rows.append(Row("roles lost", lost, "", "<=", 0.0, load()))
                rows.append(Row("ports flooded", len(ports), ""))
                flooder.stdin.close()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--secs", type=float, default=6.0)
    parser.add_argument("--port", type=int, default=4741)
    options = parser.parse_args()
    report("floods", measure(options.rounds, options.secs, options.port))


if __name__ == "__main__":
    main()
