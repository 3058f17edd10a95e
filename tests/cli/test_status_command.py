"""`hybridsync status` of a run that no command reaches: its lock says whether it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.cli.status import status_of
from hybridsync.core.errors import NotRunning, WorkdirError
from hybridsync.runtime.control_file import CONTROL_FILE
from hybridsync.storage.durable import WorkdirLock
from tests.telemetry.test_status import event, left


def test_the_lock_says_whether_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = left(tmp_path, event("run_finished", 4.0, exit="preempted"))
    with WorkdirLock(workdir):
        assert status_of(workdir).state == "starting"
    assert "no command reaches it: it is starting" in capsys.readouterr().err


def test_a_damaged_control_file_leaves_the_runs_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = left(tmp_path)
    (workdir / CONTROL_FILE).touch(mode=0o600)
    assert status_of(workdir).state == "interrupted"
    assert "control.json is damaged" in capsys.readouterr().err


def test_a_run_of_which_nothing_is_written_yet_is_starting(tmp_path: Path) -> None:
    with WorkdirLock(tmp_path), pytest.raises(NotRunning, match=r"it is starting or ending \(ask again\)"):
        status_of(tmp_path)
    with pytest.raises(WorkdirError, match="holds no run"):
        status_of(tmp_path)
