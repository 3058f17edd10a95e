"""How a command finds a running chief: through a file that is the user's alone, of a run that is alive."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync.core.errors import NotRunning, WorkdirError
from hybridsync.core.process_start import start_of
from hybridsync.runtime.control_file import (
    CONTROL_FILE,
    await_end,
    command_port,
    read_control,
    remove_control,
    write_control,
)
from hybridsync.security.keyring import Keyring
from hybridsync.storage.durable import LOCK_FILE, WorkdirLock
from hybridsync.storage.lock_holder import holder_of
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.transport.link import Services
from tests.transport.certified import authority
from tests.transport.conftest import FakeChief, FakeServer


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def written(workdir: Path, sockets: Path, pid: int = 0, **changes: Any) -> Path:
    write_control(workdir, f"unix:{sockets}/chief", "secret", pid or os.getpid())
    path = workdir / CONTROL_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_a_running_chief_is_found_and_its_token_is_shown_nowhere(tmp_path: Path, sockets: Path) -> None:
    path = written(tmp_path, sockets)
    control = read_control(tmp_path)
    assert (control.address, control.token, control.pid) == (f"unix:{sockets}/chief", "secret", os.getpid())
    assert "secret" not in repr(control) and path.stat().st_mode & 0o777 == 0o600
    remove_control(tmp_path)
    remove_control(tmp_path)
    assert not path.exists()


def test_a_file_that_lay_there_before_does_not_open_it_to_others(tmp_path: Path, sockets: Path) -> None:
    (tmp_path / f".{CONTROL_FILE}.tmp").write_text("")
    (tmp_path / f".{CONTROL_FILE}.tmp").chmod(0o666)
    before = os.umask(0)
    try:
        assert written(tmp_path, sockets).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_file_that_a_killed_run_has_left_names_nobody(tmp_path: Path, sockets: Path) -> None:
    written(tmp_path, sockets, started=start_of(os.getpid()) + 1)  # its number has come again
    with pytest.raises(NotRunning, match=r"is not running; start it with the command"):
        read_control(tmp_path)
    written(tmp_path, sockets, boot="another\n", host="elsewhere")
    with pytest.raises(NotRunning, match=f"was started on elsewhere, and this is {socket.gethostname()}"):
        read_control(tmp_path)


@pytest.mark.parametrize(("mode", "text"), [(0o644, "0644"), (0o620, "0620")])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, sockets: Path, mode: int, text: str) -> None:
    written(tmp_path, sockets).chmod(mode)
    with pytest.raises(WorkdirError, match=rf"control\.json is of user \d+ with the mode {text}, .* that user's alone"):
        read_control(tmp_path)


def test_a_socket_in_a_folder_of_others_is_refused(tmp_path: Path, sockets: Path) -> None:
    written(tmp_path, sockets)
    sockets.chmod(0o755)
    with pytest.raises(WorkdirError, match=f"{sockets} is of user"):
        read_control(tmp_path)


def test_a_link_is_no_control_file(tmp_path: Path, sockets: Path) -> None:
    path = written(tmp_path, sockets)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkdirError, match="cannot read"):
        read_control(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "5", "null", "[" * 60_000, "{}", '{"address": 1}'])
def test_a_damaged_file_leads_nowhere_and_names_no_process_where_there_is_none(
    tmp_path: Path, sockets: Path, text: str
) -> None:
    written(tmp_path, sockets).write_text(text)
    with pytest.raises(NotRunning, match=r"control\.json is damaged .* is not running; start it"):
        read_control(tmp_path)
    with WorkdirLock(tmp_path), pytest.raises(NotRunning, match=rf"is damaged .* process {os.getpid()} has the run"):
        read_control(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("address", 5), ("pid", "1"), ("started", None)])
def test_a_field_of_another_type_is_damage(tmp_path: Path, sockets: Path, name: str, value: Any) -> None:
    written(tmp_path, sockets, **{name: value})
    with pytest.raises(NotRunning, match=rf"is damaged \(its {name} is "):
        read_control(tmp_path)


def test_a_run_whose_sockets_are_gone_is_not_reached(tmp_path: Path, sockets: Path) -> None:
    written(tmp_path, sockets / "gone")
    with WorkdirLock(tmp_path), pytest.raises(NotRunning, match=rf"{sockets}/gone of the run's sockets is gone; proc"):
        read_control(tmp_path)


def test_what_cannot_be_a_workdir_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkdirError, match=r"cannot read a+: File name too long; name the --workdir"):
        read_control(Path("a" * 300))

    def refused(path: object, *more: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(WorkdirError, match=f"cannot read {tmp_path}: Permission denied"):
        read_control(tmp_path)


def test_another_container_of_this_machine_is_named(tmp_path: Path, sockets: Path) -> None:
    written(tmp_path, sockets, host="another-container", pid=4_000_000)  # it has the boot id of this one
    with pytest.raises(NotRunning, match="was started on another-container, and this is"):
        read_control(tmp_path)


def test_the_lock_itself_says_who_has_the_workdir(tmp_path: Path) -> None:
    lock, here = tmp_path / LOCK_FILE, socket.gethostname()
    lock.write_text(json.dumps({"pid": 1, "host": here}))  # a killed run's, whose number has come again
    assert holder_of(tmp_path) is None
    with pytest.raises(NotRunning, match="is not running"):
        read_control(tmp_path)
    with WorkdirLock(tmp_path):
        found = holder_of(tmp_path)
        assert found is not None and found.name == f"process {os.getpid()}"
        lock.write_text(json.dumps({"pid": os.getpid(), "host": here, "started": start_of(os.getpid()) + 1}))
        with pytest.raises(NotRunning, match="is in use, but no command reaches its run: it is starting or ending"):
            read_control(tmp_path)
        lock.write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
        found = holder_of(tmp_path)
        assert found is not None and found.name == "process 7 on elsewhere"


def test_a_run_without_the_file_is_not_running_or_not_to_be_reached(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"there is no run in .*; name the --workdir of a run"):
        read_control(tmp_path)
    with (
        WorkdirLock(tmp_path),
        pytest.raises(NotRunning, match=rf"process {os.getpid()} has the run in .* but no command reaches it"),
    ):
        read_control(tmp_path)
    with pytest.raises(WorkdirError, match="there is no folder"):
        read_control(tmp_path / "nowhere")


def test_the_end_of_a_run_is_waited_for(tmp_path: Path, sockets: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    written(tmp_path, sockets, child.pid)
    control = read_control(tmp_path)
    assert not await_end(control, 0.01)
    child.communicate(b"\n", timeout=60)
    assert await_end(control, 0.01)


def test_the_runs_user_calls_a_chief_that_asks_for_certificates(tmp_path: Path) -> None:
    services = Services(holder=FakeServer(np.zeros(8, np.uint8)), chief=FakeChief())
    serving = GrpcTransport(Keyring("secret", authority().issue("chief"))).serve(services, "127.0.0.1:0", calls=4)
    write_control(tmp_path, serving.address, "secret", os.getpid(), authority().issue("user"))
    path = tmp_path / CONTROL_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    control = read_control(tmp_path)
    assert "PRIVATE KEY" not in repr(control)
    assert command_port(control).status() == FakeChief().status()
    serving.stop(wait_secs=10)


@pytest.mark.parametrize("told", [{}, {"key": "x"}, "x", 3, {"authority": "x", "certificate": "x", "key": "x"}])
def test_a_file_with_damaged_credentials_leads_nowhere(tmp_path: Path, sockets: Path, told: Any) -> None:
    written(tmp_path, sockets, credentials=told)
    with pytest.raises(NotRunning, match=rf"{CONTROL_FILE} is damaged \("):
        read_control(tmp_path)
