"""Prepares the workdir of a job, on a file system that this machine and all hosts of the job share."""

from __future__ import annotations

from pathlib import Path

from hybridsync.cluster.file_systems import IN_MEMORY, kind_of
from hybridsync.cluster.job import commands_for_certificates
from hybridsync.core.errors import ConfigError, CredentialsError, WorkdirError
from hybridsync.security.identity import HEAD, HOST
from hybridsync.storage.durable import make_directory

MOUNTS = Path("/proc/self/mountinfo")


def check_shared(workdir: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a workdir that no other host can see.

    Args:
      workdir: absolute; it need not be there.
      mounts: the kernel's table of mounts; where it cannot be read, nothing is refused.

    Raises:
      ConfigError: the workdir is in this machine's memory.
    """
    try:
        kind = kind_of(str(workdir.resolve()), mounts.read_text(errors="replace"))
    except OSError:
        return
    if kind in IN_MEMORY:
        raise ConfigError(
            f"--workdir={workdir} is on a {kind}, in the memory of this machine, which no other host sees; name a "
            "folder of a file system that all hosts share"
        )


def make_logs(workdir: Path) -> None:
    """Make the workdir and its folder of logs.

    Raises:
      WorkdirError: the workdir cannot be written.
    """
    try:
        make_directory(workdir / "logs")
    except OSError as error:
        raise WorkdirError(f"cannot write to {workdir}: {error.strerror}; name a writable --workdir") from error


def check_certificates(folder: Path, num_hosts: int) -> None:
    """Refuse certificates that lack a host, before the job waits for its turn.

    Raises:
      ConfigError: a folder of a host is missing; the message has the command that makes it.
    """
    if not _has(folder, 0):
        made = commands_for_certificates(str(folder), num_hosts)
        raise ConfigError(f"--certs={folder} has no certificate of the head, {_file(folder, 0)}; make all with: {made}")
    for index in range(1, num_hosts):
        if not _has(folder, index):
            raise ConfigError(
                f"--certs={folder} has no certificate of host {index} of {num_hosts}, {_file(folder, index)}; make it "
                f"with: hybridsync certs issue --folder={folder / '0'} --host={index} --out={folder / str(index)}"
            )


def make_certificates(folder: Path, num_hosts: int) -> list[int]:
    """Make those certificates of a run's hosts that its folder has not; returns the indexes of their hosts.

    Each run has an authority of its own, so that its keys open no other run. They are for this user alone: anyone who
    reads the folder as this user can be any host of the run.

    Args:
      folder: folder of the run, which gets a folder for each host.
      num_hosts: number of hosts of the run.

    Raises:
      CredentialsError: a folder is open to others, or has a part of what is to be made.
      ConfigError: the package `cryptography` is not installed.
      WorkdirError: the folder cannot be written.
    """
    missing = [index for index in range(num_hosts) if not _has(folder, index)]
    if not missing:
        return []
    from hybridsync.security.certificates import Authority  # loads a package that many jobs do without

    try:
        make_directory(folder)
    except OSError as error:
        raise WorkdirError(f"cannot write to {folder}: {error.strerror}; name a writable --workdir") from error
    if missing[0] == 0 and len(missing) < num_hosts:
        raise CredentialsError(
            f"{folder} has certificates of hosts, but none of the head, {_file(folder, 0)}; remove {folder}, and new "
            "ones are made"
        )
    authority = Authority.create(folder / "0") if missing[0] == 0 else Authority.load(folder / "0")
    for index in missing:
        role = HOST if index else HEAD
        authority.issue(role, index).write(folder / str(index), role)
    return missing


def _file(folder: Path, index: int) -> Path:
    return folder / str(index) / f"{HOST if index else HEAD}.pem"


def _has(folder: Path, index: int) -> bool:
    return _file(folder, index).is_file()
