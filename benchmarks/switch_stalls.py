"""What switches cost: `python -m benchmarks.switch_stalls [RUN ...]`.

With workdirs of runs, prints their switches from timeline.json and events.jsonl. Without, first makes two
runs with real processes and many switches between BSP and ASP, in both directions: digits, and an MLP of 25
million parameters with momentum, little compute in either. A switch's stall is what
`hybridsync.lab.report.stalls` says; compiling is to happen before it, so the longest compile time of a
switch, which counts what the phase's entry waited for, is held against 0. Checkpoints of the large model
have 200 MB; a switch waits until the one before has been committed, which is no part of its stall.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs import DIGITS, Row, load, report, train
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.report.stalls import SwitchStall, percentile, read_stalls

SYNTHETIC = "configs/synthetic.py"
LARGE = ("--set", "model.hidden=4096,3072", "--set", "unit_size=4")


def main(arguments: Sequence[str]) -> int:
    """Print the switches of the named runs, or make runs and hold them against the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="workdirs of finished runs")
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--digits_units", type=int, default=200, help="in each phase")
    parser.add_argument("--large_units", type=int, default=16, help="in each phase; 0 leaves the large model out")
    options = parser.parse_args(arguments)
    try:
        if options.runs:
            print_stalls([stall for workdir in options.runs for stall in read_stalls(workdir)])
        else:
            measure(options)
    except HybridSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def measure(options: argparse.Namespace) -> None:
    """Make the runs, print their switches, and report."""
    settings: list[tuple[str, str, Sequence[str], int, float]] = [("digits", DIGITS, (), options.digits_units, 0.5)]
    if options.large_units:
        settings.append(("25 million parameters", SYNTHETIC, LARGE, options.large_units, 2.0))
    rows = []
    for name, config, flags, units, target in settings:
        stalls = switched_run(options, config, flags, units)
        print(f"{name}:")
        print_stalls(stalls)
        rows += [Row(f"{name}: switches seen", len(stalls), "", ">=", options.switches, load())]
        for title, some in by_direction(stalls).items():
            secs = [stall.stall_secs for stall in some]
            rows += [
                Row(f"{name}: {title}, p50", percentile(secs, 0.5), "s", load=load()),
                Row(f"{name}: {title}, p95", percentile(secs, 0.95), "s", "<=", target, load()),
            ]
        compiled = max(stall.compile_secs or 0.0 for stall in stalls)
        rows.append(Row(f"{name}: compile_secs, longest", compiled, "s", "<=", 0.0, load()))
    report(f"Stall of a switch, {options.workers} processes", rows, switches=options.switches)


def switched_run(options: argparse.Namespace, config: str, flags: Sequence[str], units: int) -> list[SwitchStall]:
    """Run a plan of equal phases, alternating `bsp` and `asp`, and return its switches."""
    num_phases = options.switches + 1
    stages = [("bsp", "asp")[index % 2] for index in range(num_phases)]
    plan = ",".join([*(f"{stage}:{100 / num_phases:.6f}%" for stage in stages[:-1]), stages[-1]])
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        size = ["--set", f"workload={units * num_phases}", f"--workers={options.workers}"]
        train(workdir, f"--plan={plan}", *size, *flags, config=config)
        return read_stalls(workdir)


def by_direction(stalls: Sequence[SwitchStall]) -> dict[str, list[SwitchStall]]:
    """Return the switches of each direction by its name, and all of them as the last entry."""
    found: dict[str, list[SwitchStall]] = {}
    for stall in sorted(stalls, key=lambda stall: (stall.before, stall.after)):
        found.setdefault(f"{stall.before}->{stall.after}", []).append(stall)
    return {**found, "all": list(stalls)}


def print_stalls(stalls: Sequence[SwitchStall]) -> None:
    """Print a line for each switch, and the percentiles of each direction."""
    print(f"{'phase':>5}  {'switch':<16} {'stall':>9} {'by chief':>9} {'compile':>9} {'unit':>9}   [ms]")
    for stall in stalls:
        cells = (stall.stall_secs, stall.event_stall_secs, stall.compile_secs, stall.unit_secs)
        numbers = " ".join(f"{'-' if cell is None else format(cell * 1e3, '.1f'):>9}" for cell in cells)
        print(f"{stall.phase:>5}  {stall.before + '->' + stall.after:<16} {numbers}")
    for title, some in by_direction(stalls).items():
        if some:
            secs = [stall.stall_secs for stall in some]
            p50, p95 = percentile(secs, 0.5) * 1e3, percentile(secs, 0.95) * 1e3
            print(f"{title}: {len(secs)} switches, stall p50 {p50:.1f} ms, p95 {p95:.1f} ms")
        else:
            print(f"{title}: no switches")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
