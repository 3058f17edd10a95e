"""Reads and writes what a process proves itself with: a certificate, its key, and the authority it trusts."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hybridsync.core.errors import ConfigError, CredentialsError

FOLDER_MODE, FILE_MODE = 0o700, 0o600
MOST_BYTES = 1 << 16
"""Of a PEM file."""

AUTHORITY_FILE = "ca.pem"


@dataclass(frozen=True)
class Credentials:
    """Holds PEM texts.

    Args:
      authority: the certificate of the authority that both ends of a connection trust, and nothing else.
      certificate: the holder's own.
      key: private key of the certificate.
    """

    authority: str
    certificate: str
    key: str = field(repr=False)

    @staticmethod
    def of(told: dict[str, str] | None) -> Credentials | None:
        """Return the credentials that a plain dict from `as_dict` carries; None for None.

        Raises:
          CredentialsError: the value is not such a dict.
        """
        if told is None:
            return None
        if not isinstance(told, dict) or set(told) != {each.name for each in fields(Credentials)}:
            raise CredentialsError(f"{str(told)[:60]!r} are no credentials: they have authority, certificate and key")
        found = Credentials(**told)
        for name, text in asdict(found).items():
            _check_pem(f"the {name} of the credentials", text)
        return found

    def as_dict(self) -> dict[str, str]:
        """Return the texts by name, for JSON; the key is among them."""
        return asdict(self)

    def write(self, folder: Path, name: str, *, replace: bool = False) -> None:
        """Write `ca.pem`, `NAME.pem` and `NAME.key` into a folder, which is made if it is not there: all or nothing.

        Args:
          folder: folder of the holder.
          name: name of the holder.
          replace: whether to replace existing files, one by one; a running host notices it.

        Raises:
          CredentialsError: one of the files is there already, with other content where it is the authority's, and is
            not to be replaced; the folder is not this user's alone; or the disk refuses.
        """
        texts = {AUTHORITY_FILE: self.authority, f"{name}.key": self.key, f"{name}.pem": self.certificate}
        try:
            make_private(folder)
            if not replace:
                check_free(folder, f"{name}.pem", f"{name}.key")
                if os.path.lexists(folder / AUTHORITY_FILE):
                    if read_private(folder / AUTHORITY_FILE) != self.authority:
                        raise CredentialsError(
                            f"{folder / AUTHORITY_FILE} is of another authority, and is not overwritten; name another "
                            "folder"
                        )
                    del texts[AUTHORITY_FILE]
            write_private(folder, texts, replace=replace)
        except OSError as error:
            raise _unusable(error, folder, "written") from None

    @staticmethod
    def read(folder: Path, name: str) -> Credentials:
        """Read what `write` has written, for its owner alone.

        Raises:
          CredentialsError: a file is missing or no PEM text; it or the folder is another user's, or open to others;
            the key is another certificate's; or the certificate is not good now.
        """
        try:
            check_private(folder, os.stat(folder), stat.S_ISDIR, "folder")
            texts = [read_private(folder / each) for each in (AUTHORITY_FILE, f"{name}.pem", f"{name}.key")]
        except OSError as error:
            raise _unusable(error, folder, "read") from None
        _check_pair(folder / f"{name}.pem", folder / f"{name}.key")
        _check_dates(folder / f"{name}.pem", texts[1])
        return Credentials(*texts)


def check_free(folder: Path, *names: str) -> None:
    """Refuse to write over files.

    Raises:
      CredentialsError: one of the files exists already.
    """
    taken = [name for name in names if os.path.lexists(folder / name)]
    if taken:
        raise CredentialsError(
            f"{folder / taken[0]} is there already, and is not overwritten; name another folder, or remove it"
        )


def make_private(folder: Path) -> None:
    """Make a folder for its user alone, and the folders above it; one that is there has to be its user's alone.

    Raises:
      CredentialsError: it is open to others, or another user's.
      OSError: the folder cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(folder, FOLDER_MODE)
        os.chmod(folder, FOLDER_MODE)  # whatever the umask is
    except FileExistsError:
        pass
    check_private(folder, os.stat(folder), stat.S_ISDIR, "folder")


def check_private(path: Path, found: os.stat_result, is_kind: Any, kind: str) -> None:
    """Refuse what others can reach.

    Raises:
      CredentialsError: it is another user's, open to others, or of another kind.
    """
    if not is_kind(found.st_mode):
        raise CredentialsError(f"{path} is no {kind}; name one")
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & (stat.S_IRWXG | stat.S_IRWXO):
        wanted = FOLDER_MODE if kind == "folder" else FILE_MODE
        raise CredentialsError(
            f"{path} is of user {found.st_uid} with the mode {mode:04o}, and this is user {os.geteuid()}: a {kind} of "
            f"keys has to be its user's alone (chmod {wanted:o})"
        )


def read_private(path: Path) -> str:
    """Return a PEM text that is its user's alone.

    Raises:
      CredentialsError: the file is open to others, or is not a PEM text.
      OSError: the file cannot be read.
    """
    text = read_private_text(path)
    _check_pem(str(path), text)
    return text


def read_private_text(path: Path) -> str:
    """Return the text of a file that is its user's alone.

    Raises:
      CredentialsError: the file is open to others, or too long.
      OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        check_private(path, os.fstat(descriptor), stat.S_ISREG, "file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise CredentialsError(f"{path} has more than {MOST_BYTES} bytes: it is no PEM file of these")
    return data.decode("ascii", "replace")


def write_private(folder: Path, texts: Mapping[str, str], *, replace: bool = False) -> None:
    """Write files for their user alone, each of which is whole if it is there at all.

    All are on the disk before the first one gets its name. If one cannot be given its name, those before it are
    removed.

    Args:
      folder: existing folder, its user's alone.
      texts: content of each file, by its name.
      replace: whether to replace existing files, one by one.

    Raises:
      FileExistsError: one is there already, and is not to be replaced.
      OSError: the disk refuses.
    """
    places = {folder / f".{name}.tmp": folder / name for name in texts}
    made: list[Path] = []
    try:
        for temporary, place in places.items():
            _write_synced(temporary, texts[place.name])
        for temporary, place in places.items():
            if replace:
                os.replace(temporary, place)
            else:
                os.link(temporary, place)  # unlike a rename, it takes the place of nothing
                made.append(place)
    except OSError:
        for place in made:
            place.unlink(missing_ok=True)
        raise
    finally:
        for temporary in places:
            temporary.unlink(missing_ok=True)


def _write_synced(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _check_pem(what: str, text: Any) -> None:
    if not isinstance(text, str) or not text.startswith("-----BEGIN "):
        raise CredentialsError(f"{what} is no PEM text; it begins with -----BEGIN")


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(
            f"{key} is not the key of {certificate}, or one of them is damaged ({error}); hybridsync certs makes both"
        ) from None


def _check_dates(path: Path, certificate: str) -> None:
    """Refuse a certificate that is not good now; without the package `cryptography` the first handshake does."""
    try:
        from hybridsync.security.certificates import check_dates  # loads a package that a further host does without
    except ConfigError:
        return
    check_dates(str(path), certificate)


def _unusable(error: OSError, folder: Path, done: str) -> CredentialsError:
    return CredentialsError(
        f"{error.filename or folder} cannot be {done}: {error.strerror}; hybridsync certs makes these files"
    )
