"""Builds the failing disk (faultfs.c), starts processes on it, and gives them its switches."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("faultfs.c")
NO_MODE = ""


def compiler() -> str | None:
    """Return the C compiler of this machine, None where there is none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(cc: str, folder: Path) -> Path:
    """Compile the library into `folder`."""
    library = folder / "faultfs.so"
    command = [cc, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{SOURCE.name} does not compile:\n{done.stderr}"
    return library


def environment(library: Path) -> dict[str, str]:
    """Return the environment of a process that has the library in front of its files."""
    return {**os.environ, "LD_PRELOAD": str(library)}


class FaultyDisk:
    """The switches of the library that was preloaded into this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faultfs_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p]
        self._library.faultfs_disarm.restype = ctypes.c_long

    def arm(self, folder: Path, mode: str = NO_MODE, at: int = 0, journal: Path | None = None) -> None:
        """Count the changing calls below `folder`; let number `at` go wrong in the way of `mode`."""
        path = os.fsencode(journal) if journal else b""
        self._library.faultfs_arm(os.fsencode(folder), mode.encode(), at, path)

    def disarm(self) -> int:
        """Be a good disk again; return how many calls there were."""
        return self._library.faultfs_disarm()

    def mark(self, text: str) -> None:
        """Note in the journal what this process has promised by now."""
        self._library.faultfs_mark(text.encode())
