"""BSP with real processes: the framework against bare loops, in turns: `python -m benchmarks.bsp_processes`.

Digits, 4 workers, units of 32. The framework is a whole `hybridsync train` job with plan `bsp`, of which the
steady rate counts. It sums over shared memory, and in a row of its own over gloo. The bare loops
(`benchmarks.bare_member`) are as many processes in a gloo process group, with the same batches, gradient and update
programs: one flat psum a step, and the naive psum of each leaf. Once as fast as it goes, once with *emulated* compute
of 20 ms a unit, where the ideal is workers x 32 / 0.02 examples a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import JOB_SECS, ROOT, Row, load, phase_rates, report, train
from hybridsync.runtime.wiring import HOST, SHARED_MEMORY, collectives_of

UNIT_SIZE = 32


def framework(workers: int, steps: int, compute_secs: float, collective: str) -> tuple[float, float]:
    """Return examples a second of a job: steady, and over its whole phase."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        flags = [f"--workers={workers}", "--plan=bsp", "--set", f"workload={steps * workers}"]
        flags += [f"--collective={collective}", f"--compute_secs={compute_secs}"]
        train(workdir, *flags, "--set", f"unit_size={UNIT_SIZE}")
        (phase,) = phase_rates(workdir)
    return phase.steady * UNIT_SIZE, phase.whole * UNIT_SIZE


def bare(workers: int, flat_steps: int, naive_steps: int, rounds: int, compute_secs: float) -> dict[str, list[float]]:
    """Return examples a second of each stretch of the bare loops, by name."""
    service = collectives_of(HOST).serve(tuple(range(workers)), "127.0.0.1:0")
    command = [sys.executable, "-m", "benchmarks.bare_member", f"--coordinator={service.address}"]
    command += [f"--members={workers}", f"--flat_steps={flat_steps}", f"--naive_steps={naive_steps}"]
    command += [f"--rounds={rounds}", f"--compute_secs={compute_secs}"]
    members = [
        subprocess.Popen([*command, f"--slot={slot}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for slot in range(workers)
    ]
    try:
        printed = [member.communicate(timeout=JOB_SECS)[0] for member in members]
    finally:
        for member in members:
            member.kill()
        service.stop()
    if any(member.returncode for member in members):
        raise RuntimeError(f"the bare loops ended with {[member.returncode for member in members]}")
    found = json.loads(printed[0].splitlines()[-1])
    return {name: [rate * workers * UNIT_SIZE for rate in rates] for name, rates in found.items()}


def measure(options: argparse.Namespace, compute_secs: float, steps: int) -> list[Row]:
    """Return the rows of one setting."""
    naive_steps = 0 if compute_secs else steps // 5
    steady, whole, loads, over_tcp = [], [], [], []
    loops: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        before, after = framework(options.workers, steps, compute_secs, SHARED_MEMORY)
        steady.append(before)
        whole.append(after)
        over_tcp.append(framework(options.workers, steps, compute_secs, HOST)[0])
        loads.append(load())
        for name, rates in bare(options.workers, steps // 2, naive_steps, 2, compute_secs).items():
            loops.setdefault(name, []).extend(rates)
        loads.append(load())
    at = max(loads)
    medians = {name: statistics.median(rates) for name, rates in loops.items()}
    framework_rate = statistics.median(steady)
    kind = f"emulated {compute_secs * 1e3:g} ms" if compute_secs else "digits"
    rows = [
        Row(f"{kind}: framework, steady", framework_rate, "examples/s", load=at),
        Row(f"{kind}: framework over gloo, steady", statistics.median(over_tcp), "examples/s", load=at),
        Row(f"{kind}: framework, whole phase", statistics.median(whole), "examples/s", load=at),
        *(Row(f"{kind}: bare loop, {name}", rate, "examples/s", load=at) for name, rate in medians.items()),
    ]
    over_flat = framework_rate / medians["flat"]
    if not compute_secs:
        over_naive = framework_rate / medians["naive"]
        rows.append(Row(f"{kind}: framework / naive", over_naive, "x", ">=", 3.0, load=at))
        return [*rows, Row(f"{kind}: framework / flat", over_flat, "x", load=at)]
    ideal = options.workers * UNIT_SIZE / compute_secs
    rows.append(Row(f"{kind}: framework / flat", over_flat, "x", ">=", 0.95, load=at))
    return [*rows, Row(f"{kind}: framework / ideal", framework_rate / ideal, "x", ">=", 0.60, load=at)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--emulated_steps", type=int, default=300)
    parser.add_argument("--compute_secs", type=float, default=0.02)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    rows = measure(options, 0.0, options.steps)
    rows += measure(options, options.compute_secs, options.emulated_steps)
    report(f"BSP, {options.workers} processes: framework against bare loops", rows, workers=options.workers)


if __name__ == "__main__":
    main()
