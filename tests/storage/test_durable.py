import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError, WorkdirTaken
from hybridsync.core.plan import PhaseId
from hybridsync.core.process_start import boot_id
from hybridsync.storage import durable, lock_beats, lock_record
from hybridsync.storage.durable import PhaseNumberFile, WorkdirLock, make_directory, sync_tree, write_durable
from hybridsync.storage.lock_beats import Beats
from hybridsync.storage.lock_record import LockRecord


@pytest.fixture
def journal(monkeypatch):
    """Record, in order, what is made durable and what is renamed, by name."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        calls.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noted_replace(source, target):
        calls.append(("rename", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return calls


def test_a_durable_write_syncs_the_text_then_renames_then_syncs_the_directory(tmp_path, journal):
    write_durable(tmp_path / "note", "first")
    assert journal == [("fsync", ".note.tmp"), ("rename", "note"), ("fsync", tmp_path.name)]
    assert (tmp_path / "note").read_text() == "first"
    assert os.listdir(tmp_path) == ["note"]


def test_a_failed_write_leaves_the_old_text(tmp_path, monkeypatch):
    write_durable(tmp_path / "note", "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durable(tmp_path / "note", "new")
    assert (tmp_path / "note").read_text() == "old"
    assert os.listdir(tmp_path) == ["note"], "a full disk is not kept full by what nobody reads"


def test_every_created_directory_is_synced_in_its_parent(tmp_path, journal):
    assert make_directory(tmp_path / "a" / "b").is_dir()
    assert journal == [("fsync", tmp_path.name), ("fsync", "a")]
    make_directory(tmp_path / "a" / "b")
    assert len(journal) == 2


def test_syncing_a_tree_reaches_every_file_and_directory_and_counts_bytes(tmp_path, journal):
    (tmp_path / "inner").mkdir()
    (tmp_path / "one").write_text("12345")
    (tmp_path / "inner" / "two").write_text("123")
    assert sync_tree(tmp_path) == 8
    assert {name for _, name in journal} == {"one", "two", "inner", tmp_path.name}


def test_a_tree_is_synced_in_one_go(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    for name in ("one", "two", "inner/three"):
        (tmp_path / name).write_text("12345")
    together = threading.Barrier(5, timeout=60)  # a disk that answers once it has been asked for everything
    main_or_daemon = []

    def fsync(descriptor):
        thread = threading.current_thread()
        main_or_daemon.append(thread.daemon or thread is threading.main_thread())
        together.wait()

    monkeypatch.setattr(os, "fsync", fsync)
    assert sync_tree(tmp_path) == 15
    assert main_or_daemon == [True] * 5, "a disk that hangs would keep the process from its end"


@pytest.mark.parametrize("granted_threads", [0, 2])
def test_a_tree_is_synced_also_where_the_system_has_no_other_thread(tmp_path, monkeypatch, journal, granted_threads):
    for name in map(str, range(8)):
        (tmp_path / name).write_text("12345")
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == granted_threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sync_tree(tmp_path) == 40
    assert sorted(name for _, name in journal) == sorted([*map(str, range(8)), tmp_path.name])
    assert len(started) == granted_threads


@pytest.mark.parametrize("name", ["one", "inner", "inner/two"])
def test_a_refusal_while_a_tree_is_synced_is_raised(tmp_path, monkeypatch, name):
    (tmp_path / "inner").mkdir()
    for file in ("one", "inner/two"):
        (tmp_path / file).write_text("12345")
    bad = (tmp_path / name).stat().st_ino

    def fsync(descriptor):
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        sync_tree(tmp_path)


def test_phases_rise_and_their_nonces_differ(tmp_path):
    first = PhaseNumberFile(tmp_path).reserve()
    second = PhaseNumberFile(tmp_path).reserve()
    assert (first.number, second.number) == (1, 2)
    assert first.nonce != second.nonce
    assert PhaseNumberFile(tmp_path).read() == second


def test_a_phase_is_durable_before_it_is_handed_out(tmp_path, journal):
    phase_id = PhaseNumberFile(tmp_path).reserve()
    assert journal == [("fsync", ".phase.tmp"), ("rename", "phase"), ("fsync", tmp_path.name)]
    assert json.loads((tmp_path / "phase").read_text())["number"] == phase_id.number


def test_a_phase_that_could_not_be_written_is_not_handed_out(tmp_path, monkeypatch):
    PhaseNumberFile(tmp_path).reserve()

    def broken(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(WorkdirError, match=r"phase 2 cannot be .*Input/output"):
        patch.setattr(durable, "sync_directory", broken)
        PhaseNumberFile(tmp_path).reserve()
    assert PhaseNumberFile(tmp_path).reserve().number >= 3


def test_a_phase_is_above_one_known_from_elsewhere(tmp_path):
    assert PhaseNumberFile(tmp_path).reserve(above=7).number == 8
    assert PhaseNumberFile(tmp_path).reserve(above=3).number == 9


def test_the_nonce_keeps_all_its_64_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: b"\x00" + b"\xff" * (count - 1))
    phase_id = PhaseNumberFile(tmp_path).reserve()
    assert phase_id == PhaseId(1, 2**56 - 1)
    assert PhaseNumberFile(tmp_path).read() == phase_id


@pytest.mark.parametrize(
    "content", [b"", b"7", b'{"number": 0, "nonce": "1"}', b'{"number": true, "nonce": "1"}', b"\xff"]
)
def test_a_damaged_phase_file_is_refused_and_not_restarted_from_one(tmp_path, content):
    (tmp_path / "phase").write_bytes(content)
    with pytest.raises(WorkdirError, match=r"highest phase that events\.jsonl names"):
        PhaseNumberFile(tmp_path).reserve()
    assert (tmp_path / "phase").read_bytes() == content


def test_a_bit_that_changed_in_the_phase_file_is_refused_or_changes_nothing(tmp_path):
    phase_id = PhaseNumberFile(tmp_path).reserve(above=2)
    content = (tmp_path / "phase").read_bytes()
    for position, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        (tmp_path / "phase").write_bytes(flipped)
        with contextlib.suppress(WorkdirError):
            assert PhaseNumberFile(tmp_path).read() == phase_id, f"byte {position}, bit {bit}"


def test_a_phase_written_by_hand_needs_no_digest(tmp_path):
    (tmp_path / "phase").write_text('{"number": 7, "nonce": "0"}')
    assert PhaseNumberFile(tmp_path).reserve().number == 8


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    holder = f"in use by process {os.getpid()} on {socket.gethostname()}"
    with WorkdirLock(tmp_path), pytest.raises(WorkdirError, match=holder):
        WorkdirLock(tmp_path).acquire()
    with WorkdirLock(tmp_path):
        pass


def test_a_command_that_asks_for_the_holder_keeps_no_run_from_starting(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    asking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(durable, "pause", lambda secs: os.close(asking))
    with WorkdirLock(tmp_path):
        pass


HOLDER = """
import sys
from hybridsync.storage.durable import WorkdirLock
WorkdirLock(sys.argv[1]).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_holder_frees_the_workdir(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(WorkdirError, match=f"process {holder.pid} on "):
            WorkdirLock(tmp_path).acquire()
        holder.kill()
        holder.wait(timeout=60)
        with WorkdirLock(tmp_path):
            pass


THERE = LockRecord(7, "there", 12, "another-boot", "5eed")


@pytest.fixture
def granted(tmp_path, monkeypatch):
    """Return a workdir whose lock names a holder on another host, on a disk that grants it to everybody."""
    monkeypatch.setattr(lock_record, "BEAT_SECS", 0.1)
    monkeypatch.setattr(lock_beats, "BEAT_SECS", 0.02)
    monkeypatch.setattr(durable, "_LOOK_SECS", 0.01)
    (tmp_path / "lock").write_text(THERE.text())
    return tmp_path


def test_a_silent_holder_on_another_host_is_taken_from_and_the_user_is_told_of_the_wait(granted, monkeypatch):
    waits, told = [], []
    monkeypatch.setattr(durable, "pause", waits.append)
    with WorkdirLock(granted, say=told.append) as lock:
        lock.check()
        record = LockRecord.parse((granted / "lock").read_bytes())
        assert record is not None
        assert (record.pid, record.boot, record.nonce) == (os.getpid(), boot_id().strip(), lock.held.nonce)
    assert waits and set(waits) == {0.01}
    assert [f"{granted} was left to process 7 on there" in text for text in told] == [True]
    assert (granted / "lock").read_bytes() == b"" and not (granted / "beat").exists()


def test_a_holder_on_another_host_that_beats_is_named_and_keeps_its_workdir(granted, monkeypatch):
    monkeypatch.setattr(lock_record, "BEAT_SECS", 10.0)  # its first beat is enough, and may be late
    beats = Beats(granted, THERE.nonce, 0o600, lambda: None)
    beats.start()
    with pytest.raises(WorkdirError, match=r"in use by process 7 on there, which beats; this is process"):
        WorkdirLock(granted).acquire()
    beats.stop()
    assert LockRecord.parse((granted / "lock").read_bytes()) == THERE


@pytest.mark.parametrize("boot", [boot_id().strip(), ""], ids=["this boot", "older version"])
def test_on_one_machine_the_kernel_decides_at_once(granted, monkeypatch, boot):
    (granted / "lock").write_text(dataclasses.replace(THERE, boot=boot).text())
    monkeypatch.setattr(durable, "pause", lambda secs: pytest.fail("it waits"))
    with WorkdirLock(granted, say=lambda text: pytest.fail(text)):
        pass


def test_whose_lock_was_taken_over_neither_writes_nor_gives_it_back(granted):
    with WorkdirLock(granted) as lock:
        phase_ids = PhaseNumberFile(granted, lock.check)
        first = phase_ids.reserve()
        (granted / "lock").write_text(THERE.text())  # as the taker does
        (granted / "beat").write_text("5eed")
        with pytest.raises(WorkdirTaken, match=rf"names process 7 on there, and this is process {os.getpid()} on "):
            lock.check()
        with pytest.raises(WorkdirTaken):
            phase_ids.reserve()
        assert PhaseNumberFile(granted).read() == first
        while lock.lost is None:
            durable.pause(0.01)
    assert LockRecord.parse((granted / "lock").read_bytes()) == THERE
    assert sorted(os.listdir(granted)) == ["beat", "lock", "phase"]


def test_a_lock_that_is_gone_or_names_nobody_is_no_longer_this_ones(tmp_path):
    with WorkdirLock(tmp_path) as lock:
        os.truncate(tmp_path / "lock", 0)
        with pytest.raises(WorkdirTaken, match=r"lock names nobody, and this is"):
            lock.check()
        (tmp_path / "lock").unlink()
        with pytest.raises(WorkdirTaken, match=r"lock names nobody"):
            lock.check()


def test_a_chief_holds_by_the_nonce_that_it_was_handed_not_by_what_the_file_says(tmp_path):
    with WorkdirLock(tmp_path) as lock:
        chief = WorkdirLock(tmp_path, durable.HeldLock(os.dup(lock.held.descriptor), lock.held.nonce))
        chief.acquire()
        chief.check()
        chief.release()
        lock.check()
        (tmp_path / "lock").write_text(THERE.text())
        late = WorkdirLock(tmp_path, durable.HeldLock(os.dup(lock.held.descriptor), lock.held.nonce))
        late.acquire()
        with pytest.raises(WorkdirTaken):
            late.check()
        late.release()


def test_a_lock_taken_while_a_file_is_written_keeps_the_old_file(tmp_path):
    write_durable(tmp_path / "note", "old")
    answers = iter([None, WorkdirTaken("another chief has it")])

    def fence():
        if (answer := next(answers)) is not None:
            raise answer

    with pytest.raises(WorkdirTaken):
        write_durable(tmp_path / "note", "new", fence)
    assert (tmp_path / "note").read_text() == "old"
    assert next(answers, None) is None, "asked before the temporary file is written, and before the rename"


def test_a_disk_that_refuses_the_locks_record_is_named_and_the_lock_is_free(tmp_path, monkeypatch):
    def refuse(descriptor, content, offset):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(WorkdirError, match=r"cannot lock .*lock: No space left"):
        patch.setattr(os, "pwrite", refuse)
        WorkdirLock(tmp_path).acquire()
    with WorkdirLock(tmp_path):
        pass


def test_an_absent_workdir_is_refused(tmp_path):
    with pytest.raises(WorkdirError, match=r"cannot open .*absent.*No such file"):
        WorkdirLock(tmp_path / "absent").acquire()


def test_durable_needs_no_jax():
    check = "import sys, hybridsync.storage.durable; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0


def _handed_down(lock):
    return lock.held._replace(descriptor=os.dup(lock.held.descriptor))


def _moved(workdir):
    workdir.rename(workdir.with_name("moved"))


def _moved_twice(workdir):
    _moved(workdir)
    workdir.symlink_to("moved")
    workdir.with_name("moved").rename(workdir.with_name("again"))


def _parent_moved(workdir):
    workdir.parent.rename(workdir.parent.with_name("elsewhere"))


@pytest.mark.parametrize("move", [_moved, _moved_twice, _parent_moved])
def test_a_workdir_that_is_moved_while_it_is_locked_is_found_by_its_name(tmp_path, move, caplog):
    workdir = tmp_path / "runs" / "run"
    workdir.mkdir(parents=True)
    with WorkdirLock(workdir) as lock, WorkdirLock(workdir, _handed_down(lock)) as chiefs:
        first = PhaseNumberFile(workdir, chiefs.check).reserve()
        move(workdir)
        assert PhaseNumberFile(workdir, chiefs.check).reserve().number == first.number + 1
        lock.check()
        assert lock.lost is None
        assert "while its run has it; a link leads there from now on" in caplog.text
        held = (workdir / "lock").resolve()
    assert held.read_bytes() == b"", "it was given back"
    assert not held.is_relative_to(workdir) and not workdir.exists(), "a link is left"
    assert "was moved to" in caplog.text and "the link is removed" in caplog.text
    with WorkdirLock(held.parent):
        pass


def test_a_workdir_whose_place_was_taken_is_no_longer_the_runs(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    with WorkdirLock(workdir) as lock:
        _moved(workdir)
        workdir.mkdir()
        with pytest.raises(WorkdirTaken, match="names nobody"), contextlib.suppress(OSError):
            lock.check()
        with WorkdirLock(workdir), pytest.raises(WorkdirTaken, match="names process"):
            lock.check()


@pytest.mark.parametrize("away", [Path.unlink, lambda path: path.rename(path.parent.with_name("lock"))])
def test_a_lock_file_that_is_removed_while_it_is_held_is_made_again(tmp_path, away):
    with WorkdirLock(tmp_path) as lock, WorkdirLock(tmp_path, _handed_down(lock)) as chiefs:
        away(tmp_path / "lock")
        chiefs.check()
        lock.check()
        with pytest.raises(WorkdirError, match=f"is in use by process {os.getpid()}"):
            WorkdirLock(tmp_path).acquire()
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "beat") == ["lock"]


def test_a_workdir_that_is_removed_while_it_is_locked_is_nobodys(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    with WorkdirLock(workdir) as lock:
        assert lock._beats is not None
        lock._beats.stop()
        shutil.rmtree(workdir)
        with pytest.raises(WorkdirTaken, match="names nobody"):
            lock.check()
        assert not workdir.exists()


def test_a_lock_file_is_made_again_by_one_of_several_threads(tmp_path):
    with WorkdirLock(tmp_path) as lock:
        for _ in range(30):
            (tmp_path / "lock").unlink()
            with ThreadPoolExecutor(3) as threads:
                for check in [threads.submit(lock.check) for _ in range(3)]:
                    check.result(30)
