"""The shell scripts of examples/ are clean by shellcheck, which comes from Debian's package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.debian import environment, unpacked

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("examples/*/*.sh"), *ROOT.glob("examples/*/*.sbatch")])

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(("shellcheck",), tmp_path_factory.mktemp("shellcheck"))


def found(root: Path, *scripts: Path) -> str:
    """Return what shellcheck says of these scripts."""
    command = ["shellcheck", "--shell=bash", "--format=gcc", *scripts]
    done = subprocess.run(
        command, env=environment(root), capture_output=True, text=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_the_scripts_are_clean(root: Path) -> None:
    assert len(SCRIPTS) == 2
    assert found(root, *SCRIPTS) == ""


def test_a_planted_error_is_found(root: Path, tmp_path: Path) -> None:
    (tmp_path / "planted.sh").write_text(SCRIPTS[0].read_text() + "rm $certs/*\n")
    assert "SC2086" in found(root, tmp_path / "planted.sh")
