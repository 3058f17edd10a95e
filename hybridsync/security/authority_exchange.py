"""Exchanges the authority of a cluster in three steps, between which both are trusted.

1. `begin` makes the next authority in addition to the present one. `ca.pem` has both from then on.
2. `use` lets the next one sign: all hosts trust it by then.
3. `end` takes the former one out of `ca.pem`: no host has a certificate of it by then.

After each step every host needs its new folder, and a running job takes it up. Importing this needs the package
`cryptography`.
"""

from __future__ import annotations

import re
from pathlib import Path

from hybridsync.core.errors import CredentialsError
from hybridsync.security.certificates import KEY_FILE, Authority
from hybridsync.security.credentials import AUTHORITY_FILE, read_private, write_private

NEXT_FILE, NEXT_KEY_FILE = "next.pem", "next.key"
STEPS = ("begin", "use", "end")

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", re.DOTALL)


def exchange(folder: Path, step: str) -> None:
    """Make one step; one that was interrupted may be made again.

    Args:
      folder: folder of the head.
      step: one of `STEPS`.

    Raises:
      CredentialsError: it is not this step's turn, or the disk refuses.
    """
    try:
        {"begin": _begin, "use": _use, "end": _end}[step](folder)
    except OSError as error:
        raise CredentialsError(f"{error.filename or folder} cannot be read or written: {error.strerror}") from None


def _begin(folder: Path) -> None:
    present = Authority.load(folder)
    if len(_certificates(present.certificate)) > 1:
        raise CredentialsError(f"{folder / AUTHORITY_FILE} has two authorities already; the next step is use, or end")
    made = Authority.made()
    write_private(folder, {NEXT_KEY_FILE: made.key_pem(), NEXT_FILE: made.certificate}, replace=True)
    write_private(folder, {AUTHORITY_FILE: present.certificate + made.certificate}, replace=True)


def _use(folder: Path) -> None:
    if not (folder / NEXT_FILE).exists():
        raise CredentialsError(f"{folder} has no next authority; the first step is begin")
    following, key = read_private(folder / NEXT_FILE), read_private(folder / NEXT_KEY_FILE)
    trusted = _certificates(read_private(folder / AUTHORITY_FILE))
    if following not in trusted:
        raise CredentialsError(f"{folder / AUTHORITY_FILE} does not have the next authority; make the step begin again")
    ordered = following + "".join(each for each in trusted if each != following)
    write_private(folder, {KEY_FILE: key, AUTHORITY_FILE: ordered}, replace=True)
    # Last, so that this step can be made again; the certificate first, without which this step has been made.
    for name in (NEXT_FILE, NEXT_KEY_FILE):
        (folder / name).unlink()


def _end(folder: Path) -> None:
    present = Authority.load(folder)
    own, *former = _certificates(present.certificate)
    if (folder / NEXT_FILE).exists() or not former:
        turn = "use" if former else "begin"
        raise CredentialsError(f"{folder} has no former authority to take out; the next step is {turn}")
    write_private(folder, {AUTHORITY_FILE: own}, replace=True)


def _certificates(text: str) -> list[str]:
    return _CERTIFICATE.findall(text)
