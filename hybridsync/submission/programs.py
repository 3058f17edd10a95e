"""Finds the programs and the files that a job for a cluster needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from hybridsync.core.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
"""The job scripts; `examples/` links to them."""

PYTHON = "HYBRIDSYNC_PYTHON"
"""Variable by which a job script learns with which interpreter its hosts run."""


def check_program(name: str, needed_for: str) -> None:
    """Refuse to begin without a program.

    Raises:
      ConfigError: the program is not on the PATH.
    """
    if shutil.which(name) is None:
        raise ConfigError(
            f"{needed_for} needs the program {name}, which is not on the PATH; start the job on a machine that has it"
        )


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a job script: its hosts run with this interpreter, unless the user names another."""
    return {PYTHON: sys.executable, **environ}
