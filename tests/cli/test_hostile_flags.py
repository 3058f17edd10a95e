"""No value of any flag of any subcommand ends in a traceback, whatever the other values are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hybridsync.cli import COMMANDS
from tests.command_lines import command_lines
from tests.multiprocess.job import ROOT, users_environment

HUGE = "99999999999999999999"
VALUES = (
    "",
    "x",
    "-1",
    "0",
    HUGE,
    f"-{HUGE}",
    "1e400",
    "nan",
    "-inf",
    "\x1b[31m",
    "/dev/full",
    "/dev/null/x",
    300 * "é",
)
TALLY = (f"--config={ROOT}/configs/tally.py", "--set=workload=20", "--workers=1")
EXIT_CODES = (0, 1, 70, 130)

BASES: dict[str, Callable[[Path], Sequence[str]]] = {
    "train": lambda folder: (*TALLY, f"--workdir={folder}/file/run"),
    "host": lambda folder: (*TALLY, f"--workdir={folder}/file/run"),
    "simulate": lambda folder: (*TALLY, f"--events={folder}/file/events"),
    "tune": lambda folder: (*TALLY, f"--scenario={folder}/file"),
    "export": lambda folder: (str(folder), f"--out={folder}/file/model"),
    "report": lambda folder: (str(folder),),
    "replay": lambda folder: (str(folder),),
    "status": lambda folder: (str(folder),),
    "logs": lambda folder: (str(folder),),
    "switch": lambda folder: (str(folder), "asp"),
    "stop": lambda folder: (str(folder),),
    "certs": lambda folder: ("init", f"--folder={folder}/certs"),
}
"""Command line of each subcommand that is refused at its end, so that no value leads to hours of work.

The logs alone are really there.
"""

SIMULATOR = ("hybridsync.lab.simulator.campaign", "hybridsync.training.run")
IMPORTED = {
    "simulate": SIMULATOR,
    "tune": SIMULATOR,
    "export": ("hybridsync.workdir.export",),
    "train": ("hybridsync.trainer",),
}

HERE = {("train", "workdir"): ("--runtime=inprocess",)}
"""Flags that go with good values, so that the run is a short one; test_entries.py runs both runtimes."""


def flags_of(command: str) -> list[str]:
    """Return the flags that `--help` of a subcommand lists; absl holds those of one subcommand a process."""
    program = (
        f"from hybridsync.cli import {command} as module; from absl import flags\n"
        "print(*(flag.name for flag in flags.FLAGS.get_key_flags_for_module(module)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.timeout(600)  # hundreds of processes
@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_ends_in_a_traceback(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "chief-0.log").write_text("a line\n")
    faults = {}
    with command_lines(tmp_path, command, *IMPORTED.get(command, ()), cwd=tmp_path) as answer:
        for flag in flags_of(command):
            for value in VALUES:
                done = answer(*BASES[command](tmp_path), *HERE.get((command, flag), ()), f"--{flag}={value}")
                text = done.stdout + done.stderr
                if "Traceback" in text or done.returncode not in EXIT_CODES or not text.strip():
                    faults[f"--{flag}={value}"] = done.returncode, text[-500:]
    assert faults == {}


def test_more_lines_than_a_log_has_show_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "chief-0.log").write_text("a line\n")
    with command_lines(tmp_path, "logs") as logs:
        assert logs(str(tmp_path), f"--lines={HUGE}").stdout == "== chief-0\na line\n"


@pytest.mark.parametrize("command", ["", "--help", "--version", "logs", "train --help"])
@pytest.mark.parametrize("redirections", [">/dev/full", ">&-", "| true", "<&- >&- 2>&-"])
def test_no_command_ends_in_a_traceback_without_its_streams(command: str, redirections: str) -> None:
    shell = f'set -o pipefail; "$0" -m hybridsync {command} {redirections}'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable],
        cwd=ROOT,
        env=users_environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert done.returncode in (*EXIT_CODES, 141)


IMPORTS = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the test may ignore it
found, named = builtins.__import__, sys.argv[1]
def interrupted(name, *rest):
    if name == named:
        os.kill(os.getpid(), signal.SIGINT)
    return found(name, *rest)
from hybridsync import cli
builtins.__import__ = interrupted
sys.argv = ["hybridsync", "train"]
cli.main()
"""


@pytest.mark.parametrize("module", ["absl", "hybridsync.config", "hybridsync.runtime.processes"])
def test_ctrl_c_while_a_command_is_imported_ends_it_with_one_line(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, module], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
