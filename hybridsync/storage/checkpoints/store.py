"""Saves a run's checkpoints in an order that no crash can hurt, and chooses the one to restore.

checkpoints/N/            a whole step: it took this name after every byte of it was durable
checkpoints/partial/      being written or deleted; what a crash leaves there is removed by the next save
checkpoints/quarantine/N  a step that did not hold what was saved, with its `reason.txt`
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import CheckpointError
from hybridsync.storage.checkpoints.arrays import FAILURES, StepFiles, by_path, stored_paths
from hybridsync.storage.checkpoints.manifest import (
    MANIFEST_FILE,
    Damaged,
    Manifest,
    files_of,
    json_digest,
    manifest_digest,
    read_manifest,
)
from hybridsync.storage.durable import (
    FOLDER_MODE,
    Fence,
    keep_private,
    make_directory,
    private,
    sync_directory,
    sync_tree,
    unfenced,
    write_durable,
)
from hybridsync.training.buffer_layout import Layout, digest, first_difference, leaf_bytes

PARTIAL = "partial"
QUARANTINE = "quarantine"
REASON_FILE = "reason.txt"
_ITEMS = ("ledger", "run")
_OPTIONAL = "protocol_state"
_CLEAR_ATTEMPTS = 3
_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
_REFUSALS = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "Permission denied", "Too many open files")


@dataclass(frozen=True)
class SaveInfo:
    """Describes a committed save.

    Args:
      step: running number of the commit.
      bytes: size of its files.
      secs: seconds from the call to the last fsync.
    """

    step: int
    bytes: int
    secs: float


@dataclass(frozen=True)
class Restored:
    """A verified checkpoint.

    Args:
      step: running number of the commit.
      units: units applied in `state`.
      state: numpy leaves in the structure that was asked for; without one, nested dicts and lists.
      ledger: the JSON object that was saved with it.
      run: the JSON object that was saved with it.
      quarantined: newer steps that were damaged and set aside, with the reason, newest first.
    """

    step: int
    units: int
    state: Any
    ledger: dict[str, Any]
    run: dict[str, Any]
    quarantined: tuple[tuple[int, str], ...] = ()


class CheckpointStore:
    """The checkpoints of one run, in one directory, written by one process.

    Not thread-safe: one call at a time, from any thread.

    Args:
      directory: created with its parents where absent.
      keep: number of the newest steps to keep.
      run: identity of the run, which its steps carry: those of another are set aside. None accepts any step and writes
        none.
      clock: source of `SaveInfo.secs`.
      fence: see `write_durable`.

    Raises:
      CheckpointError: the directory cannot be created or read.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 3,
        run: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        fence: Fence = unfenced,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}; set it to 1 or more: the newest always stays")
        self._keep, self._run = keep, run
        self._clock, self._fence = clock, fence
        self._own = secrets.token_hex(4)
        self._files = StepFiles(_ITEMS)
        self._attempts = 0
        try:
            self._directory = make_directory(directory)
        except OSError as error:
            raise CheckpointError(f"cannot open {directory}: {error}; name a writable directory") from error

    def save(self, state: Any, *, units: int, ledger: dict[str, Any], run: dict[str, Any]) -> SaveInfo:
        """Commit a state; when this returns it survives a power loss.

        Args:
          state: pytree of host arrays, none of them empty; must not change during the call.
          units: units applied in it.
          ledger: JSON object.
          run: JSON object.

        Raises:
          CheckpointError: the previous steps are intact, and this one is whole or absent; the message contains the
            reason.
          TaskError: a leaf is not an array of numbers.
          WorkdirTaken: by the fence; this step is absent, and nothing was removed.
        """
        started = self._clock.monotonic()
        self._ask_fence()  # what lies in `partial/` may be another chief's
        self._clear()
        items = {"ledger": _json_object("ledger", ledger), "run": _json_object("run", run)}
        layout = Layout.of(state)
        state = jax.tree_util.tree_map(np.asarray, state)
        leaves = _leaves(layout, state)
        step = self._next_step()
        unnamed, named = self._unnamed(step), self._directory / str(step)
        try:
            make_directory(self._directory)  # the user may have removed it
            unnamed.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._files.write(unnamed, state, items)
            keep_private(unnamed)
            digests = {name: json_digest(item) for name, item in items.items()}
            parent = self._parent()
            manifest = Manifest(
                int(units), leaves, digests, files=files_of(unnamed), step=step, run=self._run, parent=parent
            )
            with open(unnamed / MANIFEST_FILE, "w", encoding="utf-8", opener=private) as file:
                file.write(manifest.text())
            num_bytes = sync_tree(unnamed)
            self._fence()
            os.rename(unnamed, named)
            sync_directory(self._directory)
        except (*FAILURES, Damaged) as error:
            self._files.close()
            self._ask_fence()  # its files may have been removed by the chief that has the workdir now
            self._clear()  # a full disk has other writers too
            raise CheckpointError(
                f"checkpoint {step} at {units} units was not committed in {self._directory}: "
                f"{_cause(error)}; the earlier ones are intact: free space or mend the disk"
            ) from error
        self._drop_old()
        return SaveInfo(step, num_bytes, self._clock.monotonic() - started)

    def steps(self) -> tuple[int, ...]:
        """Return the numbers of the steps on disk, oldest first, verified or not.

        Raises:
          CheckpointError: the directory cannot be read.
        """
        return _numbers(self._directory)

    def newest(self, abstract_state: Any = None) -> Restored | None:
        """Restore the newest step that holds exactly what was saved.

        Damaged newer steps are moved to `quarantine/STEP` with a `reason.txt`, once a good one is found.

        Args:
          abstract_state: tree of arrays or `jax.ShapeDtypeStruct` that the state must match; None takes any.
            `protocol_state` alone may be missing on either side.

        Returns:
          The verified checkpoint, None if there is no step at all.

        Raises:
          CheckpointError: the state is of another model or optimizer, or of another format version, or no
            step is good (the reasons are listed), or the files cannot be read now. Nothing was moved.
          TaskError: a leaf of `abstract_state` is not an array of numbers.
        """
        bad: list[tuple[int, str]] = []
        for step in reversed(self.steps()):
            try:
                restored = self._read(step, abstract_state)
            except Damaged as damage:
                bad.append((step, str(damage)))
                continue
            for number, reason in bad:
                self._quarantine(number, reason)
            return dataclasses.replace(restored, quarantined=tuple(bad))
        if not bad:
            return None
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in bad)
        raise CheckpointError(
            f"none of the {len(bad)} checkpoints in {self._directory} holds what was saved: {reasons}; "
            "bring a copy back, or start in another workdir"
        )

    def close(self) -> None:
        """Release Orbax's threads; the store can still be used."""
        self._files.close()

    def _next_step(self) -> int:
        """Return a number above every step there is or was set aside, so that no name is used twice."""
        return max((0, *self.steps(), *_numbers(self._directory / QUARANTINE))) + 1

    def _parent(self) -> tuple[int, str] | None:
        """Return the newest step and the digest of its manifest, None where there is none that can be read."""
        for step in self.steps()[-1:]:
            with contextlib.suppress(OSError, Damaged):
                return step, manifest_digest(self._directory / str(step))
        return None

    def _drop_old(self) -> None:
        """Delete what exceeds `keep`; the new step is durable, so a failure here costs space only.

        A step loses its name first, for good: a crash leaves it whole or gone.
        """
        old = self.steps()[: -self._keep]
        try:
            if old:
                (self._directory / PARTIAL).mkdir(mode=FOLDER_MODE, exist_ok=True)
            for step in old:
                self._fence()
                os.rename(self._directory / str(step), self._unnamed(step))
            if old:
                sync_directory(self._directory)
        except OSError as error:
            logging.error("Checkpoints %s in %s cannot be deleted: %s", old, self._directory, error)
        self._clear()

    def _unnamed(self, step: int) -> Path:
        """Return a place in `partial/` that neither this store nor another chief's ever used.

        When a write fails, TensorStore may still be busy with others: none of them may reach a later step's files. The
        same holds for a chief that was stopped during a save, while another chief took the workdir over.
        """
        self._attempts += 1
        return self._directory / PARTIAL / f"{step}.{self._attempts}.{self._own}"

    def _ask_fence(self) -> None:
        """Ask whether this process may still change the directory; a disk that does not tell fails by itself.

        Raises:
          WorkdirTaken: this process may not change it any more.
        """
        with contextlib.suppress(OSError):
            self._fence()

    def _clear(self) -> None:
        """Remove what is in `partial/`; what cannot be removed yet costs space only, and the next save tries again."""
        partial = self._directory / PARTIAL
        for left in range(_CLEAR_ATTEMPTS, 0, -1):
            try:
                if partial.exists():
                    shutil.rmtree(partial)
                return
            except OSError as error:  # refused, or a write of a failed save has just put something into it
                if left == 1:
                    logging.error("%s cannot be removed; the next save tries again: %s", partial, error)

    def _quarantine(self, step: int, reason: str) -> None:
        """Move a damaged step away; its reason is there before it moves."""
        source, folder = self._directory / str(step), self._directory / QUARANTINE
        try:
            place = make_directory(folder) / source.name
            if source.is_symlink():  # what it points to is not ours
                write_durable(make_directory(place) / REASON_FILE, reason + "\n", self._fence)
                self._fence()
                os.rename(source, place / "link")
            else:
                write_durable(source / REASON_FILE, reason + "\n", self._fence)
                self._fence()
                os.rename(source, place)
            sync_directory(folder)
            sync_directory(self._directory)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {step} is damaged ({reason}) and cannot be moved to {folder}: {error}; "
                "free space or mend the disk, or move it by hand"
            ) from error
        logging.error("Checkpoint %d is damaged and was moved to %s: %s", step, folder, reason)

    def _read(self, step: int, abstract_state: Any) -> Restored:
        """Restore and verify one step.

        Raises:
          Damaged: the step does not hold what was saved.
          CheckpointError: it is intact and cannot be used here, or cannot be read at present.
        """
        folder = self._directory / str(step)
        try:
            manifest = read_manifest(folder)
            manifest.check_place(folder, self._run)
            types = {path: kind for path, (kind, _) in manifest.leaves.items()}
            wanted = _without_absent_protocol_state(abstract_state, types)
            if wanted is not None:
                self._check_schema(step, types, Layout.of(wanted))
            manifest.check_files(folder)
        except OSError as error:
            raise self._refused(step, error) from error
        try:
            state, items = self._files.read(folder)
            arrays = by_path(state)
        except FAILURES as error:
            if any(word in str(error) for word in _REFUSALS):
                raise self._refused(step, error) from error
            raise Damaged(f"unreadable although every file is as written: {_cause(error)}") from error
        manifest.check_content(arrays, items)
        if wanted is not None:
            layout = Layout.of(wanted)
            state = layout.treedef.unflatten([arrays[leaf.path] for leaf in layout.leaves])
        return Restored(step, manifest.units, state, items["ledger"], items["run"])

    def _check_schema(self, step: int, saved: Mapping[str, str], layout: Layout) -> None:
        """Compare before Orbax reads anything: it would cast a dtype without a word."""
        ignored = {path for path in saved if _is_optional(path)} - layout.types.keys()
        found = {path: kind for path, kind in saved.items() if path not in ignored}
        if difference := first_difference(found, layout.types):
            raise CheckpointError(
                f"checkpoint {step} in {self._directory} is of another model or optimizer: {difference}; "
                "configure the run as the one that saved it, or use another workdir"
            )

    def _refused(self, step: int, error: BaseException) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {step} in {self._directory} cannot be read: {_cause(error)}; nothing was moved: "
            "mend the cause and run again"
        )


def _leaves(layout: Layout, state: Any) -> dict[str, tuple[str, str]]:
    """Return each leaf's type and digest by its path.

    Raises:
      CheckpointError: Orbax would not give a leaf back, or under another path.
    """
    leaves: dict[str, tuple[str, str]] = {}
    stored = stored_paths(state)
    for spec, leaf in zip(layout.leaves, jax.tree_util.tree_leaves(state), strict=True):
        if leaf.size == 0:
            raise CheckpointError(f"leaf {spec.path} is {spec}: Orbax stores no empty arrays; drop it")
        if spec.path not in stored:
            raise CheckpointError(
                f"leaf {spec.path} is in a container that Orbax stores under another name; use dicts, "
                "tuples, lists, NamedTuples or dataclasses"
            )
        leaves[spec.path] = (str(spec), digest(leaf_bytes(leaf).data))
    return leaves


def _without_absent_protocol_state(abstract_state: Any, saved: Mapping[str, Any]) -> Any:
    """Return what to restore: the state of a protocol of which none was saved stays out."""
    asked = getattr(abstract_state, _OPTIONAL, None)
    if not asked:
        return abstract_state
    names = {path.split("/")[1] for path in saved if _is_optional(path)}
    return dataclasses.replace(
        abstract_state, **{_OPTIONAL: {name: kept for name, kept in asked.items() if name in names}}
    )


def _is_optional(path: str) -> bool:
    return path.split("/", 1)[0] == _OPTIONAL


def _json_object(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return what reading `item` back from JSON gives: tuples become lists, keys become text."""
    try:
        return json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} is not JSON: {error}; hand in plain finite values") from error


def _numbers(directory: Path) -> tuple[int, ...]:
    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_dir() or entry.is_symlink()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error}") from error
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdecimal()))


def _cause(error: BaseException) -> str:
    """Return what the disk said where it said something, and an error's first line with its type.

    Orbax appends whole trees to its errors, TensorStore long paths before the disk's own words.
    """
    line, *_ = [*str(error).strip().splitlines(), ""]
    said = [text for text in map(os.strerror, _DISK_ERRORS) if text in line]
    if len(line) > 300:
        line = f"{line[:120]} ... {line[-160:]}"
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return f"{said[0]} ({text})" if said and said[0] not in text else text
