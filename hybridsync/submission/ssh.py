"""Trains on hosts that are reached by ssh: this process becomes the script `train.sh`.

So its output, its exit code and what signals do to it are the script's: SIGTERM and Ctrl-C save and stop the run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from hybridsync.cluster.job import Job
from hybridsync.cluster.ssh_hosts import addresses_of
from hybridsync.core.errors import ConfigError
from hybridsync.submission.programs import TEMPLATES, check_program, environment

SCRIPT = TEMPLATES / "train.sh"


def read_addresses(file: Path) -> tuple[str, ...]:
    """Return the addresses that a file of hosts names, the head's first.

    Raises:
      ConfigError: the file cannot be read, or names no host.
    """
    try:
        return addresses_of(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"--hosts={file} cannot be read: {why}; --cluster=ssh takes a file with an address a line, the head's first"
        ) from None


def train(hosts: Path, job: Job) -> NoReturn:
    """Become the script.

    Raises:
      ConfigError: bash or ssh is not on the PATH.
    """
    environ = environment()
    ssh = environ.get("HYBRIDSYNC_SSH", "").split() or ["ssh"]
    for program in ("bash", ssh[0]):
        check_program(program, "--cluster=ssh")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe("bash", ["bash", str(SCRIPT), str(hosts), job.certs, *job.flags], environ)
