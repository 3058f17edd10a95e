"""Programs from Debian's packages, unpacked into a folder: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def unpacked(packages: tuple[str, ...], folder: Path, *, with_needed: bool = False) -> Path:
    """Unpack packages below a folder; returns the root of their files. Skips the test where none are to be had.

    `with_needed` adds the packages that they need and this machine lacks.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: {', '.join(packages)} come from Debian's packages")
    archives, root = folder / "archives", folder / "root"
    archives.mkdir(parents=True)
    if with_needed:
        planned = ["apt-get", "install", "--simulate", "--no-install-recommends", *packages]
        said = subprocess.run(planned, capture_output=True, text=True, timeout=100, check=False).stdout
        packages = tuple(line.split()[1] for line in said.splitlines() if line.startswith("Inst ")) or packages
    done = subprocess.run(
        ["apt-get", "download", *packages], cwd=archives, capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode:
        pytest.skip(f"apt-get download of {', '.join(packages)} failed: {done.stderr.strip()[-300:]}")
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg", "-x", archive, root], check=True, timeout=100)
    return root


def environment(root: Path) -> dict[str, str]:
    """Return this process's environment with the unpacked programs and libraries first in it."""
    programs = [root / place for place in ("usr/bin", "usr/sbin")]
    libraries = [*sorted((root / "usr/lib").glob("*-linux-gnu")), *sorted((root / "lib").glob("*-linux-gnu"))]
    own = ("slurm-wlm", "pulseaudio")  # folders in which programs look by a path of their own
    libraries += [folder / name for folder in libraries for name in own if (folder / name).is_dir()]
    return os.environ | {
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }
