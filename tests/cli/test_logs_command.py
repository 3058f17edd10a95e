"""`hybridsync logs`: the end of each log, one role's, and what comes while a run goes on."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hybridsync.runtime.control_file import write_control
from hybridsync.storage.durable import WorkdirLock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, with three logs."""
    (tmp_path / "logs").mkdir()
    for name, lines in (("chief-0", 3), ("worker-0", 30), ("worker-1", 0)):
        (tmp_path / "logs" / f"{name}.log").write_text("".join(f"{name} {line}\n" for line in range(lines)))
    return tmp_path


def begun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hybridsync", "logs", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def logs(*arguments: str) -> tuple[int, list[str]]:
    process = begun(*arguments)
    said, _ = process.communicate(timeout=100)
    return process.returncode, said.splitlines()


def test_the_end_of_each_log_is_shown(run: Path) -> None:
    code, lines = logs(str(run), "--lines=2")
    assert code == 0
    assert lines == ["== chief-0", "chief-0 1", "chief-0 2", "== worker-0", "worker-0 28", "worker-0 29"]


def test_one_role_or_all_of_a_kind_are_shown(run: Path) -> None:
    assert logs(str(run), "chief")[1] == ["== chief-0", "chief-0 0", "chief-0 1", "chief-0 2"]
    assert len(logs(str(run), "worker", "--lines=0")[1]) == 31
    assert logs(str(run), "worker-1") == (0, [])


def test_what_is_no_log_is_refused(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    code, (line,) = logs(str(run), "worker-2")
    assert code == 1 and line.startswith(f"error: the run in {run} has no log of 'worker-2'; did you mean 'worker-")
    code, (line,) = logs(str(tmp_path_factory.mktemp("empty")))
    assert code == 1 and "holds no logs; name the --workdir of a run of processes" in line
    assert logs()[0] == 1


def test_what_comes_is_shown_until_the_run_ends(run: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        write_control(run, f"unix:{sockets}/chief", "secret", supervisor.pid)
        process = begun(str(run), "chief", "--lines=1", "--follow")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["== chief-0\n", "chief-0 2\n"]
        with open(run / "logs" / "chief-0.log", "a") as log:
            log.write("one\ntwo\nhalf")
        assert [process.stdout.readline() for _ in range(2)] == ["chief-0: one\n", "chief-0: two\n"]
        supervisor.communicate(b"\n", timeout=60)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "chief-0: half\n")


def test_a_line_is_shown_whole_once_its_end_has_come(run: Path) -> None:
    log = run / "logs" / "chief-0.log"
    log.write_text("one\nloss 0.")
    with WorkdirLock(run):  # the run starts, or its roles are threads
        process = begun(str(run), "chief", "--follow")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["== chief-0\n", "one\n"]
        with open(log, "a") as file:
            file.write("1234\nthe last words")
        assert process.stdout.readline() == "chief-0: loss 0.1234\n"
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "chief-0: the last words\n")


def test_a_run_that_is_not_running_is_not_followed(run: Path) -> None:
    code, lines = logs(str(run), "chief", "--follow")
    assert code == 0 and len(lines) == 4
