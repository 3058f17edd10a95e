"""Refuses certificates of hosts that were taken back: those of a host that were made before a certain second.

A line of `revoked`, in the head's folder, has the host's number and that second of unix time. A certificate that is
issued later is good again. So nothing has to be known of a certificate to take it back, not even its serial number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from hybridsync.core.errors import CredentialsError, PermissionDenied
from hybridsync.security.credentials import read_private_text, write_private
from hybridsync.security.identity import HOST, Identity

REVOKED_FILE = "revoked"


def read_revoked(folder: Path) -> dict[int, int]:
    """Return the hosts of a head's folder whose certificates were taken back, each with the second before which.

    Raises:
      CredentialsError: the file is damaged, another user's, or open to others.
    """
    path = folder / REVOKED_FILE
    try:
        text = read_private_text(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror}; restore it") from None
    try:
        pairs = [line.split() for line in text.splitlines()]
        return {int(host): int(second) for host, second in pairs}
    except ValueError as error:
        raise CredentialsError(f"{path} is damaged ({error}); a line is: HOST SECOND") from None


def revoke(folder: Path, host: int, now: float) -> None:
    """Take back all certificates of a host that were made until now.

    Args:
      folder: folder of the head.
      host: index of the host.
      now: time of the revocation, unix seconds.

    Raises:
      CredentialsError: the file is damaged, or cannot be written.
    """
    revoked = read_revoked(folder) | {host: int(now) + 1}
    text = "".join(f"{each} {second}\n" for each, second in sorted(revoked.items()))
    try:
        write_private(folder, {REVOKED_FILE: text}, replace=True)
    except OSError as error:
        raise CredentialsError(f"{folder / REVOKED_FILE} cannot be written: {error.strerror}") from None


class Revocations:
    """Knows which hosts call with which certificates, and refuses those that were taken back; the lock guards both.

    Args:
      made_at: certificate as PEM -> unix seconds of its making.
      revoked: hosts, and the second before which their certificates were made.
    """

    def __init__(self, made_at: Callable[[str], float], revoked: Mapping[int, int]) -> None:
        self._made_at, self._lock = made_at, threading.Lock()
        self._revoked = dict(revoked)
        self._admitted: dict[int, float] = {}  # when the certificate was made with which each host called last

    def admit(self, caller: Identity, certificate: str) -> None:
        """Let a caller in, by the certificate that it has shown.

        Raises:
          PermissionDenied: the certificate was revoked.
        """
        if caller.role != HOST:
            return
        made = self._made_at(certificate)
        with self._lock:
            if made < self._revoked.get(caller.id, 0):
                raise PermissionDenied(
                    f"the certificate of host {caller.id} was revoked; make another one with hybridsync certs issue, "
                    "if this host is to take part again"
                )
            self._admitted[caller.id] = made

    def replace(self, revoked: Mapping[int, int]) -> list[int]:
        """Refuse these from now on; returns the hosts that have called with a certificate which is now refused."""
        with self._lock:
            self._revoked = dict(revoked)
            out = [host for host, made in self._admitted.items() if made < self._revoked.get(host, 0)]
            for host in out:
                del self._admitted[host]
            return sorted(out)
