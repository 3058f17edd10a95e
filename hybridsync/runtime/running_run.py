"""Reaches a run that goes on, for the commands of its user."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

from hybridsync.core.errors import NotRunning, RoleLost, WaitTimeout
from hybridsync.interfaces.ports import CommandPort
from hybridsync.runtime.control_file import Control, read_control
from hybridsync.runtime.wiring.transport import GRPC, transport_of
from hybridsync.security.keyring import Keyring

ANSWER_SECS = 60.0
"""How long a command waits for its answer: a chief that has died is replaced meanwhile."""


def command_port(control: Control) -> CommandPort:
    """Return the way to a running chief; it may be a new process by the next call."""
    return transport_of(GRPC, Keyring(control.token, control.credentials)).chief(control.address, ANSWER_SECS)


@contextlib.contextmanager
def explained(workdir: Path) -> Iterator[None]:
    """Say of a chief that gave no answer whether its run goes on.

    Raises:
      NotRunning: the run ended meanwhile.
      RoleLost, WaitTimeout: the run continues, and its chief gave no answer.
    """
    try:
        yield
    except (RoleLost, WaitTimeout):
        read_control(workdir)  # raises if the run has ended
        raise


def await_end(control: Control, secs: float) -> bool:
    """Wait up to `secs` until the supervisor of a run has ended; returns whether it has.

    Args:
      control: control file of the run.
      secs: longest wait in seconds; the process's own end is waited for, which costs nothing meanwhile.
    """
    try:
        pidfd = os.pidfd_open(control.pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        # Checked after the opening: the number may have come again by then.
        return not control.is_alive or bool(poll.poll(secs * 1000))
    finally:
        os.close(pidfd)


def running(workdir: Path) -> Control | None:
    """Return how a run's chief is reached; None where the run is not running.

    Raises:
      WorkdirError: the folder does not exist, or its control file is not this user's alone.
    """
    try:
        return read_control(workdir)
    except NotRunning:
        return None
