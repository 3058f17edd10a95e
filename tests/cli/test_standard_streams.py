"""Standard streams that are full, closed or without a reader, seen from processes that write to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.job import ROOT, users_environment

WRITES = """
import sys
from hybridsync.cli.standard_streams import outlast
outlast()
for _ in range(3):
    print("shown" * 10_000)
    print("said", file=sys.stderr, flush=True)
sys.exit(3)
"""

SHOWS = """
import sys
from hybridsync.cli.standard_streams import ends_with_its_reader

@ends_with_its_reader
def main(argv):
    for _ in range(100):
        print("shown" * 1_000)
    return 0

sys.exit(main([]))
"""
TRAIN = "import sys; from absl import app; from hybridsync.cli import train; sys.argv[0] = 'train'; app.run(train.main)"


def _run(program: str, redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a shell that redirects its streams; what is piped goes to a reader that leaves at once."""
    shell = f'set -o pipefail; "$0" -c "$1" "${{@:2}}" {redirections}'
    command = ["bash", "-c", shell, sys.executable, program, *arguments]
    return subprocess.run(command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "redirections", [">/dev/full 2>/dev/full", ">&- 2>&-", "2>&1 | true", ">&- 2>/dev/full", "2>&- | true"]
)
def test_a_program_goes_on_to_its_own_exit_code(redirections: str) -> None:
    assert _run(WRITES, redirections).returncode == 3


def test_what_can_be_written_is_written() -> None:
    done = _run(WRITES, "2>/dev/full")
    assert done.stdout == ("shown" * 10_000 + "\n") * 3 and done.returncode == 3
    assert _run(WRITES, ">/dev/full").stderr == "said\n" * 3


def test_a_result_that_nobody_reads_ends_its_command_quietly() -> None:
    done = _run(SHOWS, "| true")
    assert (done.returncode, done.stderr) == (141, "")
    assert _run(SHOWS, "2>&- | true").returncode == 141
    assert _run(SHOWS, ">&-").returncode == 0, "nobody asked for the result"


def test_a_result_that_finds_no_room_is_an_error_with_a_message() -> None:
    done = _run(SHOWS, ">/dev/full")
    assert done.returncode == 70
    assert done.stderr == "error: stdout cannot be written: No space left on device; send it elsewhere\n"


def test_streams_that_somebody_else_has_put_in_place_are_left_alone() -> None:
    program = "import io, sys; from hybridsync.cli.standard_streams import outlast"
    program = f"{program}; sys.stdout = mine = io.StringIO(); outlast()"
    done = _run(f"{program}; print(1); sys.exit(mine.getvalue() != '1\\n' or sys.stderr.fileno() != 2)", "")
    assert done.returncode == 0, done.stderr


def train(workdir: Path, redirections: str) -> Path:
    """Run a small job to its end; returns its workdir."""
    flags = ["--config=configs/tally.py", f"--workdir={workdir}", "--runtime=inprocess", "--workers=2"]
    done = _run(TRAIN, redirections, *flags, "--set=workload=64", "--plan=asp", "--apply_log")
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run whose display went away."""
    return train(tmp_path_factory.mktemp("unseen") / "run", "2>&1 | true")


def test_a_run_goes_on_without_its_display(unseen: Path) -> None:
    assert '"exit": "completed"' in (unseen / "summary.json").read_text()


@pytest.mark.soak
def test_a_run_goes_on_where_its_display_is_full(tmp_path: Path) -> None:
    run = train(tmp_path / "run", ">/dev/full 2>/dev/full")
    assert '"exit": "completed"' in (run / "summary.json").read_text()


HANGS_UP = """
import signal, sys
from hybridsync.phases.reporter import Reporter
entered = Reporter.entered
def hang_up(self, phase, units, *rest):
    entered(self, phase, units, *rest)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
Reporter.entered = hang_up
"""


@pytest.mark.parametrize(("hangups", "code"), [("DFL", 75), ("IGN", 0)])
def test_a_closed_terminal_makes_a_run_of_threads_save_and_leave_but_not_under_nohup(
    tmp_path: Path, hangups: str, code: int
) -> None:
    flags = ["--config=configs/tally.py", f"--workdir={tmp_path / 'run'}", "--runtime=inprocess", "--workers=2"]
    program = (
        f"{HANGS_UP}signal.signal(signal.SIGHUP, signal.SIG_{hangups}); {TRAIN}"  # whoever runs this may ignore them
    )
    done = _run(program, "", *flags, "--set=workload=1000", "--plan=asp", "--compute_secs=0.01")
    assert done.returncode == code, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
@pytest.mark.parametrize("runtime", ["processes", "inprocess"])
def test_a_signal_before_a_run_has_begun_ends_the_command_with_75(tmp_path: Path, runtime: str, name: str) -> None:
    (tmp_path / "user.py").write_text(
        f"import signal\nfrom configs.tally import optimizer, task\ndef config(): signal.raise_signal(signal.{name})\n"
    )
    flags = [f"--config={tmp_path / 'user.py'}", f"--workdir={tmp_path / 'run'}", f"--runtime={runtime}"]
    defaults = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # whoever runs this may ignore it
    done = _run(f"{defaults}{TRAIN}", "", *flags)
    assert (done.returncode, done.stderr) == (75, f"{name}: the command ends, and no run is under way\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["report", "replay", "simulate"])
def test_a_command_without_a_reader_ends_quietly(command: str, unseen: Path) -> None:
    flags = ["--config=configs/tally.py", "--set=workload=64"] if command == "simulate" else [str(unseen)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", f"hybridsync.cli.{command}", *flags],
        cwd=ROOT,
        env=users_environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert "Error" not in done.stderr and done.returncode == 141, done.stderr
