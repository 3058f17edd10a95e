"""The parts for a training loop of one's own: in a Python without packages, and as docs/parts.md says."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridsync.core.errors import EXIT_FAILED
from hybridsync.core.work_deadlines import COMPILE_SECS
from hybridsync.stragglers import Detector
from hybridsync.watchdog import Watchdog
from tests.doc_pages import ROOT, blocks
from tests.telemetry.clocks import ManualClock

END_SECS = 120.0

BARE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import doctest
import hybridsync.stragglers, hybridsync.watchdog
for module in (hybridsync.stragglers, hybridsync.watchdog):
    assert doctest.testmod(module).attempted >= 2
    assert doctest.testmod(module).failed == 0
ours = ({str(ROOT)!r}, sys.base_prefix)
files = {{name: getattr(module, "__file__", None) or sys.base_prefix for name, module in sys.modules.items()}}
print([name for name, file in files.items() if not file.startswith(ours)])
"""


def python(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=END_SECS, check=False)


def test_they_import_and_work_in_a_python_without_packages() -> None:
    done = python(BARE, "-I", "-S")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert python("import numpy", "-I", "-S").returncode == 1, "a package would be found"


def test_a_rank_is_flagged_once_and_cleared_once() -> None:
    detector = Detector()
    detector.begin(range(4))
    decisions = []
    for step in range(400):
        for rank in range(4):
            decisions += detector.observe(rank, [0.06 if rank == 1 and 100 <= step < 250 else 0.02])
    assert [(found.worker, found.flagged) for found in decisions] == [(1, True), (1, False)]


def test_the_page_of_the_detector_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block = blocks("docs/parts.md")[0]
    exec(block, {"seconds_of_each_rank": lambda step: [0.02, 0.02, 0.08 if step < 100 else 0.02, 0.02]})  # noqa: S102 the page's own block
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" at step ")[0] for line in said] == ["rank 2 is slow", "rank 2 is well again"]


def test_the_page_of_the_watchdog_runs() -> None:
    import jax.numpy as jnp

    block = blocks("docs/parts.md")[1]
    exec(block, {"train_step": jnp.float32})  # noqa: S102 the page's own block


STANDS = """
import sys, time
from hybridsync.watchdog import Watchdog
def train_step_that_hangs(event):
    event.wait()
def main():
    import threading
    over = threading.Event()
    file = open(sys.argv[1], "w")
    with Watchdog(0.5, file=file, ends=sys.argv[2] == "ends") as watchdog:
        watchdog.beat(16)
        watchdog.beat(17)
        threading.Thread(target=until, args=(over, sys.argv[1]), daemon=True).start()
        train_step_that_hangs(over)
        watchdog.beat(18)
        watchdog.beat(19)
    print("ended by itself")
def until(over, path):
    # The step goes on once the report is whole; a second report would come by then as well.
    while "main" not in open(path).read():
        time.sleep(0.01)
    time.sleep(1.0)
    over.set()
main()
"""


def stands(folder: Path, how: str) -> tuple[subprocess.CompletedProcess[str], str]:
    command = [sys.executable, "-c", STANDS, str(folder / "stacks"), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=END_SECS, check=False)
    return done, (folder / "stacks").read_text()


def test_a_standstill_is_reported_once_with_the_last_step_and_all_stacks(tmp_path: Path) -> None:
    done, text = stands(tmp_path, "goes on")
    assert (done.returncode, done.stdout) == (0, "ended by itself\n"), done.stderr
    first, *stacks, last = text.splitlines()
    assert re.match(
        r"no progress for [\d.]+ s after step 17, and the limit is 0\.5 s\. Stacks of all threads follow", first
    )
    thread = re.findall(r"runs in (0x[0-9a-f]{16}):$", first)[0]
    assert "in train_step_that_hangs" in "\n".join(stacks).split(f"hread {thread}")[1]
    assert text.count("no progress") == 1
    assert re.fullmatch(r"a step has ended again, after [\d.]+ s", last)


def test_the_process_ends_where_that_is_asked_for(tmp_path: Path) -> None:
    done, text = stands(tmp_path, "ends")
    assert (done.returncode, done.stdout) == (EXIT_FAILED, "")
    assert "after step 17" in text and "in train_step_that_hangs" in text


def test_the_first_step_may_compile() -> None:
    clock = ManualClock()
    watchdog = Watchdog(10.0, clock=clock)
    watchdog._dog.push(watchdog._loop)

    def overdue_after(secs: float) -> list[str]:
        found: list[str] = []
        for _ in range(int(secs)):
            clock.advance(1.0)
            found += [each.name for each in watchdog._dog.find_overdue()]
        return found

    assert overdue_after(COMPILE_SECS) == []
    assert overdue_after(1) == ["before its first step"]
    watchdog.beat("a")
    assert overdue_after(10) == []
    assert overdue_after(1) == ["after step a"]
    watchdog.beat()
    assert overdue_after(11) == ["after a step"]


def test_a_beat_costs_little() -> None:
    with Watchdog(1000.0) as watchdog:
        began = time.perf_counter()
        for step in range(10_000):
            watchdog.beat(step)
        assert time.perf_counter() - began < 1.0, "100 us each, on a machine that is busy"


@pytest.mark.parametrize("limit_secs", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit_secs: float) -> None:
    with pytest.raises(ValueError, match="give seconds above 0"):
        Watchdog(limit_secs)
