"""What a run has trained, in files of other programs: Orbax, Flax's msgpack, safetensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from flax import serialization

from hybridsync.core.errors import ConfigError, WorkdirError
from hybridsync.core.extras import imported
from hybridsync.core.paths import local_path
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.checkpoints.arrays import by_path, write_tree
from hybridsync.storage.durable import WorkdirLock
from hybridsync.telemetry.summary import read_config, read_identity
from hybridsync.workdir.keep_best import BEST
from hybridsync.workdir.resuming import CHECKPOINTS

if TYPE_CHECKING:
    from hybridsync.training.task import Task

Format = Literal["orbax", "flax", "safetensors"]
Tree = Mapping[str, Any]


def export(
    workdir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: Format = "orbax",
    *,
    best: bool = False,
    task: Task | None = None,
) -> Path:
    """Write what a run has trained, {"params": ..., "model_state": ...}, and return the path.

    `model_state` is left out where it is empty. Every bit is as in the checkpoint, whose content is verified.

    Args:
      workdir: workdir of a run that is not running.
      out: new path: a folder for "orbax", a file for the others.
      to: "orbax", a checkpoint for `ocp.StandardCheckpointer`; "flax", a file for `flax.serialization.msgpack_restore`;
        "safetensors", names such as `params/layers/0/kernel`.
      best: take the checkpoint that `KeepBest` has kept, and not the newest.
      task: task of the run, whose frozen leaves are exported as well; only needed for a run that has some.

    Raises:
      ConfigError: `to` is unknown, safetensors is not installed, or the run has frozen leaves and there is no `task`.
      WorkdirError: the folder holds no run, no checkpoint, or a run that is running; or `out` is there already or
        cannot be written.
      CheckpointError: no checkpoint holds what was saved.
    """
    folder, target = local_path(workdir), local_path(out)
    writes: dict[str, Callable[[], Callable[[Path, Tree], None]]] = {
        "orbax": lambda: write_tree,
        "flax": lambda: _write_flax,
        "safetensors": lambda: partial(_write_safetensors, imported("safetensors.numpy", "safetensors")),
    }
    if to not in writes:
        raise ConfigError(f"to is {to!r}; name one of {', '.join(writes)}")
    write = writes[to]()  # first: a package that is missing costs no reading
    if os.path.lexists(target):
        raise WorkdirError(f"{target} is there already; name a new path, or remove it")
    tree = _trained(folder, best, task)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, tree)
    except OSError as error:
        raise WorkdirError(f"cannot write {target}: {error.strerror or error}; name another path") from error
    return target


def _trained(workdir: Path, best: bool, task: Task | None) -> dict[str, Any]:
    saved = read_config(workdir)
    if saved is None:
        raise WorkdirError(f"{workdir} holds no run; name the workdir of one")
    frozen = (saved.get("trained") or {}).get("frozen") or {}
    if frozen and task is None:
        raise ConfigError(
            f"the run in {workdir} has {len(frozen)} frozen leaves, which no checkpoint holds; call "
            "hybridsync.export(..., task=...) with its task, which makes them"
        )
    steps = workdir / (BEST if best else CHECKPOINTS)
    if not steps.is_dir():
        raise WorkdirError(f"{steps} is not there; name a run that has saved a checkpoint{' by KeepBest' * best}")
    with WorkdirLock(workdir) as lock:  # a run that is still writing there is left alone
        store = CheckpointStore(steps, run=read_identity(workdir), fence=lock.check)
        restored = store.newest()
        store.close()
    if restored is None:
        raise WorkdirError(f"{steps} holds no checkpoint; name a run that has saved one")
    params = restored.state["params"]
    params = params if task is None else task.whole(params, saved["config"]["seed"])
    tree = {"params": params, "model_state": restored.state.get("model_state")}
    return {name: jax.tree.map(np.asarray, part) for name, part in tree.items() if jax.tree.leaves(part)}


def _write_flax(path: Path, tree: Tree) -> None:
    _replace(path, serialization.msgpack_serialize(dict(tree)))


def _write_safetensors(safetensors: Any, path: Path, tree: Tree) -> None:
    leaves = {name: np.asarray(leaf, order="C") for name, leaf in by_path(tree).items()}
    _replace(path, safetensors.save(leaves))


def _replace(path: Path, content: bytes) -> None:
    partial_path = path.with_name(f".{path.name}.partial")  # a file that is broken off must not pass for a whole one
    partial_path.write_bytes(content)
    os.replace(partial_path, path)
