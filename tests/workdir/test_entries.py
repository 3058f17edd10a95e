"""What stands in the place of a run's files and folders is refused by its name, before anything is written or read."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.storage import durable
from hybridsync.workdir.resuming import FILES, FOLDERS, check_entries
from tests.command_lines import CommandLines, command_lines
from tests.trainers import LOGGED, tally_trainer


def _serve(path: Path) -> None:
    """Leave a socket behind; its path may be longer than an address can be."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _link_elsewhere(path: Path) -> None:
    (path.parent / "elsewhere").write_text("{}")
    path.symlink_to("elsewhere")


PLANTED: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": _serve,
    "symbolic link to nowhere, which is not there": lambda path: path.symlink_to("nowhere"),
    "folder": os.mkdir,
    "symbolic link": _link_elsewhere,
    "file": lambda path: path.write_text(""),
}
"""What an entry is called in the refusal, and how it comes about."""

IN_A_FILES_PLACE = ("fifo", "socket", "symbolic link to nowhere, which is not there", "folder", "symbolic link")
IN_A_FOLDERS_PLACE = ("fifo", "socket", "symbolic link to nowhere, which is not there", "file")


def planted(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PLANTED[kind](path)


CASES = [
    *((name, kind, "file") for name in (*FILES, ".config.json.tmp", "logs/chief-0.log") for kind in IN_A_FILES_PLACE),
    *((name, kind, "folder") for name in FOLDERS for kind in IN_A_FOLDERS_PLACE),
]


@pytest.mark.parametrize(("name", "kind", "wanted"), CASES)
def test_refused_by_name(tmp_path: Path, name: str, kind: str, wanted: str) -> None:
    planted(tmp_path / name, kind)
    with pytest.raises(WorkdirError) as refused:
        check_entries(tmp_path)
    said = "symbolic link" if kind.startswith("symbolic link") and wanted == "file" else kind
    assert str(refused.value) == (
        f"{tmp_path / name} is a {said}, and a run keeps a {wanted} there; move it away, or name another workdir"
    )


def test_a_link_to_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    (tmp_path / "disk" / "checkpoints").symlink_to(tmp_path / "disk")
    check_entries(tmp_path / "run")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    with command_lines(tmp_path_factory.mktemp("printed"), "train", "hybridsync.trainer") as train:
        yield train


@pytest.mark.parametrize("runtime", ["processes", "inprocess"])
@pytest.mark.parametrize("entry", ["summary.json", "events.jsonl", "phase"])
def test_train_refuses_it_at_once(train: CommandLines, tmp_path: Path, entry: str, runtime: str) -> None:
    workdir = tmp_path / "run"
    planted(workdir / entry, "fifo")
    done = train("--config=configs/tally.py", f"--workdir={workdir}", f"--runtime={runtime}")
    assert done.returncode == 1
    assert f"error: {workdir / entry} is a fifo, and a run keeps a" in done.stderr


@pytest.mark.parametrize("runtime", ["processes", "inprocess"])
@pytest.mark.parametrize("kind", [*IN_A_FOLDERS_PLACE, "loop of links"])
def test_a_workdir_that_is_no_folder_is_refused(train: CommandLines, tmp_path: Path, kind: str, runtime: str) -> None:
    (tmp_path / "run").symlink_to("run") if kind == "loop of links" else planted(tmp_path / "run", kind)
    done = train("--config=configs/tally.py", f"--workdir={tmp_path / 'run'}", f"--runtime={runtime}")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1 and str(tmp_path / "run") in done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run that was completed."""
    workdir = tmp_path_factory.mktemp("finished")
    tally_trainer("asp", 40, workdir=workdir, telemetry=LOGGED).fit()
    return workdir


def test_every_file_of_a_run_is_among_those_that_are_checked(finished: Path) -> None:
    found = {path.name for path in finished.iterdir()}
    assert found <= {*FILES, *FOLDERS}, "check_entries has to know of it"
    assert {"events.jsonl", "apply_log", "checkpoints"} <= found


@pytest.fixture(scope="module", params=["status", "report"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    """A command that reads a run."""
    with command_lines(tmp_path_factory.mktemp("printed"), request.param) as answer:
        yield answer


@pytest.mark.parametrize("name", ["summary.json", "events.jsonl", "metrics.jsonl", "timeline.json", "config.json"])
def test_a_command_that_reads_waits_for_no_fifo(
    reader: CommandLines, finished: Path, tmp_path: Path, name: str
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    done = reader(str(run))
    assert "Traceback" not in done.stderr
    if done.returncode == 1:
        assert name in done.stderr


def test_kinds_have_names() -> None:
    assert durable.kind_of(os.stat("/dev/null").st_mode) == "device"
    assert durable.kind_of(0) == "special file"
