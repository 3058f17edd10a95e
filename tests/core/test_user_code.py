"""A process that user code forks ends where it comes back from there; other processes that it starts go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAIT_SECS = 60.0
PROGRAM = """
import atexit, os, subprocess, sys, threading, multiprocessing
from hybridsync.core.user_code import ends_forks
atexit.register(lambda: os.write(1, b"atexit;"))

def fork_and(child):
    pid = os.fork()
    if pid == 0:
        child()
    else:
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=";", flush=True)

def leave(code):
    sys.exit(code)

def returns(): fork_and(lambda: None)
def raises(): fork_and(lambda: 1 / 0)
def exits(): fork_and(lambda: leave(3))
def exits_with_a_text(): fork_and(lambda: leave("no"))
def ends_itself(): fork_and(lambda: os._exit(5))
def in_a_generator():
    def batches():
        returns()
        yield 1
    assert [*batches()] == [1]
def of_multiprocessing():
    process = multiprocessing.get_context("fork").Process(target=print, args=("at work",), kwargs={"end": ";"})
    process.start()
    process.join()
    print("child", process.exitcode, end=";", flush=True)
def of_subprocess():
    print("child", subprocess.run([sys.executable, "-c", "raise SystemExit(6)"]).returncode, end=";", flush=True)

def guarded():
    try:
        ends_forks(globals()[sys.argv[1]])()
        print("back", end=";", flush=True)
    except BaseException as error:
        print("caught", type(error).__name__, end=";", flush=True)

if sys.argv[2] == "thread":
    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
else:
    guarded()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize(
    ("what", "child"),
    [
        ("returns", "child 0;"),
        ("raises", "child 1;"),
        ("exits", "child 3;"),
        ("exits_with_a_text", "child 1;"),
        ("ends_itself", "child 5;"),
        ("in_a_generator", "child 0;"),
        ("of_multiprocessing", "at work;child 0;"),
        ("of_subprocess", "child 6;"),
    ],
)
def test_a_forked_process_never_comes_back(what: str, child: str, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, where],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
    )
    assert done.stdout == f"{child}back;atexit;", done.stderr
    assert ("which user code of process" in done.stderr) == (what not in SILENT), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (what == "raises")


SILENT = ("exits", "exits_with_a_text", "ends_itself", "of_multiprocessing", "of_subprocess")
"""Processes that end as they mean to; of the others the role's log says why they have ended."""
