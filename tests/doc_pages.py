"""The code blocks of a page of the documentation, run in order as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RUN_SECS = 580.0
"""For a page's whole program: where many others run, one takes ten times as long."""
TEST_SECS = RUN_SECS + 20


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page, by its path from the root."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def output(code: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None) -> str:
    """Run blocks as one program in `folder`, where it finds `configs/`, and return what it prints."""
    program = folder / "program.py"
    program.write_text("\n".join(code))
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=RUN_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
