from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import WorkdirTaken
from hybridsync.storage import lock_beats
from hybridsync.storage.durable import FILE_MODE
from hybridsync.storage.lock_beats import Beats, read_anew, read_beat

WAIT_SECS = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_beats, "BEAT_SECS", 0.01)


def beats_of(folder: Path, check=lambda: None) -> Beats:
    return Beats(folder, "5eed", FILE_MODE, check)


def until_beat(folder: Path, former: bytes) -> bytes:
    """Wait for another beat than `former` and return it."""
    deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
    while (found := read_beat(folder)) == former:
        assert SYSTEM_CLOCK.monotonic() < deadline, f"the beat stays {former!r}"
        pause(0.005)
    return found


def test_the_beat_changes_again_and_again_until_it_is_stopped(tmp_path: Path) -> None:
    beats = beats_of(tmp_path)
    beats.start()
    first = until_beat(tmp_path, b"")
    second = until_beat(tmp_path, first)
    assert first.startswith(b"5eed ") and len(first) == len(second)
    assert (tmp_path / "beat").stat().st_mode & 0o777 == 0o600
    beats.stop()
    last = read_beat(tmp_path)
    pause(0.05)
    assert read_beat(tmp_path) == last
    beats.remove()
    assert read_beat(tmp_path) == b""


def test_a_disk_that_refuses_beats_gets_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = Beats._write, threading.Event()

    def refuse_once(self: Beats, count: int) -> None:
        if not refused.is_set():
            refused.set()
            raise OSError(28, "No space left on device")
        write(self, count)

    monkeypatch.setattr(Beats, "_write", refuse_once)
    beats = beats_of(tmp_path)
    beats.start()
    until_beat(tmp_path, b"")
    beats.stop()
    assert refused.is_set() and beats.lost is None


def test_who_has_lost_the_lock_beats_no_more_and_knows_why(tmp_path: Path) -> None:
    taken, asked = WorkdirTaken("process 8 on there has it"), threading.Event()

    def check() -> None:
        asked.set()
        raise taken

    beats = beats_of(tmp_path, check)
    beats.start()
    assert asked.wait(WAIT_SECS)
    beats.stop()
    assert beats.lost is taken and read_beat(tmp_path) == b""


def test_a_beat_that_hangs_in_the_disk_keeps_nobody_waiting_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, let_go = threading.Event(), threading.Event()

    def hang(self: Beats, count: int) -> None:
        hanging.set()
        let_go.wait(WAIT_SECS)

    monkeypatch.setattr(Beats, "_write", hang)
    monkeypatch.setattr(lock_beats, "_JOIN_SECS", 0.05)
    beats = beats_of(tmp_path)
    beats.start()
    assert hanging.wait(WAIT_SECS)
    began = SYSTEM_CLOCK.monotonic()
    beats.stop()
    assert SYSTEM_CLOCK.monotonic() - began < WAIT_SECS / 2
    let_go.set()


def test_a_file_is_opened_anew_each_time_it_is_read(tmp_path: Path) -> None:
    assert read_anew(tmp_path / "note") == b""
    (tmp_path / "note").write_bytes(b"old")
    (tmp_path / "other").write_bytes(b"new")
    assert read_anew(tmp_path / "note") == b"old"
    (tmp_path / "other").replace(tmp_path / "note")
    assert read_anew(tmp_path / "note") == b"new"
