"""Issue, rotate and revoke the certificates of a cluster's hosts: what `hybridsync certs` does, without its flags.

Each function returns the lines to show to the user. The package `cryptography` is imported where it is needed, since a
run on one host works without it.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import CredentialsError, HybridSyncError
from hybridsync.security.credentials import check_free, read_private_text
from hybridsync.security.identity import HEAD, HOST
from hybridsync.security.revocations import read_revoked
from hybridsync.security.revocations import revoke as revoke_host


def init(folder: Path, days: int) -> str:
    """Make an authority and the head's certificate; returns what the user is told.

    Raises:
      CredentialsError: there is one already, or the folder is not this user's alone.
      ConfigError: the package `cryptography` is not installed.
    """
    from hybridsync.security.certificates import Authority

    check_free(folder, f"{HEAD}.pem", f"{HEAD}.key")  # before anything is made
    authority = Authority.create(folder)
    try:
        authority.issue(HEAD, validity=datetime.timedelta(days=days)).write(folder, HEAD)
    except HybridSyncError:
        authority.remove(folder)
        raise
    return (
        f"made the authority {authority.run} and the head's certificate in {folder}\n"
        f"keep {folder} on the head alone; make a folder for each host with: "
        f"hybridsync certs issue --folder={folder} --host=INDEX --out=DIR"
    )


def issue(folder: Path, index: int, out: Path, days: int, *, replace: bool) -> str:
    """Make the folder of a host, or replace what is in it; returns what the user is told.

    Raises:
      CredentialsError: there is no authority, or a file is there already.
      ConfigError: the package `cryptography` is not installed.
    """
    from hybridsync.security.certificates import KEY_FILE, Authority, holder_of

    authority = Authority.load(folder)
    if (out / KEY_FILE).exists():
        raise CredentialsError(
            f"{out} has the key of an authority, which stays on the head; name another folder with --out"
        )
    if replace and (out / f"{HOST}.pem").exists():
        former = holder_of(read_private_text(out / f"{HOST}.pem"))
        if former is not None and former.id != index:
            raise CredentialsError(
                f"{out} has the certificate of host {former.id}, and this is to be host {index}'s; name that host's "
                "folder with --out"
            )
    # A certificate contains the whole seconds of its making, and one of the second of a revocation is refused.
    pause(max(0.0, read_revoked(folder).get(index, 0) - SYSTEM_CLOCK.wall()))
    authority.issue(HOST, index, datetime.timedelta(days=days)).write(out, HOST, replace=replace)
    return (
        f"made the certificate of host {index} of the authority {authority.run} in {out}\n"
        f"copy {out} to that host, where it has to be its user's alone, too"
    )


def rotate(folder: Path, days: int, step: str | None = None) -> str:
    """Give the head another certificate; returns what the user is told.

    Args:
      folder: folder of the head.
      days: number of days that the certificate is good for.
      step: step of exchanging the authority (see `authority_exchange`), which is made before; None for none.

    Raises:
      CredentialsError: there is no authority, it is not this step's turn, or the disk refuses.
      ConfigError: the package `cryptography` is not installed.
    """
    from hybridsync.security.authority_exchange import exchange
    from hybridsync.security.certificates import Authority

    if step is not None:
        exchange(folder, step)
    authority = Authority.load(folder)
    authority.issue(HEAD, validity=datetime.timedelta(days=days)).write(folder, HEAD, replace=True)
    return (
        f"made another certificate of the head in {folder}; a running job gives its roles new certificates and a new "
        "token within some seconds"
        + ("" if step is None else "\nnow replace the folder of each host: hybridsync certs issue --replace")
    )


def revoke(folder: Path, index: int) -> str:
    """Take back the certificates of a host; returns what the user is told.

    Raises:
      CredentialsError: there is no authority, or the disk refuses.
      ConfigError: the package `cryptography` is not installed.
    """
    from hybridsync.security.certificates import Authority

    Authority.load(folder)  # a mistake in the name of the folder revokes nothing
    revoke_host(folder, index, SYSTEM_CLOCK.wall())
    return (
        f"revoked the certificates of host {index} that were issued until now; a running job that has such a host ends "
        "its session within some seconds, and gives its roles a new token"
    )
