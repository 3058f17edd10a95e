"""Environments of the other systems: one folder each, from the pins in `requirements/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.peers.systems import ENVIRONMENTS

FOLDER = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).parent / "requirements"


def requirements(name: str) -> Path:
    """Return the file of an environment's pins.

    Raises:
      ValueError: there is no such environment.
    """
    if name not in ENVIRONMENTS:
        raise ValueError(f"there is no environment {name!r}; name one of {', '.join(ENVIRONMENTS)}")
    return REQUIREMENTS / f"{name}.txt"


def pins(name: str) -> list[str]:
    """Return the packages that an environment pins, as `name==version`."""
    lines = requirements(name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def interpreter(name: str) -> Path | None:
    """Return the Python of an environment that is complete and up to date; None otherwise."""
    folder = FOLDER / name
    installed = folder / "installed.txt"
    if not installed.is_file() or installed.read_text(encoding="utf-8").split("\n") != pins(name):
        return None
    return folder / "bin" / "python"


def set_up(name: str) -> None:
    """Make an environment, or bring it up to date; instant where it is.

    Raises:
      CalledProcessError: it cannot be made, or a package cannot be installed.
    """
    if interpreter(name):
        print(f"{name}: up to date")
        return
    folder = FOLDER / name
    print(f"{name}: installing {', '.join(pins(name))}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", requirements(name)], check=True)
    (folder / "installed.txt").write_text("\n".join(pins(name)), encoding="utf-8")
