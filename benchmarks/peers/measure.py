"""Measures every system on every work, in turns, and writes down what was found after each measurement."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT, load, steady_rate
from benchmarks.peers import environments, ours
from benchmarks.peers.figures import Failure, Measurement, Results, calls_per_sec, kept
from benchmarks.peers.scripts.peer_job import last_result
from benchmarks.peers.systems import OURS, SYSTEMS, System
from benchmarks.peers.work import (
    LOCKSTEP,
    MOMENTUM,
    OPERATIONS,
    RATE,
    UNIT_SIZE,
    WORKERS,
    AllReduce,
    Digits,
    Transfer,
    Work,
    case_of,
)

SCRIPT_SECS = 300.0
KILL_SECS = 10.0
MOST_REASON_CHARS = 2000
Found = dict[tuple[str, str], tuple[float, float | None]]
"""Figure and accuracy by case and system."""


def run(works: Sequence[Work], names: Sequence[str], rounds: int, out: Path) -> Results:
    """Measure all works by all systems that do them, and return the results, which `out` holds as well.

    In each round every work is measured by ours and by every peer before the next work begins; who begins changes from
    round to round.

    Args:
      works: what to measure.
      names: systems to measure.
      rounds: how often.
      out: results file; written anew after each work.
    """
    own = [f"{name}=={version(name)}" for name in ("hybridsync", "jax", "flax", "optax", "grpcio", "numpy")]
    pins = {OURS: own} | {name: environments.pins(name) for name in environments.ENVIRONMENTS}
    results = Results(machine(), pins, rounds)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits.npz"
        ours.write_digits(data)
        for number in range(rounds):
            for work in works:
                for name in in_turn([name for name in names if SYSTEMS[name].does(work)], number):
                    measure_one(work, name, number, data, results)
                results.write(out)
    return results


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Return the names in their order, from another one on in each round.

    >>> in_turn(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]


def measure_one(work: Work, name: str, number: int, data: Path, results: Results) -> None:
    """Measure one work by one system; add and print what came out, or why nothing did."""
    try:
        found = found_by_ours(work, name) if not SYSTEMS[name].environment else found_by_peer(work, name, data)
    except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
        reason = str(error)[-MOST_REASON_CHARS:]
        results.failures.append(Failure(work.name, name, number, reason))
        print(f"round {number}  {work.name:<20} {name:<14} failed: {reason}", flush=True)
        return
    at = round(load(), 2)
    for (case, system), (figure, accuracy) in found.items():
        results.measurements.append(Measurement(case, system, number, float(f"{figure:.5g}"), at, accuracy))
        said = "" if accuracy is None else f"  accuracy {accuracy:.3f}"
        print(f"round {number}  {case:<26} {system:<16} {figure:>10.4g}{said}  load {at:.1f}", flush=True)


def found_by_ours(work: Work, name: str) -> Found:
    """Measure one of our own systems."""
    match work:
        case Digits():
            found: Found = {}
            for kind in SYSTEMS[name].digits:
                rate, accuracy = ours.digits(work, kind)
                found[case_of(work, kind), name] = rate, round(accuracy, 4)
            return found
        case Transfer():
            flags = [f"--megabytes={work.megabytes}", f"--calls={work.calls}"]
            told = script(Path(sys.executable), "benchmarks.peers.our_transfer", flags)
            return transfer_figures(work, name, told)
        case AllReduce():
            return {(case_of(work), system): (figure, None) for system, figure in ours.sums(work).items()}


def found_by_peer(work: Work, name: str, data: Path) -> Found:
    """Measure a peer by its script, in its environment.

    Raises:
      RuntimeError: its environment is not set up, or its script failed.
    """
    system = SYSTEMS[name]
    python = environments.interpreter(system.environment)
    if python is None:
        raise RuntimeError(
            f"the environment {system.environment} is not set up: run python -m benchmarks.peers setup "
            f"{system.environment}"
        )
    told = script(
        python, f"benchmarks.peers.scripts.{system.script}", [*arguments(work, system, data), *system.options]
    )
    match work:
        case Digits():
            (kind,) = system.digits
            updates = steady_rate(told["ends"], len(told["ends"]))
            figure = updates * told["units_per_update"] * UNIT_SIZE
            return {(case_of(work, kind), name): (figure, round(told["accuracy"], 4))}
        case Transfer():
            return transfer_figures(work, name, told)
        case AllReduce():
            medians = [statistics.median(kept(secs)) for secs in told["secs"]]
            return {(case_of(work), name): (1e3 * statistics.median(medians), None)}


def arguments(work: Work, system: System, data: Path) -> list[str]:
    """Return what a peer's script is told of a work."""
    match work:
        case Digits():
            rate = RATE if system.digits == (LOCKSTEP,) else RATE / WORKERS
            return [
                "digits",
                f"--data={data}",
                f"--workers={WORKERS}",
                f"--unit_size={UNIT_SIZE}",
                f"--units={work.units}",
                f"--compute_secs={work.compute_secs}",
                f"--slowdown={work.slowdown}",
                f"--rate={rate}",
                f"--momentum={MOMENTUM}",
            ]
        case Transfer():
            return ["transfer", f"--megabytes={work.megabytes}", f"--calls={work.calls}", f"--momentum={MOMENTUM}"]
        case AllReduce():
            return ["allreduce", f"--workers={WORKERS}", f"--floats={work.floats}", f"--calls={work.calls}"]


def transfer_figures(work: Transfer, name: str, told: Mapping[str, Sequence[float]]) -> Found:
    """Return the GB a second of each operation, from how long its calls took."""
    return {
        (case_of(work, operation), name): (calls_per_sec(told[operation]) * work.megabytes_of(operation) / 1e3, None)
        for operation in OPERATIONS
    }


def script(python: Path, module: str, flags: Sequence[str]) -> dict[str, Any]:
    """Run a script to its end, and return its result; what it started ends with it.

    Raises:
      RuntimeError: it failed, or took longer than SCRIPT_SECS; holds the end of what it printed.
      ValueError: it told nothing.
    """
    command = [str(python), "-m", module, *flags]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            printed = process.communicate(timeout=SCRIPT_SECS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed = process.communicate(timeout=KILL_SECS)[0]
            raise RuntimeError(f"{module} took longer than {SCRIPT_SECS:g} s: {printed[-1000:]}") from None
        finally:
            if process.poll() is None:  # this program is asked to end
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {printed[-1000:]}")
    return last_result(printed)


def machine() -> dict[str, str]:
    """Return what the measurements ran on."""
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "processor": next(_processor(), platform.machine()),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "accelerator": "none used",
    }


def _processor() -> Iterator[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            yield line.partition(":")[2].strip()
