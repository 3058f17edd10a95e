"""What a run makes is its user's alone, whatever the umask; folders that were there keep their rights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.lab.tuning.job_history import History
from hybridsync.storage.durable import make_directory
from tests.trainers import LOGGED, tally_trainer


def rights(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """Return what below a folder others could read, or list."""
    return [f"{path.relative_to(folder)} {rights(path):o}" for path in folder.rglob("*") if rights(path) & 0o077]


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    assert os.umask(before) == 0, "the user's umask was changed"


@pytest.mark.usefixtures("no_umask")
def test_everything_that_a_run_leaves_is_its_users_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    tally_trainer("bsp:50%,asp", workdir=shared / "run", telemetry=LOGGED).fit()
    found = {path.name for path in (shared / "run").rglob("*")}
    assert found > {"checkpoints", "apply_log", "config.json", "events.jsonl", "metrics.jsonl", "summary.json", "lock"}
    assert open_to_others(shared) == []
    assert rights(shared / "run") == 0o700
    assert rights(shared) == 0o755


@pytest.mark.usefixtures("no_umask")
def test_a_workdir_that_was_there_keeps_its_rights_and_what_is_in_it_is_private(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    workdir.mkdir(mode=0o750)
    (workdir / "notes").touch(0o644)
    tally_trainer(workdir=workdir).fit()
    assert rights(workdir) == 0o750
    assert open_to_others(workdir) == ["notes 644"]


@pytest.mark.usefixtures("no_umask")
def test_the_job_history_is_private(tmp_path: Path) -> None:
    History(tmp_path / "there" / "history.sqlite", SYSTEM_CLOCK).close()
    assert open_to_others(tmp_path) == []


@pytest.mark.usefixtures("no_umask")
def test_folders_on_the_way_to_a_new_one_are_private_too(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    assert [rights(tmp_path / "a"), rights(tmp_path / "a" / "b")] == [0o700, 0o700]
