"""Gives each role's process its share of the host's cores, and huge pages. Importing loads no JAX.

XLA takes a thread for each core in every process, which suits one process that has the host to itself. And it maps the
memory of its results anew for each gradient: page by page, that took 28 to 41 % of the processor time measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

from hybridsync.core.errors import ConfigError

ENVIRONMENT: Mapping[str, str] = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
}
"""For a program whose process, or whose forks, are roles: large arrays lie in huge pages, in any thread."""


_FLAG_READERS = re.compile(r"(parse_flags_from_env|command_line_flags)\.cc:\d+\] ")

MOST_THREADS = 1024
"""Of XLA in a role."""


_READS_XLA_FLAGS = "from hybridsync.core import jax_internals; jax_internals.read_xla_flags()"
_READING_SECS = 60.0


def check_xla_flags(environment: Mapping[str, str] = os.environ) -> None:
    """Check that jaxlib takes XLA_FLAGS: it ends any process in which it meets a flag that it does not know.

    So a short process asks it, and only where the variable is set.

    Raises:
      ConfigError: jaxlib refuses the flags.
    """
    flags = environment.get("XLA_FLAGS")
    if not flags:
        return
    command = [sys.executable, "-c", _READS_XLA_FLAGS]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_READING_SECS,
        )
    except subprocess.TimeoutExpired:  # the roles find out
        return
    said = [line.partition("] ")[2] for line in done.stderr.splitlines() if _FLAG_READERS.search(line)]
    if done.returncode != 0 and said:  # else this jaxlib has no such call, and the roles find out
        raise ConfigError(f"XLA_FLAGS is {flags!r}, which jaxlib refuses: {said[0]}; take that flag out of XLA_FLAGS")


def forget_environment() -> None:
    """Remove settings meant for this process from its environment: processes that it starts are the user's."""
    for name, value in ENVIRONMENT.items():
        if os.environ.get(name) == value:
            del os.environ[name]


def share_of_cores(num_workers: int) -> int:
    """Return with how many threads each role computes: the cores that this process may run on, divided by workers.

    A server has as many as a worker. It computes while a worker waits for it, so its share would lie idle otherwise,
    in all of a lock-step phase.
    """
    return max(1, len(os.sched_getaffinity(0)) // num_workers)


def xla_threads(count: int | None) -> dict[str, str]:
    """Return the environment of a process in which XLA computes with `count` threads on CPU; None leaves it to XLA.

    XLA reads it when a process makes its client. It takes at least one for each local device.
    """
    return {} if count is None else {"PJRT_NPROC": str(count)}


def compute_in_calling_thread() -> None:
    """Have each thread of this process compute its programs itself. No thread asks for one and then does another thing.

    XLA would hand each program to a thread of its own, and both would wait for each other twice.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
