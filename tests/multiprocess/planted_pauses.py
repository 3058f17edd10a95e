"""Pauses for `planted.py` to plant: no bugs, but data and a disk that stand still while a file says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.clock import pause as sleep

DATA, DISK = "data", "disk"


def pause(workdir: Path, what: str, secs: float, worker: int | None = None) -> None:
    """Let the data of a worker (None: of all) or the disk of all processes stand still from now on for so long."""
    file = workdir / f"pause-{what}"
    made = file.with_suffix(".new")
    made.write_text(f"{SYSTEM_CLOCK.wall() + secs} {'' if worker is None else worker}")
    made.replace(file)


def await_end(file: Path, worker: int) -> None:
    """Wait until the pause is over, if there is one for this worker."""
    try:
        until, *whose = file.read_text().split()
    except FileNotFoundError:
        return
    if not whose or int(whose[0]) == worker:
        sleep(max(0.0, float(until) - SYSTEM_CLOCK.wall()))


def data_and_disk_pause(role: str, role_id: int, workdir: Path) -> None:
    """Units and fsyncs take as long as the files of `pause` say."""
    synced = os.fsync

    def fsync(descriptor: int) -> None:
        await_end(workdir / f"pause-{DISK}", -1)
        synced(descriptor)

    os.fsync = fsync
    if role == "worker":
        from hybridsync.data import DigitsSource

        read = DigitsSource.batch

        def batch(self, unit, **options):
            await_end(workdir / f"pause-{DATA}", role_id)
            return read(self, unit, **options)

        DigitsSource.batch = batch


PAUSES: dict[str, Callable[[str, int, Path], None]] = {"data_and_disk_pause": data_and_disk_pause}
