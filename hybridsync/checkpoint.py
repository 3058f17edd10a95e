"""Checkpoints: the commit of a run's state, written and verified here and nowhere else.

Orbax stores the arrays and makes a step appear at once or not at all. But it restores a flipped bit without a
word, casts dtypes silently and does not fall back from a damaged step. So every step carries a record of what
was saved, and nothing leaves `newest` that does not match it.

The record, under the key `hybridsync` of the step's custom metadata:
    format   version of this layout
    units    units applied in `state`
    leaves   path -> [type, digest], in the order of the saved tree
    items    `ledger` and `run` -> digest of their canonical JSON
    digest   of the record itself without this entry, as canonical JSON
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint import checkpoint_managers

from hybridsync.clock import SYSTEM_CLOCK, Clock
from hybridsync.durable import make_directory, sync_directory, sync_tree, write_durable
from hybridsync.errors import CheckpointError
from hybridsync.layout import Layout, describe, digest, first_difference, leaf_bytes

QUARANTINE = "quarantine"
REASON_FILE = "reason.txt"
_RECORD = "hybridsync"
_FORMAT = 1
_ITEMS = ("ledger", "run")
_OPTIONAL = "protocol_state"
_DRAIN_SECS = 30.0

# What Orbax, TensorStore and JSON raise on damaged files and refusing disks; there is no common base.
_FAILURES = (
    *(OSError, EOFError, RuntimeError, ArithmeticError, AssertionError),
    *(ValueError, TypeError, LookupError, AttributeError),
)
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EINVAL, errno.EUCLEAN, errno.EBADMSG}
_REFUSALS = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "Permission denied", "Too many open files")


@dataclass(frozen=True)
class SaveInfo:
    """What a committed save was.

    Args:
      step: running number of the commit.
      bytes: size of its files.
      secs: from the call to the last fsync.
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


class _Damaged(Exception):
    """A step whose files do not hold what was saved."""


class _PatientLoop(asyncio.SelectorEventLoop):
    """Waits, before it closes, for the reads and writes that go on when the first of many has failed.

    Orbax closes its loop at once; each of them would then print a traceback of its own.
    """

    def close(self) -> None:
        left = set() if self.is_closed() else asyncio.all_tasks(self)
        if left:
            done, _ = self.run_until_complete(asyncio.wait(left, timeout=_DRAIN_SECS))
            for task in done:
                if not task.cancelled():
                    task.exception()  # marks it as seen
        super().close()


class _PatientPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _PatientLoop()


@contextmanager
def _patient() -> Iterator[None]:
    """Let Orbax run on patient loops."""
    previous = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_PatientPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(previous)


class CheckpointStore:
    """The checkpoints of one run, in one directory, written by one process.

    Not thread-safe: one call at a time, from any thread.

    Args:
      directory: created with its parents where absent.
      keep: how many of the newest steps stay.
      clock: source of `SaveInfo.secs`.

    Raises:
      CheckpointError: the directory cannot be created or read.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, keep: int = 3, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}; set it to 1 or more: the newest always stays")
        self._keep = keep
        self._clock = clock
        self._manager: ocp.CheckpointManager | None = None
        try:
            self._directory = make_directory(directory)
            self._open()
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
          CheckpointError: nothing was committed, the previous steps are intact; the cause says why.
          TaskError: a leaf is not an array of numbers.
        """
        started = self._clock.monotonic()
        items = {"ledger": _json_object("ledger", ledger), "run": _json_object("run", run)}
        layout = Layout.of(state)
        state = jax.tree_util.tree_map(np.asarray, state)
        record = _record(layout, state, units, items)
        step = self._next_step()
        try:
            with _patient():
                self._open().save(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.PyTreeSave(state),
                        **{name: ocp.args.JsonSave(item) for name, item in items.items()},
                    ),
                    custom_metadata={_RECORD: record},
                    force=True,
                )
            num_bytes = sync_tree(self._directory / str(step))
            sync_directory(self._directory)
        except _FAILURES as error:
            self._close()
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
          The verified checkpoint, None when there is no step at all.

        Raises:
          CheckpointError: the state is of another model or optimizer, or of another format version, or no
            step is good (the reasons are listed), or the files cannot be read now. Nothing was moved.
          TaskError: a leaf of `abstract_state` is not an array of numbers.
        """
        bad: list[tuple[int, str]] = []
        for step in reversed(self.steps()):
            try:
                restored = self._read(step, abstract_state)
            except _Damaged as damage:
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
        self._close()

    def _open(self) -> ocp.CheckpointManager:
        """Return the manager; a fresh one first removes what a failed save left behind."""
        if self._manager is None:
            registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
            # zstd saves a tenth of the space of float noise and takes three times as long (100 MB: 0.41 s).
            arrays = ocp.handlers.PyTreeCheckpointHandler(use_compression=False)
            registry.add("state", ocp.args.PyTreeSave, arrays)
            registry.add("state", ocp.args.PyTreeRestore, arrays)
            for name in _ITEMS:
                registry.add(name, ocp.args.JsonSave)
                registry.add(name, ocp.args.JsonRestore)
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=ocp.CheckpointManagerOptions(
                    cleanup_tmp_directories=True,
                    enable_async_checkpointing=False,
                    # Orbax would delete old steps before the new one is durable: `_drop_old` does it after.
                    preservation_policy=checkpoint_managers.LatestN(n=None),
                    save_root_metadata=False,
                    lightweight_initialize=True,  # read nothing from the steps: one may be damaged
                ),
                handler_registry=registry,
            )
        return self._manager

    def _close(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()

    def _next_step(self) -> int:
        """Return a number above every step there is or was set aside, so that no name is used twice."""
        return max((0, *self.steps(), *_numbers(self._directory / QUARANTINE))) + 1

    def _drop_old(self) -> None:
        """Delete what exceeds `keep`; the new step is durable, so a failure here costs space only."""
        for step in self.steps()[: -self._keep]:
            try:
                self._open().delete(step)
            except OSError as error:
                logging.error("Old checkpoint %d in %s cannot be deleted: %s", step, self._directory, error)

    def _quarantine(self, step: int, reason: str) -> None:
        source, folder = self._directory / str(step), self._directory / QUARANTINE
        self._close()  # its list of steps is no longer true
        try:
            make_directory(folder)
            os.rename(source, folder / source.name)
            write_durable(folder / source.name / REASON_FILE, reason + "\n")
            sync_directory(folder)
            sync_directory(self._directory)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {step} is damaged ({reason}) and cannot be moved to {folder}: {error}"
            ) from error
        logging.error("Checkpoint %d is damaged and was moved to %s: %s", step, folder, reason)

    def _read(self, step: int, abstract_state: Any) -> Restored:
        """Restore and verify one step.

        Raises:
          _Damaged: it does not hold what was saved.
          CheckpointError: it is intact and cannot be used here, or cannot be read at present.
        """
        record = self._read_record(step)
        saved: dict[str, list[str]] = record["leaves"]
        wanted = _without_absent_protocol_state(abstract_state, saved)
        if wanted is not None:
            self._check_schema(step, saved, Layout.of(wanted))
        try:
            with _patient():
                found = self._open().restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.PyTreeRestore(), **{name: ocp.args.JsonRestore() for name in _ITEMS}
                    ),
                )
            items = {name: found[name] for name in _ITEMS}
            arrays = _by_path(found["state"])
        except _FAILURES as error:
            raise self._unreadable(step, error) from error
        for name, item in items.items():
            if _json_digest(item) != record["items"][name]:
                raise _Damaged(f"{name} differs from what was saved")
        if arrays.keys() != saved.keys():
            missing = sorted(arrays.keys() ^ saved.keys())[0]
            raise _Damaged(f"leaf {missing} is stored or recorded, not both")
        for path, (kind, expected) in saved.items():
            array = arrays[path]
            if not isinstance(array, np.ndarray) or describe(array.dtype, array.shape) != kind:
                raise _Damaged(f"leaf {path} is no longer {kind}")
            if digest(leaf_bytes(array).data) != expected:
                raise _Damaged(f"leaf {path} differs from what was saved")
        state = found["state"]
        if wanted is not None:
            layout = Layout.of(wanted)
            state = layout.treedef.unflatten([arrays[leaf.path] for leaf in layout.leaves])
        return Restored(step, record["units"], state, items["ledger"], items["run"])

    def _read_record(self, step: int) -> dict[str, Any]:
        """Return the step's record, proven intact by its own digest."""
        try:
            with _patient():
                metadata = self._open().metadata(step).custom_metadata
        except _FAILURES as error:
            raise self._unreadable(step, error) from error
        record = (metadata or {}).get(_RECORD)
        if not isinstance(record, dict):
            raise _Damaged("it has no record of what was saved: another program wrote it, or its metadata are gone")
        record = dict(record)
        expected, actual = record.pop("digest", None), _json_digest(record)
        if actual != expected:
            raise _Damaged("the record of what was saved is damaged")
        if record.get("format") != _FORMAT:
            raise CheckpointError(
                f"checkpoint {step} in {self._directory} has format {record.get('format')}, this HybridSync "
                f"reads format {_FORMAT}: use the version that wrote it"
            )
        held = {*record, *(f"items.{name}" for name in record.get("items", ()))}
        if missing := sorted({"units", "leaves", "items", *(f"items.{name}" for name in _ITEMS)} - held):
            raise _Damaged(f"its record lacks {', '.join(missing)}: another program wrote it")
        return record

    def _check_schema(self, step: int, saved: Mapping[str, list[str]], layout: Layout) -> None:
        """Compare before Orbax reads anything: it would cast a dtype without a word."""
        ignored = {path for path in saved if _is_optional(path)} - layout.types.keys()
        found = {path: kind for path, (kind, _) in saved.items() if path not in ignored}
        if difference := first_difference(found, layout.types):
            raise CheckpointError(
                f"checkpoint {step} in {self._directory} is of another model or optimizer: {difference}; "
                "configure the run as the one that saved it, or use another workdir"
            )

    def _unreadable(self, step: int, error: BaseException) -> Exception:
        """Tell damage, which a fallback mends, from a passing refusal, which must not cost a good step."""
        refused = isinstance(error, OSError) and error.errno is not None and error.errno not in _DAMAGE
        if refused or any(word in str(error) for word in _REFUSALS):
            return CheckpointError(
                f"checkpoint {step} in {self._directory} cannot be read: {_cause(error)}; nothing was moved: "
                "mend the cause and run again"
            )
        return _Damaged(f"unreadable: {_cause(error)}")


def _record(layout: Layout, state: Any, units: int, items: Mapping[str, Any]) -> dict[str, Any]:
    leaves: dict[str, list[str]] = {}
    stored = _by_path(ocp.tree.serialize_tree(state, keep_empty_nodes=True))
    for spec, leaf in zip(layout.leaves, jax.tree_util.tree_leaves(state), strict=True):
        if leaf.size == 0:
            raise CheckpointError(f"leaf {spec.path} is {spec}: Orbax stores no empty arrays; drop it")
        if spec.path not in stored:
            raise CheckpointError(
                f"leaf {spec.path} is in a container that Orbax stores under another name; use dicts, "
                "tuples, lists, NamedTuples or dataclasses"
            )
        leaves[spec.path] = [str(spec), digest(leaf_bytes(leaf).data)]
    record = {
        "format": _FORMAT,
        "units": int(units),
        "leaves": leaves,
        "items": {name: _json_digest(item) for name, item in items.items()},
    }
    return record | {"digest": _json_digest(record)}


def _without_absent_protocol_state(abstract_state: Any, saved: Mapping[str, Any]) -> Any:
    """Return what to restore: a protocol state that was not saved stays empty."""
    asked = getattr(abstract_state, _OPTIONAL, None)
    if jax.tree_util.tree_leaves(asked) and not any(_is_optional(path) for path in saved):
        return dataclasses.replace(abstract_state, **{_OPTIONAL: {}})
    return abstract_state


def _is_optional(path: str) -> bool:
    return path.split("/", 1)[0] == _OPTIONAL


def _by_path(tree: Any) -> dict[str, Any]:
    entries = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(keys, simple=True, separator="/"): leaf for keys, leaf in entries}


def _json_object(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return what reading `item` back from JSON gives: tuples become lists, keys become text."""
    try:
        return json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} is not JSON: {error}; hand in plain finite values") from error


def _json_digest(item: Any) -> str:
    return digest(json.dumps(item, sort_keys=True, separators=(",", ":")).encode())


def _numbers(directory: Path) -> tuple[int, ...]:
    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error}") from error
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdecimal()))


def _cause(error: BaseException) -> str:
    """Return an error's first line with its type: Orbax appends whole trees, TensorStore long paths."""
    line, *_ = [*str(error).strip().splitlines(), ""]
    if len(line) > 300:
        line = f"{line[:120]} ... {line[-160:]}"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
