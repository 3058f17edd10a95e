"""Worker processes on a GPU beside plain JAX. Each command ends within ten minutes, and goes on where it was cut off.

    python -m benchmarks.gpu check       devices, versions, who has loaded CUDA, shares of memory, a killed worker
    python -m benchmarks.gpu transfers   the product's staging and plain NumPy, 2, 40 and 400 MB, both ways
    python -m benchmarks.gpu bare        one process of plain JAX: jitted step, donated
    python -m benchmarks.gpu trainer     the same models, one worker: `Trainer`, and worker processes
    python -m benchmarks.gpu shared      worker processes that share the GPU, under several protocols
    python -m benchmarks.gpu faults      kills of a worker, the server and the chief; switches
    python -m benchmarks.gpu page        docs/gpu.md from the results

Results are a JSON file a row in --out, by default docs/gpu. `trainer` and `shared` take their workloads from `bare`.
With --platform=cpu all of it runs on a CPU, which shows that it works, and no figure of a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import faults, page
from benchmarks.gpu.recipe import UNIT_SIZES
from benchmarks.gpu.rows import Rows, read
from benchmarks.gpu.run_figures import run_figures
from benchmarks.gpu.running import RECIPE
from benchmarks.jobs import ROOT, train
from hybridsync.core.clock import SYSTEM_CLOCK

BUDGET_SECS = 480.0
"""A command begins no measurement after so long; the next call goes on."""
CHILD_SECS = 240.0
LEAST_UNITS = 40
Case = tuple[str, Callable[[], dict[str, Any]]]


def in_process(platform: str, *arguments: str) -> dict[str, Any]:
    """Return what a measurement in a process of its own has found.

    Raises:
      RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.in_process", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=CHILD_SECS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def in_processes(platform: str, model: str, protocol: str, workers: int, units: int) -> dict[str, Any]:
    """Return the figures of a run of worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        settings = (f"model.name={model}", f"unit_size={UNIT_SIZES[model]}", f"workload={units}")
        train(
            workdir,
            f"--platform={platform}",
            f"--workers={workers}",
            f"--plan={protocol}",
            *(f"--set={setting}" for setting in settings),
            config=RECIPE,
        )
        return run_figures(workdir)


def units_of(out: Path, model: str, secs: float) -> int:
    """Return the units that plain JAX computes in so many seconds.

    Raises:
      RuntimeError: that was not measured.
    """
    for row in read(out):
        if row.name == f"bare/{model}" and not row.error:
            return max(LEAST_UNITS, int(row.figures["units/s"] * secs))
    raise RuntimeError(f"there is no row bare/{model} in {out}; run python -m benchmarks.gpu bare --models={model}")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the measurements of a command, in their order."""
    platform, workers, secs = options.platform, options.workers, options.seconds
    models, alone = options.models.split(","), functools.partial(in_process, platform)
    match options.command:
        case "check":
            yield "check/processes", functools.partial(faults.check, platform, workers)
        case "transfers":
            for megabytes in options.megabytes.split(","):
                yield f"transfers/{megabytes} MB", functools.partial(alone, "transfers", megabytes)
        case "bare":
            for model in models:
                yield f"bare/{model}", functools.partial(alone, "bare", model, str(secs))
        case "trainer":
            for model in models:
                units = units_of(options.out, model, secs)
                yield f"trainer/{model}/threads", functools.partial(alone, "trainer", model, str(units))
                yield f"trainer/{model}/processes", functools.partial(in_processes, platform, model, "bsp", 1, units)
        case "shared":
            for model in models:
                units = units_of(options.out, model, secs)
                for protocol in options.protocols.split(","):
                    name = f"shared/{model}/{protocol}"
                    yield name, functools.partial(in_processes, platform, model, protocol, workers, units)
        case "faults":
            for protocol, role in (("bsp", "worker 1"), ("asp", "worker 1"), ("asp", "server 0"), ("bsp", "chief 0")):
                yield f"faults/{role} in {protocol}", functools.partial(faults.kill, platform, protocol, role, workers)
            yield "faults/switches", functools.partial(faults.switch, platform, workers)


def main(arguments: list[str] | None = None) -> int:
    """Measure, or write the page; returns 1 where something is left to measure or has failed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*page.TITLES, "page"])
    parser.add_argument("--out", type=Path, default=page.RESULTS)
    parser.add_argument("--platform", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--models", default="digits,resnet32,decoder25m,decoder124m")
    parser.add_argument("--protocols", default="bsp,asp,preduce,psplus")
    parser.add_argument("--megabytes", default="2,40,400")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args(arguments)
    if options.command == "page":
        page.write(options.out)
        return 0
    started, left = SYSTEM_CLOCK.monotonic(), 0
    rows = Rows(options.out, in_process(options.platform, "device"))
    for name, measured in cases(options):
        if SYSTEM_CLOCK.monotonic() - started > BUDGET_SECS:
            print(f"{name}: left for the next call")
            left += 1
        else:
            left += bool(rows.measure(name, measured).error)
    return min(left, 1)


if __name__ == "__main__":
    sys.exit(main())
