"""Whose end ends a command: that of a parent whose job it is a part of, and of nobody it was made to outlive."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

INNER = """
import os, select
from hybridsync.runtime.end_signals import Parent, handled
before = os.getppid()
with handled(lambda number, frame: None):  # the command handles signals before it looks for its parent
    parent = Parent()
    assert not parent.has_ended()
    print("here", flush=True)
    while os.getppid() == before:
        select.select([], [], [], 0.01)
    print(parent.has_ended(), flush=True)
"""
OUTER = """
import json, signal, subprocess, sys
options = json.loads(sys.argv[1])
for number in (signal.SIGINT, signal.SIGHUP):  # a shell ignores them that runs the tests in its background
    signal.signal(number, signal.SIG_DFL)
for number in options.pop("ignored"):
    signal.signal(number, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", sys.argv[2]], **options)
"""
WAIT_SECS = 60.0


@pytest.mark.parametrize(
    ("ignored", "options", "ends"),
    [
        ([], {}, True),
        ([signal.SIGUSR1], {}, True),
        ([signal.SIGHUP], {}, False),
        ([signal.SIGINT], {}, False),
        ([], {"start_new_session": True}, False),
        ([], {"process_group": 0}, False),
    ],
    ids=["a script", "an ignored warning", "nohup", "the background of a script", "setsid", "a job of a shell"],
)
def test_a_command_ends_with_its_parent_unless_it_was_made_to_outlive_it(
    ignored: list[int], options: dict[str, object], ends: bool
) -> None:
    told = json.dumps({"ignored": ignored, **options})
    outer = subprocess.Popen([sys.executable, "-c", OUTER, told, INNER], stdout=subprocess.PIPE, text=True)
    assert outer.stdout is not None and outer.stdout.readline() == "here\n"
    outer.kill()
    assert outer.communicate(timeout=WAIT_SECS)[0] == f"{ends}\n"
