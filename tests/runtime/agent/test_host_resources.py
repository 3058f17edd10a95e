"""A role's process has its share of the cores, and its large arrays lie in huge pages."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.runtime.agent import host_resources
from hybridsync.runtime.agent.fork_server import ForkServerClient
from hybridsync.runtime.agent.host_resources import check_xla_flags, share_of_cores, xla_threads
from hybridsync.runtime.agent.role_process import RoleProcess
from tests.runtime.supervised import WAIT_SECS

BYTES = 1 << 26
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CALLS = 8
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NEEDS_HUGE_PAGES = pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text() or platform.libc_ver() < ("glibc", "2.35"),
    reason="no huge pages on this kernel, or a C library that does not ask for them",
)

MEASURES = f"""from hybridsync.runtime.agent import fork_server
fork_server.connect().serve('jax')
import json, os, resource
from pathlib import Path
import jax, jax.numpy as jnp
program = jax.jit(lambda a: jnp.stack((a, a + 1)))
given = jnp.zeros({BYTES} // 8, jnp.float32)
before = 0
for call in range({CALLS}):
    if call == {CALLS} // 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(program(given))
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
names = [task.read_text().strip() for task in Path('/proc/self/task').glob('*/comm')]
print(json.dumps([names.count('tf_XLAEigen'), faults / ({CALLS} / 2), os.environ['GLIBC_TUNABLES']]))
"""

COLLECTS = """import gc
from hybridsync.runtime.agent import fork_server
searched = [0]
def collects(phase, info):
    if phase == 'start':
        searched.append(sum(len(gc.get_objects(generation)) for generation in range(info['generation'] + 1)))
gc.callbacks.append(collects)
fork_server.connect().serve('jax')
import json
print(json.dumps([max(searched), gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled()]))
"""


def measured(folder: Path, *counts: int) -> list[tuple[int, float, str]]:
    """Return XLA's threads, a call's page faults and the allocator's settings of roles with so many threads each."""
    found = []
    with contextlib.closing(
        ForkServerClient([sys.executable, "-c", MEASURES], folder / "fork-server.log")
    ) as fork_server_client:
        for count in counts:
            log = folder / f"{count}.log"
            process = RoleProcess(fork_server_client, "server", 0, 0, log, environment=xla_threads(count)).started()
            assert process.wait_ended(WAIT_SECS)
            assert process.reap() == 0, log.read_text()
            found.append(tuple(json.loads(log.read_text().splitlines()[-1])))
    return found


@NEEDS_HUGE_PAGES
def test_a_role_has_as_many_threads_as_it_was_given_and_its_results_lie_in_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setenv("PJRT_NPROC", "5")  # whoever starts a run asks for another number by its flag
    (one, faults, _), (three, _, _) = measured(tmp_path, 1, 3)
    assert (one, three) == (1, 3)
    assert faults < BYTES / PAGE_BYTES / 20


def test_what_the_user_tells_the_allocator_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")
    ((_, _, told),) = measured(tmp_path, 1)
    assert told == "glibc.malloc.mmap_threshold=65536"


@pytest.mark.parametrize(("cores", "workers", "share"), [(2, 4, 1), (2, 1, 2), (16, 2, 8), (8, 3, 2)])
def test_the_cores_that_a_run_may_use_are_divided_among_its_workers(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, share: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert share_of_cores(workers) == share


def test_a_python_that_does_not_answer_holds_no_run_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = (sys.executable, "-c", "import select; select.select([], [], [])")
    run = subprocess.run
    monkeypatch.setattr(host_resources, "_READING_SECS", 0.1)
    monkeypatch.setattr(subprocess, "run", lambda command, **given: run(hung, **given))
    check_xla_flags({**os.environ, "XLA_FLAGS": "--xla_no_such_flag=1"})


def test_a_role_is_forked_without_a_search_for_garbage_and_searches_what_it_makes_alone(tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    with contextlib.closing(
        ForkServerClient([sys.executable, "-c", COLLECTS], tmp_path / "fork-server.log")
    ) as fork_server_client:
        process = RoleProcess(fork_server_client, "server", 0, 0, log).started()
        assert process.wait_ended(WAIT_SECS)
        assert process.reap() == 0, log.read_text()
    at_once, kept, searched, collects = json.loads(log.read_text().splitlines()[-1])
    assert kept > 10 * at_once, "to look through all that is imported takes longer than a role's fork"
    assert kept > 10 * searched
    assert collects
