"""Sums among processes, shared memory against gloo, in turns: `python -m benchmarks.collectives`.

Four processes sum a float32 buffer again and again, as a lock-step step does: it is packed, summed, and the total is
read. Each kind's processes live through all rounds, and rounds of both kinds alternate. A figure is the median over
the members of their medians; the first and last tenth of a round's sums are left out. Every total is compared with the
ordered sum, bit for bit for shared memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.jobs import JOB_SECS, ROOT, SKIPPED_SHARE, Row, load, report
from hybridsync.collectives.backend import Place
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.plan import PhaseId
from hybridsync.runtime.wiring import HOST, SHARED_MEMORY, collectives_of


class Phase(NamedTuple):
    """Who sums (see `Membership`)."""

    members: tuple[int, ...]
    id: PhaseId = PhaseId(1, 1)
    device_choice: int = 0


def brought(slot: int, size: int) -> dict[str, Any]:
    """Return the contribution of one member."""
    return {"floats": {"grads": np.random.default_rng(slot).standard_normal(size).astype(np.float32)}, "ints": []}


def member(kind: str, address: str, slot: int, members: int, size: int) -> None:
    """Join, and sum as often as each line of standard input says; a line of milliseconds answers it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # gloo writes to standard output
    everybody, backend = tuple(range(members)), collectives_of(kind)
    make_collectives = backend.join(Place(address, slot, everybody, "127.0.0.1", backend.num_devices))
    from hybridsync.training.averaging import AveragedPart
    from hybridsync.training.buffer_layout import Layout

    contribution = brought(slot, size)
    state = AveragedPart((), (), ())
    layout = Layout.of(contribution)
    programs: Any = SimpleNamespace(contribution_layout=layout, state=state, moving=lambda state: state)
    communicator = make_collectives(programs).communicator(Phase(everybody))
    communicator.enter()
    parts = [brought(each, size)["floats"]["grads"] for each in everybody]
    ordered = parts[0]
    for part in parts[1:]:
        ordered = ordered + part
    for line in sys.stdin:
        took, total = [], contribution
        for _ in range(int(line)):
            started = SYSTEM_CLOCK.monotonic()
            total = communicator.sum(slot, contribution)
            took.append(1e3 * (SYSTEM_CLOCK.monotonic() - started))
        skipped = round(len(took) * SKIPPED_SHARE)
        told = {
            "median": statistics.median(took[skipped : len(took) - skipped]),
            "equal": bool(np.array_equal(total["floats"]["grads"], ordered)),
            "close": bool(np.allclose(total["floats"]["grads"], ordered, atol=1e-5)),
        }
        answers.write(json.dumps(told) + "\n")


def measure(size: int, members: int, sums: int, rounds: int) -> list[Row]:
    """Return the rows of one size."""
    figures: dict[str, list[float]] = {SHARED_MEMORY: [], HOST: []}
    processes: dict[str, list[subprocess.Popen[str]]] = {}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        services = {
            kind: collectives_of(kind).serve(tuple(range(members)), at_socket(Path(folder) / kind)) for kind in figures
        }
        try:
            for kind, service in services.items():
                command = [sys.executable, "-m", "benchmarks.collectives", f"--kind={kind}"]
                command += [f"--address={service.address}", f"--members={members}", f"--size={size}"]
                processes[kind] = [
                    subprocess.Popen(
                        [*command, f"--slot={slot}"],
                        cwd=ROOT,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                    for slot in range(members)
                ]
            for _ in range(rounds):
                for kind, joined in processes.items():
                    for process in joined:
                        assert process.stdin is not None
                        process.stdin.write(f"{sums}\n")
                        process.stdin.flush()
                    told = [json.loads(process.stdout.readline()) for process in joined if process.stdout is not None]
                    if not all(answer["equal" if kind == SHARED_MEMORY else "close"] for answer in told):
                        raise RuntimeError(f"the sum over {kind} is wrong: {told}")
                    figures[kind].append(statistics.median(answer["median"] for answer in told))
        finally:
            for process in (each for joined in processes.values() for each in joined):
                process.kill()
                process.communicate(timeout=JOB_SECS)
            for service in services.values():
                service.stop()
    name, at = f"{4 * size / 1e6:g} MB, {members} members", load()
    shared, gloo = (statistics.median(figures[kind]) for kind in (SHARED_MEMORY, HOST))
    spread = f"{min(figures[SHARED_MEMORY]):.2f} to {max(figures[SHARED_MEMORY]):.2f}"
    return [
        Row(f"{name}: shared memory ({spread})", shared, "ms", load=at),
        Row(f"{name}: gloo ({min(figures[HOST]):.2f} to {max(figures[HOST]):.2f})", gloo, "ms", load=at),
        Row(f"{name}: gloo / shared memory", gloo / shared, "x", load=at),
    ]


def main() -> None:
    """Measure and print, or be a member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--sums", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=0, help="float32 numbers; 0 for 340 kB, 2 MB and 20 MB")
    parser.add_argument("--kind", default="")
    parser.add_argument("--address", default="")
    parser.add_argument("--slot", type=int, default=0)
    options = parser.parse_args()
    if options.kind:
        member(options.kind, options.address, options.slot, options.members, options.size)
        return
    rows: list[Row] = []
    for size in [options.size] if options.size else [85_000, 500_000, 5_000_000]:
        sums = max(10, options.sums * 85_000 // max(85_000, size))
        rows += measure(size, options.members, sums, options.rounds)
    report(f"Sums among {options.members} processes", rows, workers=options.members)


if __name__ == "__main__":
    main()
