"""The apply log: whole lines only, and cut back to the state that a resume starts from."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from hybridsync.interfaces.messages import GroupUpdate, PushInUpdate
from hybridsync.storage import apply_log
from hybridsync.storage.apply_log import FileApplyLog, cut, forget, in_thread, open_apply_log, read, records
from hybridsync.storage.apply_log_entries import Entry, Left, Stepped

DEADLINE_SECS = 30.0


def entry(sequence: int) -> Entry:
    return Entry(1, sequence, (sequence - 1,), sequence - 1, 1.0, 1.0, 0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Hold a log of four updates."""
    path = tmp_path / "apply_log"
    log = FileApplyLog(path)
    for sequence in range(1, 5):
        log.write(entry(sequence))
    assert not path.exists(), "lines wait for the flush"
    log.flush()
    return path


def test_entries_are_read_as_they_were_written(path: Path) -> None:
    assert list(read(path)) == [entry(sequence) for sequence in range(1, 5)]


def test_the_places_of_units_are_read_as_they_were_written_and_stand_only_where_they_are_not_the_first(
    path: Path,
) -> None:
    placed = replace(entry(5), units=(8, 9), weight=2.0, slots=(0, 2))
    log = FileApplyLog(path)
    log.write(placed)
    log.flush()
    *_, last = read(path)
    assert last == placed and last.by_slot() == {0: 8, 2: 9}
    assert entry(4).by_slot() == {0: 3}
    assert ["slots" in line for line in path.read_text().splitlines()] == [False] * 4 + [True]


def test_the_parts_of_an_update_are_read_as_they_were_written_and_stand_only_where_they_differ(path: Path) -> None:
    made = replace(
        entry(5), units=(8, 9), base=2, weight=2.0, parts=(PushInUpdate((8,), 4, 0.5), PushInUpdate((9,), 2))
    )
    log = FileApplyLog(path)
    log.write(made)
    log.flush()
    *_, last = read(path)
    assert last == made and last.versions == {2, 4} and last.pushes == made.parts
    assert entry(4).pushes == (PushInUpdate((3,), 3),)
    assert ["parts" in line for line in path.read_text().splitlines()] == [False] * 4 + [True]


def test_a_group_round_is_read_as_it_was_written_and_other_updates_say_nothing_of_groups(path: Path) -> None:
    group_round = Entry.of_groups(1, GroupUpdate(5, (8, 9), (0, 2), (2, 4), (0, 1, 2), True), 3.0)
    log = FileApplyLog(path)
    log.write(group_round)
    log.flush()
    *_, last = read(path)
    assert last == group_round and last.versions == {2, 4} and last.by_slot() == {0: 8, 2: 9}
    assert (last.units, last.rate, last.weight, last.group, last.optimizer) == ((8, 9), 3.0, 2.0, (0, 1, 2), True)
    for name in ("group", "bases", "optimizer"):
        assert [f'"{name}"' in line for line in path.read_text().splitlines()] == [False] * 4 + [True]


def test_entries_after_the_state_are_cut(path: Path) -> None:
    assert cut(path, 3) == 1
    assert [found.sequence for found in read(path)] == [1, 2, 3]
    assert cut(path, 3) == 0


def test_an_absent_log_has_nothing_to_cut(tmp_path: Path) -> None:
    assert cut(tmp_path / "apply_log", 0) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torn", range(1, 40, 7))
def test_a_log_that_was_torn_is_cut_to_whole_lines_and_goes_on_behind_them(path: Path, torn: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content + content[:torn])
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4]
    assert cut(path, 4) == 0
    assert path.read_bytes() == content
    log = FileApplyLog(path)
    log.write(entry(5))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("damage", [b"\0" * 300 + b"\n", b"\0" * 300, b"\0\n{}\n[]\n3\n", b"\xff\n\n"])
@pytest.mark.parametrize("window", [16, 1 << 20])
def test_an_end_that_never_became_durable_is_cut_and_the_lines_before_it_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes, window: int
) -> None:
    monkeypatch.setattr(apply_log, "_TAIL_BYTES", window)
    content = path.read_bytes()
    path.write_bytes(content + damage)
    forget(path, 4)
    assert path.read_bytes() == content
    path.write_bytes(content + damage)
    log = FileApplyLog(path)
    log.write(entry(5))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5]


def test_a_line_longer_than_what_is_read_at_once_is_found(path: Path) -> None:
    long = replace(entry(5), units=tuple(range(10**6, 10**6 + 200_000)))
    log = FileApplyLog(path)
    log.write(long)
    log.flush()
    assert path.stat().st_size > apply_log._TAIL_BYTES
    log.write(entry(6))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6]
    path.write_bytes(path.read_bytes()[:-9])
    assert cut(path, 5) == 0
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5]


def test_a_line_that_was_damaged_long_ago_does_not_keep_a_run_from_going_on(path: Path) -> None:
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, b"\0" * (len(second) - 1) + b"\n", *rest]))
    forget(path, 3)
    log = FileApplyLog(path)
    log.write(Entry(2, 4, (7,), 3, 1.0, 1.0, 0.5))
    log.flush()
    assert [line[:1] for line in path.read_bytes().splitlines()] == [b"{", b"\0", b"{", b"{"]
    with pytest.raises(ValueError, match="Expecting value"):
        list(read(path))


def test_a_flush_that_the_disk_takes_in_part_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, at: write(descriptor, content[:10], at))
    log = FileApplyLog(path)
    log.write(entry(5))
    log.flush()
    assert path.read_bytes().endswith(b"\n")
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4]
    monkeypatch.undo()
    log.write(entry(6))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6]


# --- a disk that refuses ---


@contextlib.contextmanager
def refusing(*names: str) -> Iterator[None]:
    """Let these calls of `os` fail as on a full disk."""

    def refuse(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, refuse)
        yield


def test_lines_that_the_disk_refuses_wait_and_are_written_in_their_order(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = FileApplyLog(path)
    for sequence in (5, 6):
        log.write(entry(sequence))
        with refusing("pwrite", "ftruncate"):
            log.flush()
    assert "updates 5 to 6 wait in memory until there is room" in caplog.text
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4]
    log.write(entry(7))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6, 7]


def test_lines_outlive_a_flush_for_which_there_is_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, content: bytes, at: int) -> NoReturn:
        raise MemoryError

    log = FileApplyLog(path)
    log.write(entry(5))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(MemoryError):
            log.flush()
    log.write(entry(6))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6]
    log.write(entry(7))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6, 7]


def test_lines_that_wait_outlive_a_new_phase_that_goes_on_from_them(path: Path) -> None:
    log = FileApplyLog(path)
    log.write(entry(5))
    with refusing("pwrite"):
        log.flush()
    log.write(entry(6))  # applied after the snapshot, and lost with the phase
    log.clear()
    again = Entry(2, 6, (7,), 5, 1.0, 1.0, 0.5)
    log.write(again)
    log.flush()
    assert [*read(path)] == [*(entry(sequence) for sequence in range(1, 6)), again]


def test_lines_that_wait_are_dropped_where_the_run_goes_on_from_another_state(path: Path) -> None:
    log = FileApplyLog(path)
    for sequence in (5, 6):
        log.write(entry(sequence))
    with refusing("pwrite"):
        log.flush()
    log.clear()
    again = Entry(2, 5, (7,), 4, 1.0, 1.0, 0.5)  # everybody who had update 5 or 6 is lost
    log.write(again)
    log.flush()
    assert [*read(path)] == [*(entry(sequence) for sequence in range(1, 5)), again]


def test_what_another_role_has_written_past_the_lines_that_wait_shows_from_where_they_are_missing(path: Path) -> None:
    log, other = FileApplyLog(path), FileApplyLog(path)
    log.write(entry(5))
    with refusing("pwrite"):
        log.flush()
    other.write(entry(6))
    other.flush()
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 6]


def test_an_end_of_a_phase_that_the_disk_refuses_takes_its_last_update_along(path: Path) -> None:
    """Without the line the phase would read as one that nobody left anything behind in."""
    log, end = FileApplyLog(path), Left(1, 4, ((0, 1), (2, 3)))
    log.record_left(end)
    with refusing("pwrite"):
        log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3]
    log.flush()
    assert [*records(path)] == [*(entry(sequence) for sequence in range(1, 5)), end]


def test_a_cut_that_the_disk_refuses_is_made_up_for_by_the_next_lines(path: Path) -> None:
    with refusing("ftruncate"):
        forget(path, 2)
    assert len([*read(path)]) == 4
    log, again = FileApplyLog(path), Entry(2, 3, (7,), 2, 1.0, 1.0, 0.5)
    log.write(again)
    log.flush()
    assert [*read(path)] == [entry(1), entry(2), again]


def test_no_more_lines_wait_than_memory_is_kept_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apply_log, "_MOST_WAITING", 2)
    log = FileApplyLog(path)
    for sequence in range(5, 8):
        log.write(entry(sequence))
        with refusing("pwrite"):
            log.flush()
    assert "the log is incomplete from update 5 on" in caplog.text
    log.write(entry(8))
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 8]


# --- several writers, one after the other ---


def test_what_another_member_has_written_already_is_not_written_again(path: Path) -> None:
    successor = FileApplyLog(path)
    for sequence in range(3, 7):
        successor.write(entry(sequence))
    successor.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4, 5, 6]


def at_once(work: Callable[[], None]) -> None:
    work()


def test_what_another_member_has_written_is_kept_in_memory_no_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_log, "_MOST_NOTED", 4)
    captured, other = FileApplyLog(path), FileApplyLog(path, at_once)
    for sequence in range(5, 105):
        captured.write(entry(sequence))
        other.write(entry(sequence))
        captured.flush()
        assert len(other._entries) < 8, "each update stays with every member until the phase ends"
    for sequence in range(105, 125):
        other.write(entry(sequence))
    other.flush()  # the member that was captured is gone
    assert [found.sequence for found in read(path)] == [*range(1, 125)]


def test_updates_of_another_phase_than_the_last_written_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was set back: the file is cut when they are written."""
    monkeypatch.setattr(apply_log, "_MOST_NOTED", 2)
    log = FileApplyLog(path, at_once)
    for sequence in (2, 3):
        log.write(replace(entry(sequence), phase=2))
    log.flush()
    assert [(found.phase, found.sequence) for found in read(path)] == [(1, 1), (2, 2), (2, 3)]


def test_a_disk_that_hangs_keeps_no_member_from_noting_updates(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are noted under a lock that heartbeats need."""
    tail, awake, readers = apply_log._tail, threading.Event(), queue.SimpleQueue[threading.Thread]()

    def hang(path: Path) -> tuple[int, Entry | Left | None]:
        assert threading.current_thread() is not threading.main_thread(), "whoever notes an update waits for the disk"
        readers.put(threading.current_thread())
        assert awake.wait(DEADLINE_SECS)
        return tail(path)

    monkeypatch.setattr(apply_log, "_MOST_NOTED", 4)
    monkeypatch.setattr(apply_log, "_tail", hang)
    other = FileApplyLog(path, in_thread)
    for sequence in range(1, 7):
        other.write(entry(sequence))
    assert len(other._entries) == 6
    awake.set()
    readers.get(timeout=DEADLINE_SECS).join(DEADLINE_SECS)
    other.write(entry(7))
    assert [noted.sequence for noted in other._entries] == [5, 6, 7], "updates 1 to 4 are in the file"


def test_a_look_that_finds_nothing_while_an_update_is_noted_ends_no_member(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier look, at a disk that hung, has found something; the log was cut to nothing since."""
    looks: list[Callable[[], None]] = []
    seen: list[Entry | Left | None] = []

    def get(log: FileApplyLog) -> Entry | Left | None:
        last = seen[-1] if seen else None
        if last is not None and looks:
            looks.pop()()  # in another thread, at this moment
        return last

    last_written = property(get, lambda log, last: seen.append(last))
    monkeypatch.setattr(FileApplyLog, "_last_written", last_written, raising=False)
    monkeypatch.setattr(apply_log, "_MOST_NOTED", 2)
    other = FileApplyLog(path, looks.append)
    for sequence in range(3, 7):
        other.write(entry(sequence))
    early, _ = looks
    looks.remove(early)
    early()
    path.unlink()
    other.write(entry(7))
    assert [noted.sequence for noted in other._entries] == [5, 6, 7] and not looks


def test_who_alone_notes_updates_does_not_look_who_else_wrote_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> NoReturn:
        raise AssertionError("the file was read")

    monkeypatch.setattr(apply_log, "_MOST_NOTED", 4)
    monkeypatch.setattr(apply_log, "_tail", refuse)
    log = open_apply_log(path.parent, wanted=True)
    for sequence in range(5, 15):
        log.write(entry(sequence))
    monkeypatch.undo()
    log.flush()
    assert [found.sequence for found in read(path)] == [*range(1, 15)]


def test_a_member_that_can_start_no_thread_notes_updates_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(apply_log, "_MOST_NOTED", 4)
    log = open_apply_log(path.parent, wanted=True, others_note_too=True)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for sequence in range(5, 10):
            log.write(entry(sequence))
    log.flush()
    assert [found.sequence for found in read(path)] == [*range(1, 10)]


def test_a_flush_behind_a_writer_that_was_killed_replaces_its_torn_line(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content + b'{"phase":1,"sequence":5,"uni')
    successor = FileApplyLog(path)
    for sequence in (4, 5):
        successor.write(entry(sequence))
    successor.flush()
    assert list(read(path)) == [entry(sequence) for sequence in range(1, 6)]


def test_what_is_cleared_is_never_written(path: Path) -> None:
    log = FileApplyLog(path)
    log.write(entry(5))
    log.clear()
    log.flush()
    assert [found.sequence for found in read(path)] == [1, 2, 3, 4]


def test_a_log_whose_only_line_is_torn_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "apply_log"
    path.write_bytes(b'{"phase":1,"seq')
    log = FileApplyLog(path)
    log.write(entry(1))
    log.flush()
    assert list(read(path)) == [entry(1)]


def test_updates_that_were_rolled_back_are_cut_and_their_successors_written(path: Path) -> None:
    """The state goes on from update 2; another phase makes the next ones."""
    assert cut(path, 2) == 2
    log = FileApplyLog(path)
    again = Entry(2, 3, (7,), 2, 1.0, 1.0, 0.5)
    log.write(again)
    log.flush()
    assert list(read(path)) == [entry(1), entry(2), again]


def test_the_end_of_a_phase_stands_behind_its_last_update_and_is_cut_with_it(path: Path) -> None:
    end = Left(1, 4, ((0, 1), (2, 3)))
    for _ in range(2):  # a repeat writes nothing
        log = FileApplyLog(path)
        log.record_left(end)
        log.flush()
    assert [*records(path)] == [*(entry(sequence) for sequence in range(1, 5)), end]
    assert len(list(read(path))) == 4
    assert cut(path, 4) == 0
    assert cut(path, 3) == 2
    assert [*records(path)] == [entry(1), entry(2), entry(3)]


def test_whose_pushes_an_update_holds_is_read_as_it_was_written(path: Path) -> None:
    pushes = Stepped(0, 1, 0, 3, 2, 4), Stepped(3, 2, 1, 2, 1, 0)
    stepped = replace(entry(5), units=(8, 9, 4), base=2, weight=3.0, stepped=pushes)
    log = FileApplyLog(path)
    log.write(stepped)
    log.flush()
    *_, last = read(path)
    assert last == stepped
    assert [(part.units, part.base) for part in last.pushes] == [((8, 9), 3), ((4,), 2)]
    assert last.versions == {2, 3}
