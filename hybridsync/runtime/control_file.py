"""Tells the commands of a run's user where its chief is: a file of the workdir that is the user's alone.

The chief writes `control.json` once it serves, and removes it when it leaves in order. A file that a killed run has
left is known by its supervisor, which is gone: process numbers come again, so its start counts as well. A run without
the file is known by its lock on the workdir.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hybridsync.core.addresses import socket_path
from hybridsync.core.errors import NotRunning, RoleLost, WaitTimeout, WorkdirError, WorkdirTaken
from hybridsync.core.process_start import boot_id, start_of
from hybridsync.interfaces.ports import CommandPort
from hybridsync.runtime.wiring import GRPC, transport_of
from hybridsync.security.credentials import Credentials
from hybridsync.security.keyring import Keyring
from hybridsync.storage.durable import FILE_MODE, LOCK_FILE, Fence, unfenced
from hybridsync.storage.lock_holder import holder_of

CONTROL_FILE = "control.json"
_AGAIN = "start it with the command that it was started with: it goes on from its newest checkpoint"


@dataclass(frozen=True)
class Control:
    """Says how a running chief is reached.

    Args:
      address: address at which the chief serves.
      token: token of the run.
      host, boot: machine on which its supervisor runs, and that machine's boot id.
      pid, started: process id of its supervisor, and the clock ticks at which that process started.
      credentials: credentials with which the run's user calls it; None where it asks for none.
    """

    address: str
    token: str = field(repr=False)
    host: str
    boot: str
    pid: int
    started: int
    credentials: Credentials | None = None

    @property
    def is_alive(self) -> bool:
        """Return whether its supervisor still runs, on this machine."""
        return self.boot == boot_id() and 0 <= self.started == start_of(self.pid)


def write_control(
    workdir: Path,
    address: str,
    token: str,
    supervisor: int,
    credentials: Credentials | None = None,
    fence: Fence = unfenced,
) -> None:
    """Say where the chief of the run in `workdir` serves, to its user alone.

    Args:
      workdir: the run's workdir.
      address: address at which the chief serves.
      token: token of the run.
      supervisor: process id of the supervisor.
      credentials: credentials of the run's user; None where the chief asks for none.
      fence: see `write_durable`.

    Raises:
      OSError: the disk refuses.
      WorkdirTaken: the fence refused.
    """
    here = Control(
        address,
        token,
        socket.gethostname(),
        boot=boot_id(),
        pid=supervisor,
        started=start_of(supervisor),
        credentials=credentials,
    )
    temporary = workdir / f".{CONTROL_FILE}.tmp"
    fence()
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
        json.dump(dataclasses.asdict(here), file)
    fence()
    os.replace(temporary, workdir / CONTROL_FILE)


def remove_control(workdir: Path, fence: Fence = unfenced) -> None:
    """Remove the file of a run that no chief serves any more, unless `fence` tells that another chief does."""
    with contextlib.suppress(OSError, WorkdirTaken):
        fence()
        (workdir / CONTROL_FILE).unlink()


def read_control(workdir: Path) -> Control:
    """Return how the running chief of `workdir` is reached.

    Raises:
      NotRunning: the run is not running, or no command reaches it; a damaged file leads nowhere.
      WorkdirError: there is no such folder, or it or its control file cannot be read, or is not this user's alone.
    """
    try:
        return _read_control(workdir)
    except OSError as error:
        raise WorkdirError(
            f"cannot read {error.filename or workdir}: {error.strerror}; name the --workdir of a run that this user "
            "has started"
        ) from None


def _read_control(workdir: Path) -> Control:
    if not stat.S_ISDIR(_mode(workdir)):
        raise WorkdirError(f"there is no folder {workdir}; name the --workdir of a run")
    path = workdir / CONTROL_FILE
    try:
        text = _private_bytes(path)
    except FileNotFoundError:
        if not os.path.lexists(workdir / LOCK_FILE):
            raise NotRunning(f"there is no run in {workdir}; name the --workdir of a run") from None
        raise NotRunning(_unreached(workdir)) from None
    try:
        control = _parsed(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotRunning(f"{path} is damaged ({error!s:.120}); {_unreached(workdir)}") from None
    if not control.is_alive:
        if control.host != socket.gethostname():
            raise NotRunning(
                f"the run in {workdir} was started on {control.host}, and this is {socket.gethostname()}; give the "
                "command there"
            )
        raise NotRunning(_unreached(workdir))
    if (place := socket_path(control.address)) is not None:
        try:
            found = os.stat(place.parent)
        except FileNotFoundError:
            raise NotRunning(f"the folder {place.parent} of the run's sockets is gone; {_unreached(workdir)}") from None
        _check_owner(place.parent, found, stat.S_IRWXG | stat.S_IRWXO)
    return control


def _mode(path: Path) -> int:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _parsed(text: bytes) -> Control:
    """Return what a control file says.

    Raises:
      ValueError, TypeError, RecursionError: the file is damaged.
    """
    told = json.loads(text)
    if not isinstance(told, dict):
        raise ValueError(f"it is {type(told).__name__}, not an object")
    credentials = Credentials.of(told.pop("credentials", None))
    control = Control(**told, credentials=credentials)
    for name, value in told.items():
        wanted = int if name in ("pid", "started") else str
        if type(value) is not wanted:
            raise ValueError(f"its {name} is {type(value).__name__}, not {wanted.__name__}")
    return control


def _private_bytes(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        _check_owner(path, os.fstat(descriptor), stat.S_IRWXG | stat.S_IRWXO)
        return file.read(1 << 16)


def _check_owner(path: Path, found: os.stat_result, others: int) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & others:
        raise WorkdirError(
            f"{path} is of user {found.st_uid} with the mode {stat.S_IMODE(found.st_mode):04o}, and this is user "
            f"{os.geteuid()}: it has to be that user's alone, who started the run"
        )


def _unreached(workdir: Path) -> str:
    """Return what there is to say of a run that no control file leads to.

    Raises:
      WorkdirError: its lock cannot be read.
    """
    holder = holder_of(workdir)
    if holder is None:
        return f"the run in {workdir} is not running; {_AGAIN}"
    if not holder.pid:
        return f"{workdir} is in use, but no command reaches its run: it is starting or ending; ask again"
    return (
        f"{holder.name} has the run in {workdir}, but no command reaches it: it is starting or ending (ask again), or "
        "its roles are threads (--runtime=inprocess, Trainer); SIGTERM to that process stops it with a save"
    )


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
