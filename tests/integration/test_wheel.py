"""The wheel trains where it is installed. Needs a package index; tests/test_packaging.py says what is in the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "examples" / "kubernetes" / "Dockerfile").read_text().splitlines()
SOURCES = [name for line in DOCKERFILE if line.startswith("COPY ") for name in line.split()[1:-1]]
"""Paths that the image is built from."""
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]


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
    """A wheel that is built as the Dockerfile does: of what it copies, where no earlier build has left anything."""
    (build,) = [line for line in DOCKERFILE if line.startswith("RUN pip wheel ")]
    assert build.split()[3:] == ["--no-cache-dir", "--no-deps", "--wheel-dir", "/wheels", "."]
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "src").mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / "src" / name)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, folder / "src", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel and what the Dockerfile installs beside it."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    (extra,) = re.findall(r"pip install --no-cache-dir \"\$\(ls /wheels/\*\.whl\)(\[\w+\])\"", "\n".join(DOCKERFILE))
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}{extra}", cwd=wheel.parent)
    return folder / "bin"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the image's user")
def test_the_user_of_the_image_is_a_host_with_what_the_dockerfile_installs(bin_folder: Path, tmp_path: Path) -> None:
    (user,) = [int(line.split()[1].partition(":")[0]) for line in DOCKERFILE if line.startswith("USER ")]
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, user, user)
    # An image's files are open to all; this machine's may not be, such as the interpreter of root's.
    read = [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *read, "env", f"HOME={home}"]
    hybridsync = [*as_user, bin_folder / "hybridsync"]
    run(*hybridsync, "certs", "init", "--folder=certs/0", cwd=home)
    (port,) = free_ports(1)
    place = [f"--head=127.0.0.1:{port}", "--index=0", "--hosts=1", "--certs=certs/0"]
    told = run(
        *hybridsync, "host", *place, "--config=recipe:digits_mlp", "--workdir=run", "--set=workload=200", cwd=home
    )
    assert "completed: 200 of 200 units" in told
    assert {path.stat().st_uid for path in (home / "run").rglob("*")} == {user}


def test_the_installed_command_trains_beside_a_folder_named_launch(bin_folder: Path, tmp_path: Path) -> None:
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
