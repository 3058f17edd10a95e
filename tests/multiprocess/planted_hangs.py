"""Hangs for `planted.py` to plant: no bugs, but work that never ends, the first time that a process comes to it.

Watchdogs give every piece of work FLOOR_SECS here, and no piece that hangs a longer limit; `LIMITS` are flags of such a
job. FLOOR_SECS is longer than the leases, so that a role which the watchdog ends has sent heartbeats until then.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLOOR_SECS = 5.0
LEASE_SECS = 3.0
LIMITS = (f"--set=hang.silent_secs={LEASE_SECS:g}", f"--set=hang.read_secs={FLOOR_SECS:g}")
HANG_SECS = 600.0


def _always(*args: Any, **options: Any) -> bool:
    return True


def _hang_once(owner: Any, name: str, flag: Path, *, where: Callable[..., bool] = _always) -> None:
    """Let one call of `owner.name` hang, of all processes of the run: the first one for which `where` holds."""
    original = getattr(owner, name)

    def hang(*args: Any, **options: Any) -> Any:
        if not flag.exists() and where(*args, **options):
            flag.touch()
            threading.Event().wait(HANG_SECS)
        return original(*args, **options)

    setattr(owner, name, hang)


def _shorten_limits() -> None:
    from hybridsync.runtime.role import watchdog

    watchdog.FLOOR_SECS = FLOOR_SECS


def unit_17_hangs_once(role: str, workdir: Path) -> None:
    """The worker that computes unit 17 first never ends it."""
    _shorten_limits()
    if role == "worker":
        from hybridsync.data import TallySource

        _hang_once(TallySource, "batch", workdir / "hung", where=lambda source, unit, **options: unit == 17)


def a_hand_over_hangs_once(role: str, workdir: Path) -> None:
    """The server that takes over a state first never has it."""
    _shorten_limits()
    if role == "server":
        from hybridsync.server import shard_state

        shard_state.transfer_secs = lambda num_bytes: FLOOR_SECS / 2
        _hang_once(shard_state, "fetch", workdir / "hung")


def an_update_hangs_once(role: str, workdir: Path) -> None:
    """The server that comes to its 60th update first never ends it."""
    _shorten_limits()
    if role == "server":
        from hybridsync.server.shard_state import Shard

        updates = itertools.count(1)
        _hang_once(Shard, "update", workdir / "hung", where=lambda *args, **options: next(updates) == 60)


def a_save_hangs_once(role: str, workdir: Path) -> None:
    """The chief that saves applied units first never ends that."""
    _shorten_limits()
    if role == "chief":
        from hybridsync.phases import checkpointing
        from hybridsync.storage.checkpoints import CheckpointStore

        checkpointing.COMMIT_DEADLINE_SECS = FLOOR_SECS / 2
        checkpointing.transfer_secs = lambda num_bytes: FLOOR_SECS / 4
        _hang_once(CheckpointStore, "save", workdir / "hung", where=lambda store, state, *, units, **record: units > 0)


HANGS: dict[str, Callable[[str, Path], None]] = {
    hang.__name__: hang
    for hang in (unit_17_hangs_once, a_hand_over_hangs_once, an_update_hangs_once, a_save_hangs_once)
}
