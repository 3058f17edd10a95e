"""A folder of keys is read again when it changes, and what does not fit together is not used."""

from __future__ import annotations

from pathlib import Path

from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import Credentials
from hybridsync.security.key_files import KeyFiles

NAMES = ("ca.pem", "host.pem", "host.key", "revoked")


def test_files_are_read_again_once_they_are_other_ones(authority: Authority, tmp_path: Path) -> None:
    folder, said = tmp_path / "keys", list[str]()
    authority.issue("host", 1).write(folder, "host")
    files = KeyFiles(folder, NAMES, lambda: Credentials.read(folder, "host"), said.append)
    first = files.found
    assert not files.look() and files.found is first
    second = authority.issue("host", 1)
    second.write(folder, "host", replace=True)
    assert files.look() and files.found == second
    assert not files.look()
    (folder / "revoked").write_text("")
    assert files.look(), "a file that was missing"
    assert said == []


def test_half_a_pair_is_not_used_and_told_of_once(authority: Authority, tmp_path: Path) -> None:
    folder, said = tmp_path / "keys", list[str]()
    authority.issue("host", 1).write(folder, "host")
    files = KeyFiles(folder, NAMES, lambda: Credentials.read(folder, "host"), said.append)
    first, second = files.found, authority.issue("host", 1)
    (folder / "host.key").write_text(second.key)
    assert not files.look() and not files.look() and files.found is first
    assert len(said) == 1 and "the former certificate stays in use" in said[0] and "is not the key of" in said[0]
    (folder / "host.pem").write_text(second.certificate)
    assert files.look() and files.found == second
