"""Push and pull of a large buffer through our client and servicer, against a raw gRPC stream of equal chunks.

`python -m benchmarks.transfer [--megabytes=100] [--repeats=5] [--chunk_bytes=1048576]`

Two processes over loopback TCP. The raw stream uses the same channel and server settings, identity
serializers and plain chunks, and its receiver drains the bytes into a buffer that was allocated before. Both
are measured in turns in the same run, since the machine may be shared: read the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Answer
from hybridsync.transport.buffers import aligned
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.dialling import make_channel
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer

TINY_BYTES = 64
SMALL_BYTES = 80_000
SMALL_CALLS = 300
START_SECS = 30.0
CALL_SECS = 60.0


class LentView:
    """A lent buffer that needs no giving back."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.buffer = buffer

    def release(self) -> None:
        """Do nothing."""


class MemoryBackend:
    """Takes contributions and lends parameters, without any arithmetic.

    Each answer is of another version than the one that its caller names, since nobody is sent parameters that it has.
    """

    def __init__(self, parameter_bytes: int, allocate: Callable[[int], np.ndarray] = aligned) -> None:
        self._view = LentView(allocate(parameter_bytes))
        self._view.buffer[:] = 1

    def pull(self, push: Push) -> Answer:
        """Lend the parameters."""
        return Answer(PushReply(sequence=push.base + 1), self._view)

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...

    def begin_push(self, push: Push) -> Callable[[np.ndarray], Answer]:
        """Accept anything."""
        return lambda contribution: self.pull(push)

    def enter(self, phase: Phase) -> StateVersion:
        """Refuse: not measured here."""
        raise HybridSyncError("not part of this measurement")

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Refuse: not measured here."""
        raise HybridSyncError("not part of this measurement")

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Refuse: not measured here."""
        raise HybridSyncError("not part of this measurement")

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        """Refuse: not measured here."""
        raise HybridSyncError("not part of this measurement")


def raw_frames(buffer: np.ndarray, chunk_bytes: int) -> Iterator[bytes]:
    """Yield plain slices."""
    view = buffer.data
    for start in range(0, view.nbytes, chunk_bytes):
        yield bytes(view[start : start + chunk_bytes])


def raw_drain(stream: Iterator[bytes], into: np.ndarray) -> None:
    """Copy plain slices in place."""
    view, position = into.data, 0
    for chunk in stream:
        end = position + len(chunk)
        view[position:end] = chunk
        position = end
    assert position == into.nbytes


class RawService(grpc.GenericRpcHandler):
    """The reference: a push stream and a pull stream of bytes."""

    def __init__(self, num_bytes: int, chunk_bytes: int) -> None:
        self._received, self._held, self._chunk_bytes = aligned(num_bytes), aligned(num_bytes), chunk_bytes
        self._received[:] = 1
        self._held[:] = 1

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call."""
        if handler_call_details.method == "/raw/Push":
            return grpc.stream_unary_rpc_method_handler(self._push)
        if handler_call_details.method == "/raw/Pull":
            return grpc.unary_stream_rpc_method_handler(self._pull)
        return None

    def _push(self, stream: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        raw_drain(stream, self._received)
        return b""

    def _pull(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return raw_frames(self._held, self._chunk_bytes)


def serve(num_bytes: int, chunk_bytes: int) -> None:
    """Serve the three backends and the reference until stdin closes; print their addresses as JSON."""
    services = {
        "push": [ParameterServicer(MemoryBackend(TINY_BYTES), num_bytes)],
        "pull": [ParameterServicer(MemoryBackend(num_bytes), TINY_BYTES)],
        "small": [ParameterServicer(MemoryBackend(SMALL_BYTES), SMALL_BYTES)],
        "raw": [RawService(num_bytes, chunk_bytes)],
    }
    servers = {name: make_server(handlers) for name, handlers in services.items()}
    for server, _ in servers.values():
        server.start()
    print(json.dumps({name: address for name, (_, address) in servers.items()}), flush=True)
    sys.stdin.read()
    for server, _ in servers.values():
        server.stop(grace=1).wait(START_SECS)


@contextlib.contextmanager
def server_process(num_bytes: int, chunk_bytes: int) -> Iterator[dict[str, str]]:
    """Run `serve` in a second process and yield its addresses."""
    command = [sys.executable, "-m", "benchmarks.transfer", "--serve", f"--bytes={num_bytes}"]
    command.append(f"--chunk_bytes={chunk_bytes}")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(START_SECS, process.kill)
        late.start()
        assert process.stdin is not None and process.stdout is not None
        try:
            line = process.stdout.readline()
            late.cancel()
            if not line:
                raise HybridSyncError(f"the serving process did not start within {START_SECS:g} s")
            yield json.loads(line)
        finally:
            late.cancel()
            process.stdin.close()


def seconds(action: Callable[[], Any]) -> float:
    """Return how long one call takes."""
    start = SYSTEM_CLOCK.monotonic()
    action()
    return SYSTEM_CLOCK.monotonic() - start


def measure(num_bytes: int, repeats: int, chunk_bytes: int) -> dict[str, Any]:
    """Return GB/s of ours and raw, their ratios, and the time of a small push."""
    ours, theirs, tiny = aligned(num_bytes), aligned(num_bytes), aligned(TINY_BYTES)
    small_out, small_in = aligned(SMALL_BYTES), aligned(SMALL_BYTES)
    for buffer in (ours, theirs, tiny, small_out):
        buffer[:] = 1
    push = Push(PhaseId(1, 1), worker=0, incarnation=1, units=(0,), base=0)
    with server_process(num_bytes, chunk_bytes) as addresses:
        pusher, puller = ParameterClient(addresses["push"]), ParameterClient(addresses["pull"])
        small = ParameterClient(addresses["small"])
        raw = make_channel(addresses["raw"])
        raw_push, raw_pull = raw.stream_unary("/raw/Push"), raw.unary_stream("/raw/Pull")
        actions: dict[str, Callable[[], Any]] = {
            "push": lambda: pusher.push_pull(push, ours, tiny),
            "raw_push": lambda: raw_push(raw_frames(theirs, chunk_bytes), timeout=CALL_SECS),
            "pull": lambda: puller.pull(push, ours),
            "raw_pull": lambda: raw_drain(raw_pull(b"", timeout=CALL_SECS), theirs),
        }
        times: dict[str, list[float]] = {name: [] for name in actions}
        for repeat in range(repeats + 1):
            for name in [*actions] if repeat % 2 else [*reversed(actions)]:
                took = seconds(actions[name])
                if repeat:  # the first round connects and touches pages
                    times[name].append(took)
        round_trips = [seconds(lambda: small.push_pull(push, small_out, small_in)) for _ in range(SMALL_CALLS)]
        for client in (pusher, puller, small, raw):
            client.close()
    rates = {f"{name}_gb_per_sec": num_bytes / statistics.median(took) / 1e9 for name, took in times.items()}
    return {
        "megabytes": num_bytes / 1e6,
        "repeats": repeats,
        "chunk_bytes": chunk_bytes,
        **rates,
        "push_ratio": statistics.median(times["raw_push"]) / statistics.median(times["push"]),
        "pull_ratio": statistics.median(times["raw_pull"]) / statistics.median(times["pull"]),
        "small_bytes": SMALL_BYTES,
        "small_push_pull_ms": statistics.median(round_trips) * 1e3,
    }


def main() -> None:
    """Measure, print a table, and a last line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk_bytes", type=int, default=1 << 20, help="of the raw stream")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.serve:
        serve(flags.bytes, flags.chunk_bytes)
        return
    figures = measure(int(flags.megabytes * 1e6), flags.repeats, flags.chunk_bytes)
    for way in ("push", "pull"):
        print(
            f"{way}: {figures[f'{way}_gb_per_sec']:.2f} GB/s, "
            f"raw stream {figures[f'raw_{way}_gb_per_sec']:.2f} GB/s, ratio {figures[f'{way}_ratio']:.2f}"
        )
    print(f"push_pull of {SMALL_BYTES} bytes each way: {figures['small_push_pull_ms']:.2f} ms")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
