"""Checkpoints: the commit of a run's state, written and verified here and nowhere else.

Orbax stores the arrays. But it restores a flipped bit without a word, casts dtypes silently, does not fall back
from a damaged step, and gives a step its name before all of its bytes are on the disk. So a step is made in
`partial/`, gets a `manifest.json` with the digest of every file and of every leaf, is made durable, and only
then takes its name; and nothing leaves `CheckpointStore.newest` that does not match its manifest.

    store.py     which steps there are, in which order things become durable, what is restored
    manifest.py  what a step holds, proven by digests
    arrays.py    the only file that imports Orbax
"""

from hybridsync.storage.checkpoints.store import QUARANTINE, REASON_FILE, CheckpointStore, Restored, SaveInfo

__all__ = ["QUARANTINE", "REASON_FILE", "CheckpointStore", "Restored", "SaveInfo"]
