import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]: made at import
from tensorboardX.proto.plugin_hparams_pb2 import (
    HParamsPluginData,  # pyright: ignore[reportAttributeAccessIssue]: made at import
)

from hybridsync.config import EmulationConfig, OptimizerConfig, RunConfig
from hybridsync.telemetry.metrics import Metrics
from hybridsync.telemetry.tensorboard import Board, TensorBoard, hyperparameters, open_board
from tests.telemetry.clocks import ManualClock

ROOT = Path(__file__).resolve().parents[2]
STALENESS = {"mean": 3.0, "p95": 4, "max": 7}
METRICS = Metrics(100, 3_200, 2, "asp", 0.25, 0.05, 6_400.0, STALENESS, {0: 3_000.0, 3: 3_400.0})


def _events(workdir: Path) -> list[Event]:
    """Return the records of the one file there is: a length, its check, the record and its check each."""
    (file,) = (workdir / "tensorboard").iterdir()
    content, events, at = file.read_bytes(), [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        events.append(Event.FromString(content[at + 12 : at + 12 + length]))
        at += 16 + length
    return events


def _scalars(workdir: Path) -> dict[tuple[str, int], float]:
    values = [(event, value) for event in _events(workdir) for value in event.summary.value]
    return {
        (value.tag, event.step): value.simple_value
        for event, value in values
        if value.WhichOneof("value") == "simple_value"
    }


def test_an_interval_becomes_scalars_at_its_units_that_can_be_read_at_once(tmp_path: Path) -> None:
    board = open_board(tmp_path, ManualClock().wall)
    assert isinstance(board, TensorBoard)
    board.metrics(METRICS)
    assert _scalars(tmp_path) == pytest.approx(
        {
            ("train/loss", 100): 0.25,
            ("train/learning_rate", 100): 0.05,
            ("examples_per_sec/all", 100): 6_400.0,
            ("examples_per_sec/worker_0", 100): 3_000.0,
            ("examples_per_sec/worker_3", 100): 3_400.0,
            ("staleness/mean", 100): 3.0,
            ("staleness/p95", 100): 4.0,
            ("staleness/max", 100): 7.0,
        }
    )
    board.close()


def test_evaluations_are_scalars_and_what_is_unknown_or_no_figure_is_left_out(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, ManualClock().wall)
    board.evaluated(100, {"accuracy": 0.75, "loss": None, "words": "many"})
    board.metrics(Metrics(200, 6_400, 2, "asp", None, 0.5, 1.0, {}, {}))
    board.close()
    assert _scalars(tmp_path) == {
        ("eval/accuracy", 100): 0.75,
        ("train/learning_rate", 200): 0.5,
        ("examples_per_sec/all", 200): 1.0,
    }


def test_hyperparameters_are_a_session_of_the_hparams_page_that_ends_as_a_success(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, ManualClock().wall)
    board.started(8, {"plan": "bsp:50%,asp", "learning_rate": 0.5, "nesterov": False, "mask": len, "mu_dtype": None})
    board.completed(100)
    board.close()
    values = {value.tag: (event.step, value.metadata) for event in _events(tmp_path) for value in event.summary.value}
    assert {metadata.plugin_data.plugin_name for _, metadata in values.values()} == {"hparams"}
    parts = {tag: HParamsPluginData.FromString(metadata.plugin_data.content) for tag, (_, metadata) in values.items()}
    assert values.keys() == {"_hparams_/session_start_info", "_hparams_/session_end_info"}
    assert values["_hparams_/session_start_info"][0] == 8 and values["_hparams_/session_end_info"][0] == 100
    shown = parts["_hparams_/session_start_info"].session_start_info.hparams
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in shown.items()} == {
        "plan": "bsp:50%,asp",
        "learning_rate": 0.5,
        "nesterov": False,
        "mask": "len",
    }
    assert parts["_hparams_/session_end_info"].session_end_info.status == 1, "a success"


def test_the_hyperparameters_of_a_run_are_those_that_people_compare_and_what_is_not_a_default() -> None:
    config = RunConfig(
        workload=400,
        plan="bsp",
        emulation=EmulationConfig(stragglers="worker=3,factor=4"),
        optimizer=OptimizerConfig(learning_rate=0.1),
    )
    assert hyperparameters(config, {"learning_rate": 0.001, "b1": 0.9}) == {
        "workload": 400,
        "unit_size": 32,
        "workers": 4,
        "servers": 1,
        "plan": "bsp",
        "seed": 0,
        "emulation.stragglers": "worker=3,factor=4",
        "learning_rate": 0.001,
        "b1": 0.9,
    }


def test_phases_are_text_and_records_carry_the_injected_clocks_time(tmp_path: Path) -> None:
    clock = ManualClock()
    board = TensorBoard(tmp_path, clock.wall)
    clock.advance(5.0)
    board.entered(100, "phase 2: asp")
    board.close()
    event = _events(tmp_path)[-1]
    (value,) = event.summary.value
    assert (event.step, event.wall_time) == (100, clock.wall())
    assert value.tensor.string_val[0] == b"phase 2: asp"
    assert value.metadata.plugin_data.plugin_name == "text"


def test_a_full_disk_ends_the_file_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = TensorBoard(tmp_path, ManualClock().wall)
    board.evaluated(100, {"loss": 0.5})

    def full() -> NoReturn:
        raise OSError(28, "No space left on device")

    flush, board._writer.flush = board._writer.flush, full
    board.evaluated(200, {"loss": 0.25})
    board._writer.flush = flush
    board.entered(300, "phase 2")
    board.close()
    assert caplog.text.count("No space left") == 1
    assert {step for _, step in _scalars(tmp_path)} <= {100, 200}
    assert 300 not in {event.step for event in _events(tmp_path)}


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_records_that_were_removed_continue_in_a_new_file(tmp_path: Path, lost: str) -> None:
    board = TensorBoard(tmp_path, ManualClock().wall)
    board.evaluated(100, {"loss": 0.5})
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.unlink()
    if lost == "folder":
        file.parent.rmdir()
    board.evaluated(200, {"loss": 0.25})
    board.close()
    assert _scalars(tmp_path) == {("eval/loss", 200): 0.25}
    assert file.stat().st_mode & 0o077 == 0


def test_no_record_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    board = TensorBoard(tmp_path, ManualClock().wall)
    board.metrics(METRICS)
    board.close()
    assert synced == []


def test_what_does_nothing_takes_the_same_calls() -> None:
    board = Board()
    board.metrics(METRICS)
    board.started(0, {"plan": "asp"})
    board.evaluated(1, {})
    board.entered(1, "")
    board.completed(2)
    board.close()


PROGRAM = """
import sys
from pathlib import Path
from absl import logging
from hybridsync.telemetry.tensorboard import open_board
board = open_board(Path(sys.argv[1]), lambda: 0.0)
print(type(board).__name__, "torch" in sys.modules)
import torch
"""


def opened_beside(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Open a board in a fresh interpreter that finds modules of the given text first."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    paths = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_pytorch_that_does_not_load_is_not_imported_and_can_be_imported_later(tmp_path: Path) -> None:
    done = opened_beside(tmp_path, torch="raise OSError('libtorch_global_deps.so: cannot open shared object file')")
    assert done.stdout == "TensorBoard False\n"
    assert "libtorch_global_deps" in done.stderr, "by whoever asks for it afterwards"


@pytest.mark.parametrize(
    "raises",
    [
        "OSError('no such library')",
        "ImportError('cannot import name')",
        "TypeError('protobuf\\nis newer')",
        "SyntaxError('x')",
    ],
)
def test_a_writer_whose_import_raises_is_told_in_one_line_and_ends_nothing(tmp_path: Path, raises: str) -> None:
    done = opened_beside(tmp_path, tensorboardX=f"raise {raises}", torch="")
    assert (done.returncode, done.stdout) == (0, "Board False\n")
    (line,) = done.stderr.splitlines()
    assert "no tensorboard is written, tensorboardX cannot be imported: " in line


def test_a_writer_that_is_not_installed_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert type(open_board(tmp_path, ManualClock().wall)) is Board and not caplog.records
