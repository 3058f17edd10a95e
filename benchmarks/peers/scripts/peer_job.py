"""What the scripts share: arguments, the digits, child processes and their results.

Only NumPy and the standard library are imported, and of the project what is measured and the framework's clock,
which need nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.work import NUM_LEAVES
from hybridsync.core.clock import SYSTEM_CLOCK, pause

RESULT = "RESULT "
JOB_SECS = 300.0
"""How long a group of processes may take."""
SLOW_RANK = 0
"""Number of the worker that `--slowdown` slows."""
WARM_CALLS = 2
MOST_UNITS = 60_000
"""Units that a pipe holds a byte for."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
now = SYSTEM_CLOCK.monotonic


def parsed() -> argparse.Namespace:
    """Return the arguments; a child gets those of its parent, and its role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["digits", "transfer", "allreduce"])
    parser.add_argument("--data", default="", help="digits: images and initial parameters, .npz")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--unit_size", type=int, default=32)
    parser.add_argument("--units", type=int, default=0, help="digits: batches of all workers together")
    parser.add_argument("--compute_secs", type=float, default=0.0)
    parser.add_argument("--slowdown", type=float, default=1.0, help="of worker 0")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--megabytes", type=float, default=2.0, help="transfer: of all parameters")
    parser.add_argument("--floats", type=int, default=85_000, help="allreduce: in the buffer")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--tcp", action="store_true", help="torch_rpc: plain TCP")
    for name, kind in (("role", str), ("rank", int), ("port", int), ("pipe", int), ("extra", str)):
        parser.add_argument(f"--{name}", type=kind, default=kind(), help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass(frozen=True)
class Data:
    """The digits as our own job has them, and its initial parameters.

    Args:
      images, test_images: float32 (examples, 64), 0 to 1.
      labels, test_labels: int64 (examples,).
      params: float32, kernel (inputs, outputs) and bias (outputs,) of each layer in turn.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    params: list[np.ndarray]

    @classmethod
    def read(cls, path: str) -> Data:
        """Return what `benchmarks.peers.ours.write_digits` wrote."""
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        params = [arrays.pop(name) for name in sorted(name for name in arrays if name.startswith("param"))]
        return cls(**arrays, params=params)

    def accuracy(self, params: Sequence[np.ndarray]) -> float:
        """Return the share of test images that these parameters classify right."""
        hidden = self.test_images
        for index in range(0, len(params), 2):
            hidden = hidden @ params[index] + params[index + 1]
            if index + 2 < len(params):
                hidden = np.maximum(hidden, 0)
        return float((hidden.argmax(1) == self.test_labels).mean())


class Device:
    """Emulates a device that takes a fixed time for each unit: what the gradient leaves of it is slept."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self.secs = options.compute_secs * (options.slowdown if rank == SLOW_RANK else 1.0)

    def finish(self, began: float) -> None:
        """Sleep until the unit that began then has taken its time; returns at once where nothing is emulated."""
        if self.secs:
            pause(began + self.secs - now())


def leaf_floats(options: argparse.Namespace) -> int:
    """Return the length of each of the arrays of a transfer."""
    return round(options.megabytes * 1e6 / 4 / NUM_LEAVES)


def timed(call: Any, calls: int) -> list[float]:
    """Return how long each of these calls took, after a few that warm it up."""
    for _ in range(WARM_CALLS):
        call()
    secs = []
    for _ in range(calls):
        began = now()
        call()
        secs.append(now() - began)
    return secs


def free_port() -> int:
    """Return a port of the loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def units_in_a_pipe(units: int) -> int:
    """Return the end of a pipe from which processes read one byte for each unit they may compute, then none."""
    if units > MOST_UNITS:
        raise ValueError(f"a pipe holds {MOST_UNITS} units, not {units}; measure fewer")
    reader, writer = os.pipe()
    os.write(writer, bytes(units))
    os.close(writer)
    return reader


def take_unit(pipe: int) -> bool:
    """Return whether there was a unit left, and take it."""
    return bool(os.read(pipe, 1))


@contextlib.contextmanager
def children(
    module: str,
    roles: Sequence[tuple[str, int]],
    environments: Mapping[str, Mapping[str, str]] | None = None,
    **given: Any,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a process for each role and rank, with this one's arguments and those given; kill them at the end.

    Args:
      module: the script's `__spec__.name`.
      roles: of each process, and its number.
      environments: more variables, by role.
      given: further arguments.
    """
    common = {**os.environ, **ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    pipe = given.get("pipe")
    processes: list[subprocess.Popen[str]] = []
    try:
        for role, rank in roles:
            flags = [f"--{name}={value}" for name, value in {**given, "role": role, "rank": rank}.items()]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *sys.argv[1:], *flags],
                    env={**common, **(environments or {}).get(role, {})},
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=() if pipe is None else (pipe,),
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def results(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Wait for processes, and return what each of them has told.

    Raises:
      RuntimeError: one of them failed.
      ValueError: one of them told nothing.
    """
    found = []
    for process in processes:
        printed = process.communicate(timeout=JOB_SECS)[0]
        if process.returncode:
            raise RuntimeError(f"{process.args} ended with {process.returncode} and printed {printed[-1000:]!r}")
        found.append(last_result(printed))
    return found


def tell(**values: Any) -> None:
    """Print this process's result."""
    print(RESULT + json.dumps(values), flush=True)


def last_result(printed: str) -> dict[str, Any]:
    """Return what was told last in the lines that a process printed.

    Raises:
      ValueError: nothing was told.

    >>> last_result('a warning' + chr(10) + 'RESULT {"secs": 1.5}')
    {'secs': 1.5}
    """
    lines = [line for line in printed.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise ValueError(f"the process printed no line that begins with {RESULT!r}, but {printed[-1000:]!r}")
    return json.loads(lines[-1].removeprefix(RESULT))


def leave() -> None:
    """End this process at once: the threads of a framework may hold it for long, or end it with an error."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def module_name() -> str:
    """Return the name by which this script was started with `-m`."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "start the script with python -m"
    return spec.name


def data_of(options: argparse.Namespace) -> Data:
    """Return the digits that the arguments name.

    Raises:
      FileNotFoundError: there is no such file.
    """
    if not Path(options.data).is_file():
        raise FileNotFoundError(f"--data={options.data}: there is no such file; name the .npz of the digits")
    return Data.read(options.data)
