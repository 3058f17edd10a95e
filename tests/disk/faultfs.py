"""The failing disk (faultfs.c): where its source is, and the switches of a process that has it preloaded."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SOURCE = Path(__file__).with_name("faultfs.c")
NO_MODE = ""


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
