"""The files that hold keys: their user's alone, never overwritten, each refusal with its reason."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import CredentialsError
from hybridsync.security.certificates import Authority
from hybridsync.security.credentials import MOST_BYTES, Credentials, write_private


@pytest.fixture
def written(authority: Authority, tmp_path: Path) -> tuple[Credentials, Path]:
    credentials, folder = authority.issue("host", 2), tmp_path / "host"
    credentials.write(folder, "host")
    return credentials, folder


def test_what_is_written_is_read_again_and_is_its_users_alone(written: tuple[Credentials, Path]) -> None:
    credentials, folder = written
    assert Credentials.read(folder, "host") == credentials
    assert {path.name for path in folder.iterdir()} == {"ca.pem", "host.pem", "host.key"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_an_open_umask_opens_nothing(authority: Authority, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        authority.issue("user").write(tmp_path / "new", "user")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}


def test_a_key_is_shown_in_no_text_and_travels_in_a_plain_dict(authority: Authority) -> None:
    credentials = authority.issue("worker", 3)
    assert "PRIVATE KEY" not in repr(credentials) and "PRIVATE KEY" not in repr(authority)
    assert Credentials.of(json.loads(json.dumps(credentials.as_dict()))) == credentials
    assert Credentials.of(None) is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, r"'{}' are no credentials"),
        ({"authority": "x", "certificate": "x", "key": "x", "more": "x"}, r"are no credentials: they have authority"),
        ({"authority": "x", "certificate": "x", "key": "x"}, r"the authority of the credentials is no PEM text"),
        ({"authority": None, "certificate": "x", "key": "x"}, r"the authority of the credentials is no PEM text"),
    ],
)
def test_a_dict_of_something_else_is_refused(told: dict, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason):
        Credentials.of(told)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: folder.chmod(0o750), r"with the mode 0750.*a folder of keys .*chmod 700"),
        (lambda folder: folder.chmod(0o701), r"with the mode 0701.*a folder of keys"),
        (lambda folder: (folder / "host.key").chmod(0o640), r"host\.key is of user .*mode 0640.*a file .*chmod 600"),
        (lambda folder: (folder / "host.key").chmod(0o604), r"host\.key is of user .*mode 0604"),
        (lambda folder: (folder / "ca.pem").chmod(0o622), r"ca\.pem is of user .*mode 0622"),
        (lambda folder: (folder / "host.key").unlink(), r"host\.key cannot be read: No such file"),
        (lambda folder: (folder / "host.pem").write_text(""), r"host\.pem is no PEM text"),
        (lambda folder: (folder / "host.pem").write_bytes(b"\xff" * 9), r"host\.pem is no PEM text"),
        (lambda folder: (folder / "host.pem").write_text("-----BEGIN " + "x" * MOST_BYTES), r"more than 65536 bytes"),
        (lambda folder: as_link(folder / "host.key"), r"host\.key cannot be read: Too many levels of symbolic links"),
        (lambda folder: as_pipe(folder / "host.key"), r"host\.key is no file"),
    ],
)
def test_files_that_others_reach_or_that_are_spoilt_are_refused(
    written: tuple[Credentials, Path], spoil: Callable[[Path], object], reason: str
) -> None:
    _, folder = written
    spoil(folder)
    with pytest.raises(CredentialsError, match=reason):
        Credentials.read(folder, "host")


def as_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", ["", "host.key"])
def test_files_of_another_user_are_refused(written: tuple[Credentials, Path], name: str) -> None:
    _, folder = written
    os.chown(folder / name, 65534, 65534)
    with pytest.raises(CredentialsError, match=r"is of user 65534"):
        Credentials.read(folder, "host")


def test_a_folder_that_is_a_file_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CredentialsError, match=r"file is no folder"):
        Credentials.read(tmp_path / "file", "host")
    with pytest.raises(CredentialsError, match=r"absent cannot be read: No such file or directory; hybridsync certs"):
        Credentials.read(tmp_path / "absent", "host")


def test_nothing_is_overwritten(written: tuple[Credentials, Path], authority: Authority, stranger: Authority) -> None:
    credentials, folder = written
    with pytest.raises(CredentialsError, match=r"host\.pem is there already, and is not overwritten"):
        authority.issue("host", 3).write(folder, "host")
    with pytest.raises(CredentialsError, match=r"ca\.pem is of another authority"):
        stranger.issue("user").write(folder, "user")
    assert Credentials.read(folder, "host") == credentials
    authority.issue("user").write(folder, "user")  # of the same authority it may lie beside
    assert Credentials.read(folder, "user").authority == credentials.authority


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left"):
        write_private(tmp_path, {"key": "-----BEGIN"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_of_several_files_all_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    done, real = [], getattr(os, call)

    def full_the_second_time(*arguments: Any) -> None:
        done.append(arguments)
        if len(done) == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(os, call, full_the_second_time)
    with pytest.raises(OSError, match=r"No space left"):
        write_private(tmp_path, {"first": "-----BEGIN", "second": "-----BEGIN"})
    assert len(done) == 2 and list(tmp_path.iterdir()) == []


def test_files_that_are_replaced_are_the_new_ones_and_of_one_pair(
    written: tuple[Credentials, Path], authority: Authority, stranger: Authority
) -> None:
    _, folder = written
    for credentials in (authority.issue("host", 3), stranger.issue("host", 3)):
        credentials.write(folder, "host", replace=True)
        assert Credentials.read(folder, "host") == credentials
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_key_of_another_certificate_is_refused(written: tuple[Credentials, Path], authority: Authority) -> None:
    _, folder = written
    (folder / "host.key").write_text(authority.issue("host", 3).key)
    with pytest.raises(CredentialsError, match=r"host\.key is not the key of .*host\.pem, or one of them is damaged"):
        Credentials.read(folder, "host")


def test_a_folder_that_others_can_enter_gets_no_key(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(CredentialsError, match=r"a folder of keys has to be its user's alone"):
        authority.issue("user").write(tmp_path / "open", "user")
    assert list((tmp_path / "open").iterdir()) == []


def test_credentials_cannot_be_changed(authority: Authority) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        authority.issue("user").key = "another"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("made", [-400, 2], ids=["ended", "to come"])
def test_a_certificate_that_is_not_good_now_is_refused_with_its_dates(
    authority: Authority, tmp_path: Path, made: int
) -> None:
    then = datetime.datetime.fromtimestamp(SYSTEM_CLOCK.wall(), datetime.UTC) + datetime.timedelta(days=made)
    authority.issue("host", 1, now=then).write(tmp_path / "1", "host")
    with pytest.raises(CredentialsError, match=r"host\.pem is good from \d{4}-.* and it is .*certs issue --replace"):
        Credentials.read(tmp_path / "1", "host")
