"""A file of JSON lines whose name is moved, removed or taken while it is open."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridsync.storage.jsonl import LineFile, read_lines


def _truncate(path: Path) -> None:
    """Do what log rotation does with `copytruncate`."""
    path.write_bytes(b"")


def _create_other(path: Path) -> None:
    """Do what log rotation does with `create`, for a file that another program has begun."""
    path.rename(path.with_suffix(".1"))
    path.write_text('{"other": 1}\n')


ROTATIONS: dict[Callable[[Path], object], list[int]] = {
    (lambda path: path.rename(path.with_suffix(".1"))): [2, 3],
    Path.unlink: [2, 3],
    _truncate: [2, 3],
    _create_other: [1, 2, 3],
}


@pytest.mark.parametrize("rotate", ROTATIONS)
def test_a_record_continues_in_a_new_file(tmp_path: Path, rotate: Callable[[Path], object]) -> None:
    path = tmp_path / "events.jsonl"
    lines = LineFile(path)
    lines.append({"n": 1})
    rotate(path)
    lines.append({"n": 2})
    lines.append({"n": 3})
    lines.close()
    assert [next(iter(line.values())) for line in read_lines(path)] == ROTATIONS[rotate]
    assert path.stat().st_mode & 0o077 == 0 or rotate is _create_other


def test_a_record_moves_along_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lines = LineFile(folder / "events.jsonl")
    lines.append({"n": 1})
    folder.rename(tmp_path / "moved")
    lines.append({"n": 2})
    lines.close()
    assert read_lines(tmp_path / "moved" / "events.jsonl") == [{"n": 1}, {"n": 2}]
    assert not folder.exists(), "a workdir that was moved is not made again by its record"


@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_lines_wait_while_something_else_has_the_name(
    tmp_path: Path, plant: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    lines = LineFile(path)
    path.unlink()
    plant(path)
    with caplog.at_level(logging.ERROR):
        lines.append({"n": 1})
        lines.append({"n": 2})
    assert caplog.text.count("its lines wait in memory") == 1
    path.rmdir() if path.is_dir() else path.unlink()
    lines.append({"n": 3})
    lines.close()
    assert read_lines(path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert not (tmp_path / "elsewhere").exists()
