"""The wheel trains where it is installed. Needs a package index; tests/test_packaging.py says what is in the wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("hybridsync", "configs", "launch", "benchmarks", "pyproject.toml", "setup.py", "README.md", "LICENSE")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def run(*command: object, cwd: Path) -> str:
    """Return what a command prints, standard error included; it has to succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from a copy of the sources, where no earlier build has left anything."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / "src" / name)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, folder / "src", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_installed_command_trains_beside_a_folder_named_launch(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    bin_folder = tmp_path / "environment" / "bin"
    run(bin_folder / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    own = tmp_path / "own"
    (own / "launch").mkdir(parents=True)
    (own / "launch" / "__init__.py").write_text("raise RuntimeError('a folder of the user was imported')\n")
    told = run(bin_folder / "hybridsync", "--help", cwd=own)
    assert "train" in told and "replay" in told
    flags = ["--config=recipe:digits_mlp", "--workdir=run", "--set", "workload=200", "workers=2"]
    told = run(bin_folder / "hybridsync", "train", *flags, "--config.optimizer.learning_rate=0.004", cwd=own)
    assert "completed: 200 of 200 units" in told
    config = json.loads((own / "run" / "config.json").read_text())["config"]
    assert (config["workers"], config["optimizer"]["learning_rate"]) == (2, 0.004)
    run(bin_folder / "hybridsync", "report", "run", cwd=own)
    flags = ["--config=recipe:digits_async_hurts", "--scenario=recipe:scenarios/straggler"]
    assert "8 workers" in run(bin_folder / "hybridsync", "simulate", *flags, cwd=own)
