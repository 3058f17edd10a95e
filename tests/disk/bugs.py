"""Bugs against the disk, to be planted into a process; each must be found by the tests that are there to find it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hybridsync.storage import durable
from hybridsync.storage.checkpoints import CheckpointStore, store
from hybridsync.storage.checkpoints.manifest import Manifest


def renames_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """Files get their final name before their bytes are durable."""

    def sync_folders_only(path):
        for folder, _, _ in os.walk(path, topdown=False):
            durable.sync_directory(folder)
        return 1

    def write_unsynced(path, text, fence=durable.unfenced):
        temporary = Path(path).with_name(f".{Path(path).name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
        durable.sync_directory(Path(path).parent)

    patch.setattr(store, "sync_tree", sync_folders_only)
    patch.setattr(durable, "write_durable", write_unsynced)


def never_syncs_a_directory(patch: pytest.MonkeyPatch) -> None:
    """Files are durable, their names are not."""
    patch.setattr(durable, "sync_directory", lambda path: None)
    patch.setattr(store, "sync_directory", lambda path: None)


def does_not_verify_digests(patch: pytest.MonkeyPatch) -> None:
    """What is read is believed."""
    patch.setattr(Manifest, "check_files", lambda self, folder: None)
    patch.setattr(Manifest, "check_content", lambda self, leaves, items: None)


def verifies_leaves_only(patch: pytest.MonkeyPatch) -> None:
    """Bytes that Orbax does not look at may change."""
    patch.setattr(Manifest, "check_files", lambda self, folder: None)


def skips_a_damaged_step_silently(patch: pytest.MonkeyPatch) -> None:
    """An older step is restored and nobody is told."""
    newest = CheckpointStore.newest

    def silent(self, abstract_state=None):
        restored = newest(self, abstract_state)
        return restored and store.dataclasses.replace(restored, quarantined=())

    patch.setattr(CheckpointStore, "newest", silent)
    patch.setattr(CheckpointStore, "_quarantine", lambda self, step, reason: None)


def leaves_what_a_failed_save_wrote(patch: pytest.MonkeyPatch) -> None:
    """Unfinished steps are never removed."""

    def write_elsewhere(self):
        partial = self._directory / store.PARTIAL
        if partial.exists():
            os.rename(partial, self._directory / f"{store.PARTIAL}.{len(os.listdir(self._directory))}")

    patch.setattr(CheckpointStore, "_clear", write_elsewhere)


def swallows_a_failed_save(patch: pytest.MonkeyPatch) -> None:
    """A save that wrote nothing says that it did."""
    write = store.StepFiles.write

    def swallow(self, folder, state, items):
        try:
            write(self, folder, state, items)
        except store.FAILURES:
            folder.mkdir(exist_ok=True)

    patch.setattr(store.StepFiles, "write", swallow)


def deletes_the_old_step_first(patch: pytest.MonkeyPatch) -> None:
    """The older step goes before the new one is whole."""
    clear = CheckpointStore._clear

    def clear_too_much(self):
        clear(self)
        for step in self.steps():
            store.shutil.rmtree(self._directory / str(step))

    patch.setattr(CheckpointStore, "_clear", clear_too_much)


BUGS = (
    *(renames_without_fsync, never_syncs_a_directory, does_not_verify_digests, verifies_leaves_only),
    *(skips_a_damaged_step_silently, leaves_what_a_failed_save_wrote, swallows_a_failed_save),
    deletes_the_old_step_first,
)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have a bug in this process, or none where the name is empty."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            next(bug for bug in BUGS if bug.__name__ == name)(patch)
        yield
