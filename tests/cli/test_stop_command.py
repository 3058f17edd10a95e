"""`hybridsync stop` says that a run has stopped only where that session of it has saved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridsync.cli import stop
from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.commands import StopReply, StopRequest
from hybridsync.runtime.control_file import write_control
from hybridsync.storage.durable import write_durable


class Chief:
    """A chief whose supervisor ends after `last` was done."""

    def __init__(self, supervisor: subprocess.Popen[bytes], last: Callable[[], object]) -> None:
        self._supervisor, self._last = supervisor, last

    def stop(self, request: StopRequest) -> StopReply:
        self._last()
        self._supervisor.communicate(b"\n", timeout=60)
        return StopReply(900)


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def leave(workdir: Path, how: str, units: int) -> None:
    summary = {"exit": how, "units": {"applied": units}, "error": "worker 0 was lost" if how == "failed" else None}
    write_durable(workdir / "summary.json", json.dumps(summary))


def stopped(
    workdir: Path, process: subprocess.Popen[bytes], patch: pytest.MonkeyPatch, last: Callable[[], object]
) -> str:
    write_control(workdir, "127.0.0.1:1", "secret", process.pid)
    patch.setattr(stop, "command_port", lambda control: Chief(process, last))
    return stop.stop(workdir, "", wait=True)


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_ends_without_a_save_is_not_called_stopped(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    if before:
        leave(tmp_path, "preempted", 50)
    with pytest.raises(HybridSyncError, match=r"nothing says that it saved \(no new summary\.json\)") as raised:
        stopped(tmp_path, supervisor, monkeypatch, lambda: None)
    assert raised.value.exit_code == 70


def test_a_run_that_fails_while_it_stops_is_told_of(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HybridSyncError, match="failed at unit 900: worker 0 was lost") as raised:
        stopped(tmp_path, supervisor, monkeypatch, lambda: leave(tmp_path, "failed", 900))
    assert raised.value.exit_code == 70


@pytest.mark.parametrize(
    ("how", "then"), [("preempted", "; the command that started it goes on from there"), ("stopped", "")]
)
def test_a_run_that_has_saved_is_stopped(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, how: str, then: str
) -> None:
    leave(tmp_path, "preempted", 50)
    said = stopped(tmp_path, supervisor, monkeypatch, lambda: leave(tmp_path, how, 900))
    assert said == f"stopped: {how} at unit 900{then}"


def test_ctrl_c_ends_the_waiting_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **more: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(stop, "FLAGS", type("Flags", (), {"why": "", "wait": True}))
    monkeypatch.setattr(stop, "stop", interrupted)
    assert stop.main(["stop", str(tmp_path)]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("interrupted: a run that was told to stop goes on saving")
