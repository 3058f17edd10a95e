"""The folder of a run's sockets: whose it is, and that none is left behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.core.addresses import MAX_SOCKET_PATH, socket_path
from hybridsync.core.errors import AddressError
from hybridsync.runtime.role_addresses import RoleAddresses
from hybridsync.runtime.socket_folder import SocketFolder

MAKER = """
import sys
from pathlib import Path
from hybridsync.runtime.socket_folder import SocketFolder
folder = SocketFolder(Path(sys.argv[1]))
print(folder.address("chief"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name; pytest's own are too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_it_is_its_users_alone_and_goes_with_what_is_in_it(short: Path) -> None:
    former = os.umask(0)
    try:
        folder = SocketFolder(short)
    finally:
        os.umask(former)
    path = socket_path(folder.address("chief"))
    assert path is not None and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.touch()
    folder.remove()
    folder.remove()
    assert not any(short.iterdir())


def test_that_of_a_killed_run_is_removed_by_the_next_one_and_that_of_a_live_one_stays(short: Path) -> None:
    def start() -> tuple[subprocess.Popen, Path]:
        command = [sys.executable, "-c", MAKER, str(short)]
        maker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert maker.stdout is not None
        path = socket_path(maker.stdout.readline().strip())
        assert path is not None
        return maker, path.parent

    killed, abandoned = start()
    live, in_use = start()
    try:
        assert abandoned.exists(), "the second took the folder of one that was alive"
        (abandoned / "chief").touch()
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        mine = SocketFolder(short)
        assert not abandoned.exists() and in_use.exists()
        mine.remove()
    finally:
        for maker in (killed, live):
            maker.kill()
            maker.communicate(timeout=10)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_that_of_another_user_is_left_alone(short: Path) -> None:
    theirs = short / "hybridsync-theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    SocketFolder(short).remove()
    assert theirs.exists()


def test_a_place_with_too_long_a_name_is_refused_with_what_to_do(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_SOCKET_PATH)
    long.mkdir()
    with pytest.raises(AddressError, match=r"the path of a socket has at most 107 bytes, .* set TMPDIR to a folder"):
        SocketFolder(long)
    assert not any(long.iterdir())


def test_a_long_folder_of_temporary_files_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * MAX_SOCKET_PATH)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    addresses = RoleAddresses()
    try:
        assert addresses.of("chief", 0, 3).startswith("unix:/tmp/hybridsync-")
    finally:
        addresses.remove()


def test_a_place_that_cannot_be_written_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"cannot make a folder for the run's sockets in .*absent: No such file"):
        SocketFolder(tmp_path / "absent")


def test_every_process_has_an_address_of_its_own_and_each_chief_the_same() -> None:
    addresses = RoleAddresses()
    try:
        roles = [(role, role_id, count) for role in ("server", "worker") for role_id in (0, 1) for count in (0, 1)]
        assert len({addresses.of(*role) for role in roles} | {addresses.next_service(), addresses.next_service()}) == 10
        assert addresses.of("chief", 0, 0) == addresses.of("chief", 0, 1)
    finally:
        addresses.remove()
    ports = RoleAddresses("::1", 4711)
    assert ports.of("chief", 0, 0) == "[::1]:4711" and ports.of("worker", 0, 0) == ports.next_service() == "[::1]:0"
