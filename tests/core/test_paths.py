"""Paths that users name: the home, another working directory, and names that no checkpoint can have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync.core.errors import ConfigError
from hybridsync.core.paths import local_path
from hybridsync.trainer import Trainer
from tests.trainers import tally_trainer

ROOT = Path(__file__).resolve().parents[2]

CHANGES_FOLDER = """
import os
from dataclasses import replace

from configs import tally

os.chdir("data")


def config():
    return replace(tally.config(), workload=24, workers=2, plan="asp")


def task(config):
    assert os.path.exists("here")
    os.chdir("/")
    return tally.task(config)


optimizer = tally.optimizer
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def command(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "hybridsync", *arguments]
    return subprocess.run(
        program,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


def test_a_path_is_whole_with_its_home_filled_in(home: Path) -> None:
    assert local_path("~/runs/a") == home / "runs" / "a"
    assert local_path("a/b") == home / "work" / "a" / "b"
    assert local_path("./~/a") == home / "work" / "~" / "a"
    assert local_path("/a~/b") == Path("/a~/b")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("~nobody-of-that-name/runs", "begins with a home that is not there; write ./~nobody"),
        (os.fsdecode(b"runs/r\xe9sum\xe9"), r"runs/r\\xe9sum\\xe9 is not valid UTF-8 in place 7"),
        ("runs/a\0b", "holds a null character"),
    ],
)
def test_a_path_that_cannot_be_meant_or_used_is_refused_with_the_reason(path: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        local_path(path)
    for option in ("workdir", "init_from", "history", "file"):
        with pytest.raises(ConfigError, match=named):
            tally_trainer("asp", 8, **{option: path})


UNREADABLE = b"r\xe9sum\xe9"
COMMANDS = {
    "train workdir": [b"--config=job.py", b"--workdir=" + UNREADABLE],
    "train init_from": [b"--config=job.py", b"--workdir=a", b"--init_from=" + UNREADABLE],
    "train history": [b"--config=job.py", b"--workdir=a", b"--plan=auto", b"--history=" + UNREADABLE],
    "train compilation_cache": [b"--config=job.py", b"--workdir=a", b"--compilation_cache=" + UNREADABLE],
    "train config": [b"--config=" + UNREADABLE + b".py", b"--workdir=a"],
    "train inprocess": [b"--config=job.py", b"--workdir=" + UNREADABLE, b"--runtime=inprocess"],
    "simulate events": [b"--config=job.py", b"--events=" + UNREADABLE],
    "tune workdir": [b"--config=job.py", b"--workdir=" + UNREADABLE],
    "report out": [b"a", b"--out=" + UNREADABLE],
    "report run": [UNREADABLE],
    "replay run": [UNREADABLE],
    "status run": [UNREADABLE],
    "logs run": [UNREADABLE],
    "stop run": [UNREADABLE],
    "switch run": [UNREADABLE, b"asp"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_name_that_is_no_utf8_is_refused_in_one_line_before_anything_starts(home: Path, name: str) -> None:
    done = command(name.split()[0], *COMMANDS[name])
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: the path ") and "is not valid UTF-8 in place" in done.stderr
    assert done.stderr.count("\n") == 1 and not [*Path.cwd().iterdir()]


@pytest.mark.parametrize("runtime", ["inprocess", "processes"])
def test_a_run_is_where_its_flags_say_though_its_file_changes_the_working_directory(home: Path, runtime: str) -> None:
    (home / "job.py").write_text(CHANGES_FOLDER)
    (home / "work" / "data").mkdir()
    (home / "work" / "data" / "here").touch()
    flags = [f"--runtime={runtime}", "--compilation_cache=off"]
    done = command("train", "--config=~/job.py", "--workdir=run", *flags)
    assert done.returncode == 0, done.stderr
    done = command("train", "--config=../job.py", "--workdir=~/other", "--init_from=run", *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["data", "run"]
    assert (home / "other" / "summary.json").exists()


def test_a_trainer_is_where_it_was_told_when_it_was_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tally_trainer("asp", 8, workdir="run")
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    assert trainer.fit().completed
    assert (home / "work" / "run" / "summary.json").exists() and not [*(home / "elsewhere").iterdir()]
    again = tally_trainer("asp", 8, workdir=Path("~", "work", "run"))
    assert again.fit().completed and not [*(home / "elsewhere").iterdir()]


def test_a_trainer_of_a_file_is_where_it_was_told_though_the_file_changes_the_working_directory(home: Path) -> None:
    (home / "job.py").write_text(CHANGES_FOLDER)
    (home / "work" / "data").mkdir()
    (home / "work" / "data" / "here").touch()
    trainer = Trainer.from_config("~/job.py", workdir="run", progress=False)
    assert Path.cwd() == Path("/")
    assert trainer.fit().completed and (home / "work" / "run" / "summary.json").exists()
