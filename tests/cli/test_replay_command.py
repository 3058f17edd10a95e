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


PLUGGED = """
from dataclasses import dataclass, replace
from typing import ClassVar

from configs import digits_mlp
from configs.digits_mlp import optimizer, task
from hybridsync.protocols import REGISTRY
from hybridsync.protocols.asp import Asp


@dataclass(frozen=True)
class Mine(Asp):
    name: ClassVar[str] = "mine"


REGISTRY["mine"] = Mine


def config():
    return replace(digits_mlp.config(), workload=24, workers=2, plan="mine")
"""


@pytest.mark.parametrize("runtime", ["inprocess", "processes"])
def test_a_run_under_a_protocol_that_its_configuration_file_registers_replays(tmp_path: Path, runtime: str) -> None:
    config, workdir = tmp_path / "plugged.py", tmp_path / "run"
    config.write_text(PLUGGED)
    train = ["train", f"--config={config}", f"--workdir={workdir}", f"--runtime={runtime}", "--apply_log"]
    for arguments in (train, ["replay", str(workdir)]):
        command = [sys.executable, "-m", "hybridsync", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
    assert "24 updates replayed, bit for bit" in done.stdout
