"""Libraries in C that a test compiles and preloads into processes, to stand in front of what the machine does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def build(source: Path, folder: Path) -> Path:
    """Compile a library into `folder`; skips the test where there is no compiler."""
    cc = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if cc is None:
        pytest.skip(f"no C compiler (cc, gcc, clang) is on the path: {source.name} cannot be built")
    library = folder / f"{source.stem}.so"
    command = [cc, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{source.name} does not compile:\n{done.stderr}"
    return library


def environment(library: Path) -> dict[str, str]:
    """Return the environment of a process that has the library in front."""
    return {**os.environ, "LD_PRELOAD": str(library)}
