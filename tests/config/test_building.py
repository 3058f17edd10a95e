"""What a configuration file's own functions raise is one line for every caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync import Trainer
from hybridsync.config import load_config
from hybridsync.core.errors import ConfigError, DataError

FILE = """
from dataclasses import dataclass
from hybridsync.config import RunConfig
from hybridsync.core.errors import DataError

@dataclass(frozen=True)
class Model:
    heads: int = 8
    def __post_init__(self):
        if self.heads < 1:
            raise ValueError("no heads")

def config():
    return RunConfig(workload=8, unit_size=2, plan="asp", model=Model())

def task(config):
    if config.seed == 1:
        raise KeyError("weights")
    if config.seed == 2:
        raise SystemExit(3)
    if config.seed == 3:
        raise DataError("no data; bring some")

def optimizer(config):
    return 1 / 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(FILE)
    return file


RAISED = [
    ("seed=0", "job.py, line 25: ZeroDivisionError: division by zero; correct the file"),
    ("seed=1", "job.py, line 18: KeyError: 'weights'; correct the file"),
    ("seed=2", "job.py, line 20: SystemExit: 3; correct the file"),
    ("model.heads=0", "job.py, line 11: ValueError: no heads; correct the file"),
]


@pytest.mark.parametrize(("override", "message"), RAISED)
def test_what_a_file_raises_while_it_is_built_is_one_clear_line(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.from_config(file, [override])
    assert str(caught.value) == f"{file.parent}/{message}"


def test_a_refusal_of_ours_stays_what_it_is(file: Path) -> None:
    loaded = load_config(file, ["seed=3"])
    with pytest.raises(DataError, match=r"^no data; bring some$"):
        loaded.build(loaded.config)


@pytest.mark.parametrize("command", ["simulate", "tune"])
def test_the_commands_say_it_in_one_line(file: Path, command: str) -> None:
    more = [f"--workdir={file.parent / 'tune'}", f"--history={file.parent / 'history'}"] if command == "tune" else []
    done = subprocess.run(
        [sys.executable, "-m", "hybridsync", command, f"--config={file}", "--seed=1", *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {file.parent}/{RAISED[1][1]}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("platform", "runtime", "why"),
    [
        ("nosuch", "inprocess", "Unable to initialize backend 'nosuch': "),
        ("nosuch", "processes", "Unable to initialize backend 'nosuch': "),
        ("cuda", "inprocess", ""),  # whose text is not the same where no GPU is and where it is hidden
    ],
)
def test_a_platform_that_is_not_there_is_no_fault_of_the_file(
    tmp_path: Path, platform: str, runtime: str, why: str
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hybridsync", "train", "--config=configs/digits_mlp.py"),
            *(f"--workdir={tmp_path / 'run'}", f"--runtime={runtime}"),
        ],
        env={**os.environ, "JAX_PLATFORMS": platform, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert told.startswith(f"error: JAX has no devices: {why}")
    assert "Name a platform that is there with JAX_PLATFORMS." in told
    assert "correct the file" not in told and "JAX_PLATFORMS=''" not in told


def test_a_trainer_takes_a_recipe_by_its_name() -> None:
    trainer = Trainer.from_config("recipe:digits_mlp", ["workload=40"])
    assert trainer._run.config.workload == 40
    assert trainer._run.file is not None and trainer._run.file.name == "digits_mlp.py"
    with pytest.raises(ConfigError, match="there is no recipe 'digits_mlq'; known: "):
        Trainer.from_config("recipe:digits_mlq")
