"""Pushes and pulls between two processes, by each kind of link in turns: `python -m benchmarks.links`.

A worker's whole link and a primary with its real update: 100 float32 leaves of one size, SGD with momentum .9. What is
measured is what a worker waits for, from the tree to the tree: packing, sending, the check for numbers that are not
finite, the update, and the parameters' publication.

- push: a contribution of the whole size to a server that answers at once, with parameters of 64 bytes;
- push with the update: the same to a primary that applies it, and publishes;
- pull: all parameters; they are read once, as a gradient would;
- push and pull without an update: both of the whole size.

GB/s are bytes of one direction over the median time; the spread is that of single calls, without the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.jobs import JOB_SECS, ROOT, Row, load, report
from benchmarks.peers.our_transfer import WORKLOAD, programs_of
from benchmarks.transfer import TINY_BYTES, MemoryBackend, seconds
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.runtime.wiring import GRPC, SHARED_MEMORY, TCP, transport_of
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import Cut, partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.training.state import initial_state
from hybridsync.transport.link import Services

TOKEN = "benchmark"
KINDS = (SHARED_MEMORY, TCP, GRPC)


def phase_of(snapshot_id: int, fingerprint: str) -> Phase:
    """Return an asynchronous phase of one worker."""
    return Phase(
        PhaseId(1, 1), "asp", (0,), 0, WORKLOAD, (), (), 0, "here", snapshot_id, fingerprint, ("here",), "start"
    )


def serve(kind: str, folder: Path, num_bytes: int) -> None:
    """Serve a primary and three backends without arithmetic until standard input ends."""
    programs, transport = programs_of(num_bytes / 1e6), transport_of(kind, Keyring(TOKEN))
    buffer = SnapshotBuffer(programs.state_layout)
    buffer.pack(jax.device_get(initial_state(programs.task, programs.optimizer, 0)))
    start = buffer.finalize(NO_PHASE, sequence=0, applied=())
    pool = ParameterPool(programs.parameters_layout, transport.allocate)
    log, completed = NullApplyLog(), threading.Event()
    primary = Primary(programs, pool, lambda address: buffer, SYSTEM_CLOCK, log, completed)
    primary.enter(phase_of(start.snapshot_id, start.held.fingerprint))
    out, into = programs.contribution_layout.nbytes, programs.parameters_layout.nbytes
    ports: dict[str, tuple[Any, int]] = {
        "update": (Endpoint(primary, programs.contribution_layout), out),
        "push": (MemoryBackend(TINY_BYTES, transport.allocate), out),
        "both": (MemoryBackend(into, transport.allocate), out),
    }
    serving = [
        transport.serve(
            Services(holder=primary, parameters=port, contribution_bytes=size, num_buffers=4),
            at_socket(folder / f"{kind}-{name}"),
            calls=8,
        )
        for name, (port, size) in ports.items()
    ]
    print("ready", flush=True)
    sys.stdin.read()
    for each in serving:
        each.stop()


@contextlib.contextmanager
def server_process(kind: str, folder: Path, num_bytes: int, program: Sequence[str] = ()) -> Iterator[None]:
    """Run `serve` in a process of its own, or another program of Python with the same flags behind it."""
    program = program or ("-m", "benchmarks.links", f"--serve={kind}")
    command = [sys.executable, *program, f"--folder={folder}", f"--bytes={num_bytes}"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(JOB_SECS, process.kill)
        late.start()
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the process that serves over {kind} has ended")
            yield
        finally:
            late.cancel()
            process.stdin.close()


class Worker:
    """A worker of one kind of link.

    Args:
      kind: of the link.
      folder: of the sockets.
      programs: of the run.
    """

    def __init__(self, kind: str, folder: Path, programs: Programs) -> None:
        transport, (part,) = transport_of(kind, Keyring(TOKEN)), partition(programs, 1)
        tiny = {"tiny": np.zeros(TINY_BYTES // 4, np.float32)}
        no_parameters = replace(part, parameters=Cut.of(Layout.of(tiny), tiny))
        self.links = {
            name: transport.link([at_socket(folder / f"{kind}-{name}")], [cut])
            for name, cut in (("update", part), ("both", part), ("push", no_parameters))
        }
        self.contribution = jax.tree.map(lambda a: np.ones(a.shape, a.dtype), programs.one)
        self.unit = self.base = 0

    def actions(self) -> dict[str, Callable[[], Any]]:
        """Return what is timed, by its name."""
        return {
            "push": lambda: self.push("push"),
            "push with the update": lambda: self.push("update"),
            "pull": self.pull,
            "push and pull without an update": lambda: self.push("both"),
        }

    def push(self, name: str) -> None:
        """Push the contribution."""
        self.unit += 1
        push = Push(PhaseId(1, 1), 0, 1, (self.unit,), self.base if name == "update" else -1)
        reply, _ = self.links[name].push_pull(push, self.contribution)
        if name == "update":
            self.base = reply.sequence
        elif not reply.brings_parameters(push):
            raise RuntimeError(f"{name} was answered without parameters, and both ways are measured")

    def pull(self) -> float:
        """Pull all parameters, and read them once."""
        _, parameters = self.links["both"].pull(Push(PhaseId(1, 1), 0, 1, (), 0))
        return sum(float(np.dot(leaf.ravel(), leaf.ravel())) for leaf in jax.tree.leaves(parameters.params))


def measure(num_bytes: int, calls: int) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each call, by kind and name, ascending."""
    programs, times = programs_of(num_bytes / 1e6), {}
    with tempfile.TemporaryDirectory(dir="/tmp") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        for kind in KINDS:
            stack.enter_context(server_process(kind, folder, num_bytes))
        workers = {kind: Worker(kind, folder, programs) for kind in KINDS}
        for worker in workers.values():
            worker.links["update"].pull(Push(PhaseId(1, 1), 0, 1, (), 0))
        for index in range(calls + calls // 10 + 1):
            for kind in KINDS if index % 2 else KINDS[::-1]:
                for name, action in workers[kind].actions().items():
                    took = seconds(action)
                    if index > calls // 10:  # the first ones connect, compile and touch pages
                        times.setdefault((kind, name), []).append(took)
        for worker in workers.values():
            for link in worker.links.values():
                link.close()
    return {key: sorted(found) for key, found in times.items()}


def rows_of(megabytes: float, times: Mapping[tuple[str, str], Sequence[float]]) -> list[Row]:
    """Return a row for each figure."""
    rows = []
    for (kind, name), found in sorted(times.items(), key=lambda item: item[0][1]):
        median, low, high = (found[len(found) * share // 20] for share in (10, 1, 18))
        title = f"{megabytes:g} MB, {name}, {kind} ({low * 1e3:.3g} to {high * 1e3:.3g} ms)"
        rows.append(Row(title, median * 1e3, "ms", load=load()))
        if name != "push and pull without an update":
            rows.append(Row(f"{megabytes:g} MB, {name}, {kind}", megabytes / median / 1e3, "GB/s", load=load()))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0.34,2,100")
    parser.add_argument("--secs", type=float, default=4.0, help="about how long each size takes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder, options.bytes)
        return
    rows = []
    for megabytes in map(float, options.megabytes.split(",")):
        calls = max(8, min(400, int(options.secs / (megabytes / 100) / 2)))
        rows += rows_of(megabytes, measure(int(megabytes * 1e6), calls))
    report("links between processes", rows)


if __name__ == "__main__":
    main()
