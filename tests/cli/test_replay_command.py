"""The command line of a replay: what it refuses, in one line, and that it leaves nothing behind then."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("name", "said"),
    [("runs", "runs holds no run; give the --workdir of one"), ("gone", "there is no workdir")],
)
def test_a_folder_without_a_run_is_refused_and_left_as_it_was(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    command = [sys.executable, "-m", "hybridsync", "replay", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["runs", "digits"]
