"""A workdir in an object store is refused by name, wherever a workdir is taken, and leaves no folder behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.core.paths import local_path
from tests.trainers import tally_trainer

ROOT = Path(__file__).resolve().parents[2]
STORES = ["gs://bucket/run", "s3://bucket/run", "abfss://container/run", "hdfs://host/run", "file:///data/run"]
REFUSED = "object stores are not supported yet; write to a local or shared path"


@pytest.mark.parametrize("store", STORES)
def test_every_scheme_is_refused_also_as_a_path(store: str) -> None:
    for named in (store, Path(store)):
        with pytest.raises(WorkdirError, match=REFUSED) as refused:
            local_path(named)
        assert str(refused.value).startswith(f"the path {named} names an object store ({store.split(':')[0]})")


@pytest.mark.parametrize("path", ["runs/a", "/data/a:b/c", "./gs:/a", "a", "a:b", "", "../a"])
def test_paths_of_the_file_system_are_taken(path: str) -> None:
    assert local_path(path) == Path.cwd() / path


@pytest.mark.parametrize("option", ["workdir", "init_from"])
def test_a_trainer_refuses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkdirError, match=REFUSED):
        tally_trainer(**cast("dict[str, Any]", {option: "gs://bucket/run"}))
    assert list(tmp_path.iterdir()) == []


COMMANDS = {
    "train": ["--config={root}/configs/tally.py", "--workdir=gs://bucket/run"],
    "train from": ["--config={root}/configs/tally.py", "--workdir=runs/a", "--init_from=gs://bucket/run"],
    "tune": ["--config={root}/configs/tally.py", "--workdir=gs://bucket/run"],
    "simulate": ["--config={root}/configs/tally.py", "--workdir=gs://bucket/run"],
    "report": ["gs://bucket/run"],
    "replay": ["gs://bucket/run"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_one_in_one_line(tmp_path: Path, name: str) -> None:
    flags = [flag.format(root=ROOT) for flag in COMMANDS[name]]
    done = subprocess.run(
        [sys.executable, "-m", f"hybridsync.cli.{name.split()[0]}", *flags],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: the path gs://bucket/run names an object store (gs)")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
