"""What the digests of buffers over TCP cost: pushes and pulls by `--link=tcp`, with and without them in turns.

`python -m benchmarks.digest_cost` measures between two processes over loopback what `benchmarks.links` does. Without
digests both ends take 0 for the digest of whatever it is; frames, checks and copies stay as they are. A ratio is that
of a call with digests to the call without them that was made beside it; its median and spread are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks import links
from benchmarks.jobs import Row, load, report
from benchmarks.peers.our_transfer import programs_of
from benchmarks.transfer import seconds
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.runtime.wiring import TCP
from hybridsync.transport.tcp import lanes

WITH, WITHOUT = "with digests", "without"
KINDS = (WITH, WITHOUT)
CALLS_PER_SEC_OF_100_MB = 3.0


@contextlib.contextmanager
def digests(kind: str) -> Iterator[None]:
    """Have connections of this process compute digests meanwhile, or take 0 for them."""
    real = lanes.xxhash
    if kind == WITHOUT:
        lanes.xxhash = SimpleNamespace(xxh3_64_intdigest=lambda data: 0)
    try:
        yield
    finally:
        lanes.xxhash = real


def serve(kind: str, folder: Path, num_bytes: int) -> None:
    """Serve as `benchmarks.links` does, until standard input ends."""
    with digests(kind):
        links.serve(TCP, folder, num_bytes)


def measure(num_bytes: int, calls: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each pair of calls, with digests and without, by name."""
    times: dict[str, list[tuple[float, float]]] = {}
    programs = programs_of(num_bytes / 1e6)
    with tempfile.TemporaryDirectory(dir="/tmp") as made, contextlib.ExitStack() as stack:
        actions: dict[str, dict[str, Callable[[], Any]]] = {}
        for kind in KINDS:
            folder = Path(made) / kind.split()[0]
            folder.mkdir(mode=0o700)
            program = ["-m", "benchmarks.digest_cost", f"--serve={kind}"]
            stack.enter_context(links.server_process(TCP, folder, num_bytes, program))
            with digests(kind):
                worker = links.Worker(TCP, folder, programs)
                worker.links["update"].pull(Push(PhaseId(1, 1), 0, 1, (), 0))
            for link in worker.links.values():
                stack.callback(link.close)
            actions[kind] = worker.actions()
        for index in range(calls + calls // 10 + 1):
            took: dict[str, dict[str, float]] = {}
            for kind in KINDS if index % 2 else KINDS[::-1]:
                with digests(kind):
                    for name, action in actions[kind].items():
                        took.setdefault(name, {})[kind] = seconds(action)
            if index > calls // 10:  # the first ones connect, compile and touch pages
                for name, pair in took.items():
                    times.setdefault(name, []).append((pair[WITH], pair[WITHOUT]))
    return times


def rows_of(megabytes: float, times: dict[str, list[tuple[float, float]]]) -> list[Row]:
    """Return a row for each figure."""
    rows = []
    for name, pairs in times.items():
        for index, kind in enumerate(KINDS):
            found = [pair[index] * 1e3 for pair in pairs]
            title = f"{megabytes:g} MB, {name}, {kind}"
            rows.append(_row(title, found, "ms"))
            if name != "push and pull without an update":
                rows.append(Row(title, megabytes / median(found), "GB/s", load=load()))
        ratios = [checked / unchecked for checked, unchecked in pairs]
        rows.append(_row(f"{megabytes:g} MB, {name}, {WITH} to {WITHOUT}", ratios, "x"))
    return rows


def _row(name: str, found: list[float], unit: str) -> Row:
    ascending = sorted(found)
    low, high = ascending[len(found) // 20], ascending[len(found) * 19 // 20]
    return Row(f"{name} ({low:.3g} to {high:.3g})", median(found), unit, load=load())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="2,100")
    parser.add_argument("--secs", type=float, default=20.0, help="about how long each size takes")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder, options.bytes)
        return
    rows = []
    for megabytes in map(float, options.megabytes.split(",")):
        calls = max(8, min(400, int(options.secs * CALLS_PER_SEC_OF_100_MB * 100 / megabytes)))
        rows += rows_of(megabytes, measure(int(megabytes * 1e6), calls))
    report("the cost of digests", rows)


if __name__ == "__main__":
    main()
