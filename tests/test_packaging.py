"""What a wheel and a source distribution hold, built by setuptools itself in a copy, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, f'build_{sys.argv[1]}')(sys.argv[2]))"
MARKERS = {
    "hybridsync/py.typed",
    *(f"hybridsync/lab/report/{file}" for file in ("page.css", "page.js", "values.js")),
    *(f"hybridsync/submission/templates/train.{kind}" for kind in ("sbatch", "sh")),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a build reads, so that it leaves nothing here."""
    folder = tmp_path_factory.mktemp("source") / "hybridsync"
    for name in ("hybridsync", "launch", "configs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(source: Path, kind: str, out: Path) -> Path:
    command = [sys.executable, "-c", BUILD, kind, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def test_a_wheel_holds_the_package_alone_with_its_types_its_recipes_and_the_pages_files(
    source: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(build(source, "wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hybridsync"}
    assert names >= MARKERS
    recipes = {path.relative_to(ROOT / "configs").as_posix() for path in (ROOT / "configs").rglob("*.py")}
    assert names >= {f"hybridsync/recipes/{name}" for name in recipes}
    assert names >= {path.relative_to(ROOT).as_posix() for path in (ROOT / "hybridsync").rglob("*.py")}


def test_a_source_distribution_says_so_too(source: Path, tmp_path: Path) -> None:
    with tarfile.open(build(source, "sdist", tmp_path)) as archive:
        assert {name.split("/", 1)[-1] for name in archive.getnames()} >= MARKERS


def test_a_script_beside_a_clone_imports_the_package_and_folders_of_its_own(source: Path, tmp_path: Path) -> None:
    """The folder of a clone has the package's name; Python sees a namespace package in it, where a script is beside.

    The clone's own top folders are none of the script's business, though they are on its path.
    """
    with zipfile.ZipFile(build(source, "editable", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    own = ("configs", "launch", "benchmarks")
    for folder in own:
        (source.parent / folder).mkdir()
        (source.parent / folder / "mine.py").touch()
    job = source.parent / "job.py"
    imports = ", ".join(("hybridsync", *(f"{folder}.mine" for folder in own)))
    job.write_text(f"import site, sys; site.addsitedir(sys.argv[1]); import {imports}; print(hybridsync.__file__)")
    command = [sys.executable, "-S", job, tmp_path / "site"]
    imported = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert imported.stdout.strip() == str(source / "hybridsync" / "__init__.py"), imported.stderr
