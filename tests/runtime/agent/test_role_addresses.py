"""The folder of a run's sockets: whose it is, what is removed of it, and where none can be."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from hybridsync.core.addresses import MAX_SOCKET_PATH, socket_path
from hybridsync.core.errors import AddressError
from hybridsync.runtime.agent.role_addresses import RoleAddresses, SocketFolder

MAKER = """
import sys
from pathlib import Path
from hybridsync.runtime.agent.role_addresses import SocketFolder
folder = SocketFolder(Path(sys.argv[1]))
print(folder.address("chief"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name; pytest's own are too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def place_of(folder: SocketFolder) -> Path:
    path = socket_path(folder.address("chief"))
    assert path is not None
    return path.parent


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


@pytest.mark.parametrize("umask", [0, 0o177, 0o777])
@pytest.mark.parametrize("mode", [0o700, 0o2700, 0o1777])
def test_it_is_its_users_alone_and_goes_with_its_sockets(short: Path, umask: int, mode: int) -> None:
    short.chmod(mode)
    former = os.umask(umask)
    try:
        folder = SocketFolder(short)
    finally:
        os.umask(former)
    assert stat.S_IMODE(place_of(folder).stat().st_mode) == 0o700
    bind(place_of(folder) / "chief")
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
        bind(abandoned / "chief")
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        mine = SocketFolder(short)
        assert not abandoned.exists() and in_use.exists()
        mine.remove()
    finally:
        for maker in (killed, live):
            maker.kill()
            maker.communicate(timeout=120)


def test_nothing_but_sockets_in_a_marked_folder_of_this_boot_is_ever_removed(short: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    work, unmarked, other, used = (
        short / f"hybridsync-{name}" for name in ("demo", "sockets-a", "sockets-b", "sockets-c")
    )
    for folder in (work, unmarked, other, used):
        folder.mkdir(mode=0o700)
        (folder / "checkpoint").write_text("precious")
        bind(folder / "chief")
    (work / "boot").write_text(boot)
    (other / "boot").write_text("of another machine, or before it was started again")
    (used / "boot").write_text(boot)
    SocketFolder(short).remove()
    assert [(folder / "checkpoint").read_text() for folder in (work, unmarked, other, used)] == ["precious"] * 4
    assert [(folder / "chief").exists() for folder in (work, unmarked, other, used)] == [True, True, True, False]


def test_a_parent_that_is_too_long_or_cannot_be_written_to_an_address_is_passed_over(short: Path) -> None:
    long, odd = short / ("x" * MAX_SOCKET_PATH), short / "with space%20"
    for folder in (long, odd):
        folder.mkdir()
    folder = SocketFolder(short / "absent", long, odd, short)
    assert place_of(folder).parent == short and not any(long.iterdir()) and not any(odd.iterdir())
    folder.remove()
    with pytest.raises(
        AddressError, match=r"no place .*absent: No such file.*; .*too long.*; .*characters.*set TMPDIR"
    ):
        SocketFolder(short / "absent", long, odd)


def test_a_parent_in_which_others_may_rename_is_refused(short: Path) -> None:
    short.chmod(0o777)
    with pytest.raises(AddressError, match="other users may rename"):
        SocketFolder(short)


def test_a_place_without_sockets_is_passed_over_and_left_as_it_was(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("hybridsync.runtime.agent.role_addresses.socket.socket", Refusing)
    with pytest.raises(AddressError, match="Operation not permitted"):
        SocketFolder(short)
    assert not any(short.iterdir())


def test_every_process_has_an_address_of_its_own_and_each_chief_the_same() -> None:
    addresses = RoleAddresses()
    try:
        roles = [(role, role_id, count) for role in ("server", "worker") for role_id in (0, 1) for count in (0, 1)]
        assert len({addresses.of(*role) for role in roles} | {addresses.next_service(), addresses.next_service()}) == 10
        assert addresses.of("chief", 0, 0) == addresses.of("chief", 0, 1)
    finally:
        addresses.close()
    ports = RoleAddresses("::1", 4711)
    try:
        assert ports.of("chief", 0, 0) == "[::1]:4711" and ports.of("worker", 0, 0) == "[::1]:0"
        assert ports.has_sockets and socket_path(ports.next_service()) is not None
    finally:
        ports.close()


def test_ports_do_without_a_place_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridsync.runtime.agent.role_addresses.SocketFolder", Mock(side_effect=AddressError("none")))
    ports = RoleAddresses("::1", 4711)
    assert not ports.has_sockets and ports.next_service() == "[::1]:0"
    with pytest.raises(AddressError):
        RoleAddresses()


@pytest.mark.parametrize("gone", ["chief", "worker-0-0"])
def test_a_socket_that_its_server_removes_meanwhile_keeps_nothing_else_from_being_removed(
    short: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    folder, unlink = SocketFolder(short), os.unlink

    def raced(path: str | Path) -> None:
        unlink(path)
        if Path(path).name == gone:
            unlink(path)

    for name in ("chief", "worker-0-0"):
        bind(place_of(folder) / name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", raced)
        folder.remove()
    assert not any(short.iterdir())


def test_a_removal_that_is_cut_short_is_finished_by_the_next_launch(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unlink = SocketFolder(short), os.unlink

    def refuse(path: str | Path) -> None:
        if Path(path).name == "chief":
            raise PermissionError
        unlink(path)

    bind(place_of(folder) / "chief")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        folder.remove()
    SocketFolder(short).remove()
    assert not any(short.iterdir())


def _removed(path: Path) -> None:
    shutil.rmtree(path)


def _moved(path: Path) -> None:
    path.rename(path.with_name("another"))


def _emptied(path: Path) -> None:
    for entry in path.iterdir():
        entry.unlink()


@pytest.mark.parametrize("take", [_removed, _moved, _emptied])
def test_a_folder_that_is_gone_is_made_again_at_its_path_and_stays_its_run_s(
    short: Path, take: Callable[[Path], None]
) -> None:
    folder = SocketFolder(short)
    path = place_of(folder)
    assert not folder.keep()
    take(path)
    assert folder.keep()
    assert not folder.keep()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    bind(path / "chief")
    SocketFolder(short).remove()  # another run of this user's, which removes what is abandoned
    assert path.exists()
    folder.remove()
    assert not path.exists()


def test_a_folder_whose_place_is_taken_is_named_and_made_once_the_place_is_free(short: Path) -> None:
    folder = SocketFolder(short)
    path = place_of(folder)
    shutil.rmtree(path)
    path.symlink_to("/")
    for _ in range(2):
        with pytest.raises(AddressError, match=f"the folder of the run's sockets, {path}, is gone: "):
            folder.keep()
    path.unlink()
    assert folder.keep()
    folder.remove()
