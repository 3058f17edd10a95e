"""The watchdog ends a process that hangs, says where, and leaves a slow, waiting or stopped one alone."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridsync.core.errors import EXIT_FAILED
from hybridsync.core.work_deadlines import COMPILE_SECS, Overdue
from hybridsync.runtime.role.watchdog import FLOOR_SECS, Watchdog
from tests.telemetry.clocks import ManualClock

PROGRAM = Path(__file__).with_name("watched_process.py")
END_SECS = 120.0
HUNG_SECS = 1.0
"""Floor of the limits where something hangs."""
SHORT_SECS = 1.5
"""Floor of the limits where nothing does: what takes long takes longer."""
STOP_FLOOR_SECS = 3.0


def test_production_gives_every_piece_of_work_thirty_seconds() -> None:
    assert FLOOR_SECS == 30.0


# --- what a process does, with a watchdog in it; a story fails where a bug is planted -----------------------------


def ended(story: str, floor_secs: float, bug: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), story, str(floor_secs), bug]
    return subprocess.run(command, capture_output=True, text=True, timeout=END_SECS, check=False)


def hangs(story: str, name: str, bug: str = "") -> None:
    done = ended(story, HUNG_SECS, bug)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    told = re.search(
        rf"the watchdog ends worker 3: {name} has made no progress for ([\d.]+) s, and its limit is ([\d.]+) s\. "
        "Stacks of all threads follow; what is overdue runs in 0x",
        done.stderr,
    )
    assert told is not None, done.stderr
    # The limit is longer than its floor where a busy machine made the units before slow; the time is rounded.
    assert HUNG_SECS <= float(told[2]) < float(told[1]) + 0.05
    thread = done.stderr.split("overdue runs in ")[1].split(":")[0]
    stack = done.stderr.split(f"hread {thread}")[1].split("\n\n")[0]
    assert "in the_users_own_code_hangs" in stack and "in end_process" not in stack
    assert "in end_process" in done.stderr, "the stacks are those of all threads"
    assert done.stdout.splitlines()[-1].startswith(f"the watchdog ends worker 3: {name} ")


def goes_on(story: str, bug: str = "") -> None:
    done = ended(story, SHORT_SECS, bug)
    assert done.returncode == 0, done.stderr


def is_stopped(bug: str = "") -> None:
    command = [sys.executable, str(PROGRAM), "stopped", str(STOP_FLOOR_SECS), bug]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT) is not None
            pidfd = os.pidfd_open(process.pid)
            is_over = select.select([pidfd], [], [], STOP_FLOOR_SECS + 1.0)[0]
            os.close(pidfd)
            process.send_signal(signal.SIGCONT)
            _, said = process.communicate(timeout=END_SECS)
            assert process.returncode == 0 and not is_over, said
        finally:
            process.kill()


@pytest.mark.parametrize(("story", "name"), [("unit", "unit 17"), ("compiling", "compiling the programs")])
def test_a_process_that_hangs_ends_with_70_and_names_the_work_and_where_it_stands(story: str, name: str) -> None:
    hangs(story, name)


@pytest.mark.parametrize("story", ["slow", "waits"])
def test_a_slow_or_waiting_process_goes_on(story: str) -> None:
    goes_on(story)


def test_a_process_that_was_stopped_goes_on() -> None:
    is_stopped()


@pytest.mark.parametrize(
    ("story", "sign"),
    [
        (lambda: goes_on("slow", "a_unit_may_take_as_long_as_the_last"), "unit 99 has made no progress"),
        (lambda: goes_on("slow", "the_first_unit_is_like_any_other"), "unit 0 has made no progress"),
        (lambda: goes_on("waits", "an_outer_piece_goes_on"), "the others has made no progress"),
        (lambda: is_stopped("a_stop_counts"), "a piece has made no progress"),
        (lambda: hangs("unit", "unit 17", "nobody_looks"), "0 == 70"),
    ],
)
def test_a_story_fails_where_a_bug_is_planted(story: Callable[[], None], sign: str) -> None:
    with pytest.raises(AssertionError, match=sign):
        story()


# --- pieces, by a clock of the test's own -------------------------------------------------------------------------


class Watched(Watchdog):
    """A watchdog that looks when the test says so; of what it finds, it notes the names."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__("server 0", clock=self.clock)

    def after(self, secs: int) -> list[str]:
        """Look once a second, for so long; return what the last look found."""
        found: list[str] = []
        for _ in range(secs):
            assert not found, f"{found} came early"
            self.clock.advance(1.0)
            found = [each.name for each in self.find_overdue()]
        return found


def test_the_end_of_an_inner_piece_is_progress_of_the_outer_one() -> None:
    watched = Watched()
    with watched.work("the loop", 40.0):
        assert watched.after(40) == []
        with watched.work("a unit", 100.0):
            assert watched.after(100) == []
        assert watched.after(40) == []
        with watched.work("a unit", 35.0):
            assert watched.after(36) == ["a unit"]
        assert watched.after(41) == ["the loop"]
    assert watched.after(100) == []


def test_progress_counts_for_the_innermost_piece() -> None:
    watched = Watched()
    watched.progress()
    with watched.work("the stage WATCH", 30.0):
        for _ in range(5):
            assert watched.after(30) == []
            watched.progress()
        assert watched.after(31) == ["the stage WATCH"]


def test_a_piece_that_compiles_has_the_time_of_compiling_from_then_on() -> None:
    watched = Watched()
    watched.compiles()
    piece = watched.begin("unit 17", 5.0)
    assert watched.after(29) == []
    watched.compiles()
    assert watched.after(int(COMPILE_SECS)) == []
    assert watched.after(1) == ["unit 17"]
    watched.end(piece)
    watched.begin("unit 18", 5.0)
    assert watched.after(31) == ["unit 18"]


def test_what_an_error_left_open_ends_with_the_piece_around_it() -> None:
    watched = Watched()
    with watched.work("the program", 1000.0):
        with pytest.raises(ValueError, match="the task"), watched.work("the loop over phases", 1000.0):
            watched.begin("unit 17", 1.0)
            raise ValueError("the task")
        assert watched.after(1000) == []


def test_a_thread_that_hangs_is_found_beside_one_that_works() -> None:
    watched, begun, over = Watched(), threading.Event(), threading.Event()

    def hang() -> None:
        with watched.work("the commit of 60 units", 45.0):
            begun.set()
            over.wait(END_SECS)

    thread = threading.Thread(target=hang)
    thread.start()
    try:
        assert begun.wait(END_SECS)
        with watched.work("the loop", 1000.0):
            assert watched.after(46) == ["the commit of 60 units"]
            (found,) = watched.find_overdue()
            assert found.thread == thread.ident
    finally:
        over.set()
        thread.join()
    assert watched.after(100) == []


def test_the_process_ends_even_where_nobody_hears_why() -> None:
    codes: list[int] = []

    def deaf(text: str) -> None:
        raise BrokenPipeError

    watchdog = Watchdog("worker 0", deaf, leave=codes.append)
    with pytest.raises(BrokenPipeError):
        watchdog.end_process([Overdue(threading.get_ident(), "a piece", 31.0, 30.0)])
    assert codes == [EXIT_FAILED]
