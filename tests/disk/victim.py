"""A process whose disk fails: `LD_PRELOAD=faultfs.so python -m tests.disk.victim` does what the lines of stdin say.

Each line is a JSON object: `do` names a function here, `bug` one of bugs.py that is planted meanwhile, and the rest are
the function's arguments. Each answer is a line with what the function returns. Errors that the oracle raises are
answered as {"violation": text}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridsync import CheckpointConfig, EmulationConfig
from hybridsync.core.errors import CheckpointError, HybridSyncError, WorkdirError
from hybridsync.storage import apply_log
from hybridsync.storage.apply_log import FileApplyLog
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.durable import LOCK_FILE, PhaseNumberFile, WorkdirLock
from hybridsync.storage.lock_beats import BEAT_FILE, Beats
from hybridsync.storage.lock_record import LockRecord
from hybridsync.telemetry.metrics import Metrics
from tests.disk import bugs, oracle
from tests.disk.faultfs import FaultyDisk
from tests.trainers import LOGGED, tally_trainer

KEEP = 1
REASONS = {"ENOSPC": "No space left on device", "full": "No space left on device", "EIO": "Input/output error"}


def save_with_fault(disk: FaultyDisk, template: str, folder: str, mode: str, at: int) -> dict[str, Any]:
    """Save state 2 after state 1 with a fault at one call; the process lives, tells of it, and saves state 3."""
    path = Path(shutil.copytree(template, folder))
    store = CheckpointStore(path, keep=KEEP)
    error = ""
    disk.arm(path, mode, at)
    try:
        oracle.save(store, 2)
    except CheckpointError as failure:
        error = str(failure)
        calls = disk.disarm()
        oracle.check_failed_save(failure, REASONS[mode])
    else:
        calls = disk.disarm()
    found = oracle.check_survivor(path, 1 if error else 2, 2, KEEP)
    oracle.save(store, 3)
    oracle.check_survivor(path, 3, 3, KEEP)
    oracle.check_nothing_left(path, KEEP)
    shutil.rmtree(path)
    return {"calls": calls, "error": error, "found": found}


def reserve_with_fault(disk: FaultyDisk, folder: str, mode: str, at: int, before: int) -> dict[str, Any]:
    """Reserve a phase after `before` others, with a fault at one call; then reserve another."""
    path = Path(folder)
    path.mkdir()
    promised = [PhaseNumberFile(path).reserve().number for _ in range(before)]
    error = ""
    disk.arm(path, mode, at)
    try:
        promised.append(PhaseNumberFile(path).reserve().number)
    except WorkdirError as failure:
        error = str(failure)
        assert REASONS[mode] in error, error
        assert "free space or mend the disk" in error, error
    calls = disk.disarm()
    oracle.check_phase_ids(path, promised)
    return {"calls": calls, "error": error}


def lock_with_fault(disk: FaultyDisk, folder: str, mode: str, at: int) -> dict[str, Any]:
    """Take a workdir's lock and give it back, with a fault at one call; then take it again.

    The beats have a thread of their own: they beat on the good disk, before and after, so that calls are counted in
    one order.
    """
    path = Path(folder)
    path.mkdir()
    (path / LOCK_FILE).touch()
    error, lock, start = "", WorkdirLock(path), Beats.start
    disk.arm(path, mode, at)
    try:
        Beats.start = lambda self: None
        lock.acquire()
        lock.check()
    except WorkdirError as failure:
        error = str(failure)
        assert REASONS[mode] in error, error
    finally:
        calls = disk.disarm()
        Beats.start = start
    if not error:
        lock._beats = None  # it never began
        lock.release()
    with WorkdirLock(path) as again:
        again.check()
        record = LockRecord.parse((path / LOCK_FILE).read_bytes())
        assert record is not None and record.pid == os.getpid(), f"the lock names {record}"
    assert (path / LOCK_FILE).read_bytes() == b"" and not (path / BEAT_FILE).exists(), "something was left behind"
    shutil.rmtree(path)
    return {"calls": calls, "error": error}


def beat_with_fault(disk: FaultyDisk, folder: str, mode: str, at: int) -> dict[str, Any]:
    """Beat twice with a fault at one call; the next beat is told."""
    path = Path(folder)
    path.mkdir()
    beats = Beats(path, "5eed", 0o600, lambda: None)
    refused = 0
    disk.arm(path, mode, at)
    for count in (1, 2):
        try:
            beats._write(count)
        except OSError as failure:
            assert REASONS[mode] in str(failure), failure
            refused += 1
    calls = disk.disarm()
    beats._write(3)
    assert (path / BEAT_FILE).read_bytes() == b"5eed %020d\n" % 3
    return {"calls": calls, "refused": refused}


def log_with_fault(disk: FaultyDisk, folder: str, mode: str, at: int) -> dict[str, Any]:
    """Log an update after three others, cut it off, and log others in its place, with a fault at one call."""
    path = Path(folder)
    path.mkdir()
    file = path / apply_log.APPLY_LOG
    updates = [Entry(1, number, (number,), number - 1, 1.0, 1.0, 1.0) for number in range(1, 5)]
    again = [Entry(2, number, (number,), number - 1, 1.0, 1.0, 1.0) for number in (4, 5, 6)]
    log = FileApplyLog(file)
    _log(log, updates[:3])
    disk.arm(path, mode, at)
    _log(log, updates[3:])
    apply_log.forget(file, 3)
    log.clear()
    _log(log, again[:1])
    _log(log, again[1:2])
    calls = disk.disarm()
    _log(log, again[2:])
    found = list(apply_log.read(file))
    assert found == [*updates[:3], *again], f"{found} were logged"
    shutil.rmtree(path)
    return {"calls": calls}


def _log(log: FileApplyLog, updates: list[Entry]) -> None:
    for update in updates:
        log.write(update)
    log.flush()


def killed_save(disk: FaultyDisk, template: str, folder: str, at: int) -> dict[str, Any]:
    """Let a child save state 2 after state 1 and kill it at one call."""
    path = Path(shutil.copytree(template, folder))

    def save() -> None:
        store = CheckpointStore(path, keep=KEEP)
        disk.arm(path, "kill", at)
        oracle.save(store, 2)

    return {"killed": _in_child(save)}


def killed_reserve(disk: FaultyDisk, folder: str, at: int, before: int) -> dict[str, Any]:
    """Let a child reserve a phase after `before` others and kill it at one call."""
    path = Path(folder)
    path.mkdir()
    for _ in range(before):
        PhaseNumberFile(path).reserve()

    def reserve() -> None:
        disk.arm(path, "kill", at)
        PhaseNumberFile(path).reserve()

    return {"killed": _in_child(reserve)}


def _in_child(work: Callable[[], None]) -> bool:
    """Do it in a copy of this process; return whether it was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax warns of threads; none was started yet
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the child ended with status {status}"
    return os.WIFSIGNALED(status)


def journal_saves(disk: FaultyDisk, folder: str, journal: str, saves: int, keep: int) -> dict[str, Any]:
    """Make a store in an empty folder and save states 1, 2, ... into it, noting each call and each return."""
    path = Path(folder)
    path.mkdir()
    disk.arm(path, journal=Path(journal))
    store = CheckpointStore(path / "checkpoints", keep=keep)
    for number in range(1, saves + 1):
        disk.mark(f"begin {number}")
        oracle.save(store, number)
        disk.mark(f"saved {number}")
    store.close()
    return {"calls": disk.disarm()}


def journal_phase_ids(disk: FaultyDisk, folder: str, journal: str, count: int) -> dict[str, Any]:
    """Reserve phases in an empty folder, noting each call and each return."""
    path = Path(folder)
    path.mkdir()
    disk.arm(path, journal=Path(journal))
    for _ in range(count):
        disk.mark(f"phase {PhaseNumberFile(path).reserve().number}")
    return {"calls": disk.disarm()}


def journal_fallback(disk: FaultyDisk, folder: str, journal: str) -> dict[str, Any]:
    """Save states 1 and 2 in an empty folder, damage the second, and restore, noting each call."""
    path = Path(folder)
    path.mkdir()
    disk.arm(path, journal=Path(journal))
    store = CheckpointStore(path / "checkpoints", keep=2)
    for number in (1, 2):
        oracle.save(store, number)
    store.close()
    with open(path / "checkpoints" / "2" / "run" / "metadata", "wb") as file:
        file.write(b"damage")
        file.flush()
        os.fsync(file.fileno())
    disk.mark("damaged")
    oracle.check_fallback(path / "checkpoints")
    disk.mark("told")
    return {"calls": disk.disarm()}


def fall_back_with_fault(disk: FaultyDisk, template: str, folder: str, mode: str, at: int) -> dict[str, Any]:
    """Restore where the newest step is damaged, with a fault at one call; then restore again."""
    path = Path(shutil.copytree(template, folder))
    oracle.save(CheckpointStore(path, keep=2), 2)
    (path / "2" / "run" / "metadata").unlink()
    error = ""
    disk.arm(path, mode, at)
    try:
        oracle.check_fallback(path)
    except CheckpointError as failure:
        error = str(failure)
        assert REASONS[mode] in error, error
        assert "free space or mend the disk" in error, error
    calls = disk.disarm()
    oracle.check_fallback(path)
    return {"calls": calls, "error": error}


def train_on_full_disk(disk: FaultyDisk, workdir: str, workload: int) -> dict[str, Any]:
    """Train while the disk of the workdir is full from a quarter of the units to three quarters."""
    trainer = tally_trainer(
        *("asp", workload),
        workdir=workdir,
        checkpoint=CheckpointConfig(secs=0.02),
        emulation=EmulationConfig(compute_secs=0.02),
        telemetry=LOGGED,
    )

    def change(metrics: Metrics) -> None:
        if metrics.units >= workload * 3 // 4:
            disk.disarm()
        elif metrics.units >= workload // 4:
            disk.arm(Path(workdir), "full", 1)

    trainer.add_hook(change, every=workload // 4)
    result = trainer.fit()
    return {"exit": result.summary.exit, "final": dict(result.summary.final)}


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    action.__name__: action
    for action in (
        *(save_with_fault, reserve_with_fault, log_with_fault, killed_save, killed_reserve),
        *(lock_with_fault, beat_with_fault),
        *(journal_saves, journal_phase_ids, journal_fallback, fall_back_with_fault, train_on_full_disk),
    )
}


def main() -> None:
    disk = FaultyDisk()
    for line in sys.stdin:
        words = json.loads(line)
        try:
            with bugs.planted(words.pop("bug", "")):
                answer = ACTIONS[words.pop("do")](disk, **words)
        except (AssertionError, HybridSyncError) as violation:
            disk.disarm()
            answer = {"violation": str(violation)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
