"""What certificates cost: calls between two processes over loopback, with and without TLS in turns.

`python -m benchmarks.tls_cost` measures, by the transport's own clients,

- a new connection: channel, handshake and a first call;
- a control call: a unary call without content;
- a message on an open stream: a push of 64 bytes;
- 4 MiB: a pull of that size, in frames.

Times are medians, with the fastest and the slowest twentieth. A ratio is that of a call with TLS to the call without it
that was made beside it; its median and spread are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import JOB_SECS, ROOT, Row, load, report
from benchmarks.transfer import TINY_BYTES, MemoryBackend, seconds
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import Credentials
from hybridsync.security.keyring import Keyring
from hybridsync.transport.buffers import aligned
from hybridsync.transport.grpc.parameter_server import ParameterClient
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services

TOKEN, BULK_BYTES = "benchmark", 4 << 20
PLAIN, SECURED = "plain", "TLS"
KINDS = (PLAIN, SECURED)


def serve(folder: Path) -> None:
    """Serve a large and a small backend, each with and without TLS, until standard input ends."""
    serving, addresses = [], {}
    for kind in KINDS:
        credentials = Credentials.read(folder, "server") if kind == SECURED else None
        for name, size in (("bulk", BULK_BYTES), ("small", TINY_BYTES)):
            backend: Any = MemoryBackend(size)
            services = Services(holder=backend, parameters=backend, contribution_bytes=TINY_BYTES, num_buffers=4)
            serving.append(GrpcTransport(Keyring(TOKEN, credentials)).serve(services, "127.0.0.1:0", calls=8))
            addresses[f"{name} {kind}"] = serving[-1].address
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()
    for each in serving:
        each.stop()


@contextlib.contextmanager
def server_process(folder: Path) -> Iterator[dict[str, str]]:
    """Run `serve` in a process of its own; yields its addresses."""
    command = [sys.executable, "-m", "benchmarks.tls_cost", f"--serve={folder}"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(JOB_SECS, process.kill)
        late.start()
        assert process.stdin is not None and process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            late.cancel()
            process.stdin.close()


class Worker:
    """A worker with certificates, or without.

    Args:
      kind: one of `KINDS`.
      addresses: of the server.
      credentials: of the worker.
    """

    def __init__(self, kind: str, addresses: dict[str, str], credentials: Credentials | None) -> None:
        self._connect = lambda name: ParameterClient(
            addresses[f"{name} {kind}"], keys=Keyring(TOKEN, credentials if kind == SECURED else None)
        )
        self._bulk, self._small = self._connect("bulk"), self._connect("small")
        self._into, self._tiny, self._out = aligned(BULK_BYTES), aligned(TINY_BYTES), aligned(TINY_BYTES)
        self._push = Push(PhaseId(1, 1), 0, 1, (0,), 0)

    def actions(self) -> dict[str, Callable[[], Any]]:
        """Return what is timed, by its name."""
        return {
            "a new connection": self._first_call,
            "a control call": lambda: self._small.idle(self._push),
            "a message on an open stream": lambda: self._small.push_pull(self._push, self._out, self._tiny),
            "4 MiB": lambda: self._bulk.pull(self._push, self._into),
        }

    def _first_call(self) -> None:
        client = self._connect("small")
        client.idle(self._push)
        client.close()

    def close(self) -> None:
        """End the connections."""
        self._bulk.close()
        self._small.close()


def measure(calls: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each pair of calls, plain and with TLS, by name."""
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as made:
        authority = Authority.create(Path(made) / "certificates")
        authority.issue("server").write(Path(made) / "server", "server")
        with server_process(Path(made) / "server") as addresses:
            workers = {kind: Worker(kind, addresses, authority.issue("worker")) for kind in KINDS}
            for index in range(calls + calls // 10 + 1):
                took: dict[str, dict[str, float]] = {}
                for kind in KINDS if index % 2 else KINDS[::-1]:
                    for name, action in workers[kind].actions().items():
                        took.setdefault(name, {})[kind] = seconds(action)
                if index > calls // 10:  # the first ones connect, and touch pages
                    for name, pair in took.items():
                        times.setdefault(name, []).append((pair[PLAIN], pair[SECURED]))
            for worker in workers.values():
                worker.close()
    return times


def rows_of(times: dict[str, list[tuple[float, float]]]) -> list[Row]:
    """Return a row for each figure."""
    rows = []
    for name, pairs in times.items():
        for index, kind in enumerate(KINDS):
            rows.append(_row(f"{name}, {kind}", [pair[index] * 1e3 for pair in pairs], "ms"))
        rows.append(_row(f"{name}, TLS to plain", [secured / plain for plain, secured in pairs], "x"))
    return rows


def _row(name: str, found: list[float], unit: str) -> Row:
    ascending = sorted(found)
    low, high = ascending[len(found) // 20], ascending[len(found) * 19 // 20]
    return Row(f"{name} ({low:.3g} to {high:.3g})", median(found), unit, load=load())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        report("the cost of TLS", rows_of(measure(options.calls)))


if __name__ == "__main__":
    main()
