"""What must hold of a workdir's disk after any fault: whole states or none, and every promise kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hybridsync.core.errors import CheckpointError
from hybridsync.storage.checkpoints import QUARANTINE, REASON_FILE, CheckpointStore, Restored
from hybridsync.storage.durable import PhaseNumberFile
from hybridsync.training.buffer_layout import fingerprint

RUN = {"seed": 7}
UNITS = 100


def state_of(number: int) -> dict[str, Any]:
    """Return the `number`-th state of a run, small and unlike every other."""
    return {
        "params": {"kernel": np.arange(600, dtype=np.float32).reshape(20, 30) * number, "bias": np.float32(number)},
        "counters": {"units": np.int32(UNITS * number)},
    }


def ledger_of(number: int) -> dict[str, Any]:
    return {"applied": [[0, UNITS * number]], "dropped": []}


def save(store: CheckpointStore, number: int) -> int:
    """Commit the `number`-th state; return its step."""
    return store.save(state_of(number), units=UNITS * number, ledger=ledger_of(number), run=RUN).step


def newest(folder: Path) -> tuple[int, Restored] | None:
    """Return which state is restored, having compared all of it; None for an empty store."""
    store = CheckpointStore(folder)
    restored = store.newest(state_of(0))
    store.close()
    if restored is None:
        return None
    number = restored.units // UNITS
    assert fingerprint(restored.state) == fingerprint(state_of(number)), f"state {number} is not what was saved"
    assert (restored.units, restored.ledger, restored.run) == (UNITS * number, ledger_of(number), RUN)
    return number, restored


def check_survivor(folder: Path, saved: int, going: int, keep: int) -> int:
    """Assert that a crash while state `going` was saved left it or state `saved` whole, and that saving goes on.

    Args:
      folder: of the checkpoints.
      saved: the last state whose save had returned; 0 for none.
      going: the state whose save had begun; the same as `saved` when that had ended.
      keep: of the store.

    Returns:
      The state that was found; 0 for none.
    """
    found = newest(folder) if folder.is_dir() else None
    number = found[0] if found else 0
    assert saved <= number <= going, f"state {number} was restored, {saved} was promised and {going} was being saved"
    assert not found or not found[1].quarantined, f"a half step had a name: {found[1].quarantined}"
    assert not (folder / QUARANTINE).exists(), "a half step had a name"
    return number


def check_saving_goes_on(folder: Path, keep: int) -> None:
    """Assert that the next save works and leaves nothing behind but whole steps, no more than `keep`."""
    store = CheckpointStore(folder, keep=keep)
    step = save(store, 9)
    store.close()
    found = newest(folder)
    assert found is not None
    assert (found[0], found[1].step) == (9, step)
    check_nothing_left(folder, keep)


def check_nothing_left(folder: Path, keep: int) -> None:
    """Assert that there are steps and nothing else, no more than `keep`."""
    names = sorted(path.name for path in folder.iterdir())
    assert all(name.isdecimal() for name in names), f"something was left behind: {names}"
    assert len(names) <= keep, f"{names} are more than {keep}"


def check_fallback(folder: Path) -> None:
    """Assert that state 1 is restored where step 2 is damaged, and that its reason was told and stays."""
    found = newest(folder)
    assert found is not None
    assert found[0] == 1, f"state {found[0]} was restored"
    reason = (folder / QUARANTINE / "2" / REASON_FILE).read_text()
    assert "run/metadata" in reason, f"the reason is {reason!r}"
    assert not found[1].quarantined or found[1].quarantined == ((2, reason.rstrip()),)


def check_failed_save(error: CheckpointError, reason: str) -> None:
    """Assert that a save's error says what happened, why, and what to change."""
    text = str(error)
    assert "was not committed" in text, text
    assert reason in text, text
    assert "free space or mend the disk" in text, text


def check_phase_ids(workdir: Path, promised: list[int]) -> None:
    """Assert that no phase that was handed out is handed out again."""
    file = PhaseNumberFile(workdir)
    before = file.read()
    assert (before.number if before else 0) >= max(promised, default=0), f"phase {promised[-1]} was forgotten"
    phase_id = file.reserve()
    assert phase_id.number > max(promised, default=0), f"{phase_id} after {promised}"
    assert PhaseNumberFile(workdir).read() == phase_id
    assert sorted(path.name for path in workdir.iterdir()) == ["phase"]
