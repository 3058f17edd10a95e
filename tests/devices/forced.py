"""A process with several CPU devices, in which tests compute: JAX counts its devices once in a process.

The parent sends a line of JSON for each call, [name of a function in `cases.py`, its arguments], and gets one back,
{"result": ...} or {"error": text}.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CASE_SECS = 500.0  # where the test has no shorter time limit
NUM_DEVICES = 8


@contextmanager
def forced_devices(number: int = NUM_DEVICES) -> Iterator[Callable[..., Any]]:
    """Yield what calls a case by its name, with arguments, in a process with so many devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(number)}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # what is computed counts here, and how it is divided
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.devices.forced"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def call(name: str, *args: Any) -> Any:
        stdin.write(json.dumps([name, args]) + "\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], CASE_SECS)
        assert ready, f"{name}{args} has no result within {CASE_SECS:g} s"
        answer = json.loads(stdout.readline() or '{"error": "the process ended"}')
        assert "error" not in answer, answer["error"]
        return answer["result"]

    try:
        yield call
    finally:
        process.kill()
        process.communicate(timeout=60)


def main() -> None:
    """Answer calls until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a case prints
    from tests.devices import cases

    for line in sys.stdin:
        name, args = json.loads(line)
        try:
            answer = {"result": getattr(cases, name)(*args)}
        except Exception:  # noqa: BLE001 the test fails by it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
