"""Leaves of a model that are not trained: each process makes them itself, and they are in no state and no message.

A model's parameters come in two trees, of what is trained and of what is frozen, which the loss gets as one:

>>> tree = {"block": {"kernel": 1, "lora_a": 2, "lora_b": 3}}
>>> trained, frozen = parted(tree, {("block", "lora_a"), ("block", "lora_b")})
>>> trained, frozen
({'block': {'lora_a': 2, 'lora_b': 3}}, {'block': {'kernel': 1}})
>>> joined(trained, frozen) == tree
True
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import jax

from hybridsync.core.errors import TaskError
from hybridsync.devices.placement import SHARED_DEVICE, Placement
from hybridsync.training.buffer_layout import digest, leaf_bytes

if TYPE_CHECKING:
    from hybridsync.training.task import Task

Tree = Any
Path = tuple[str, ...]


def parted(tree: Mapping[str, Any], trained: Container[Path], above: Path = ()) -> tuple[Tree, Tree]:
    """Return the parts of nested dictionaries at the paths in `trained`, and the rest; neither has empty ones."""
    parts: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, value in tree.items():
        path = (*above, name)
        if path in trained:
            parts[0][name] = value
        elif isinstance(value, Mapping):
            for part, found in zip(parts, parted(value, trained, path), strict=True):
                if found:
                    part[name] = found
        else:
            parts[1][name] = value
    return parts


def joined(params: Tree, frozen: Tree | None) -> Tree:
    """Return parameters with the frozen leaves among them.

    Raises:
      TaskError: both have something at the same path.
    """
    if frozen is None:
        return params
    if not (isinstance(params, Mapping) and isinstance(frozen, Mapping)):
        raise TaskError(
            "task.init and task.frozen both return something for one place of the parameters; return nested "
            "dictionaries that have no leaf in common"
        )
    both = {name: joined(params[name], frozen[name]) for name in params if name in frozen}
    return {**params, **frozen, **both}


def frozen_leaves(task: Task, seed: int) -> Tree | None:
    """Return a task's frozen leaves for a run of that seed, in memory of the host; None where all are trained.

    They are computed by the CPU also where there are accelerators: a process without one makes the same bits.
    """
    if task.frozen is None:
        return None
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the user has left the CPU out of JAX's platforms
        device = None
    with jax.default_device(device):
        return jax.device_get(task.frozen(jax.random.key(seed)))


def digests(frozen: Tree | None) -> dict[str, str]:
    """Return the digest of each frozen leaf by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(frozen)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): digest(leaf_bytes(leaf).data) for path, leaf in leaves
    }


class Frozen:
    """The frozen leaves of a run at each seat of a placement, made when they are first needed."""

    def __init__(self, task: Task, seed: int, placement: Placement = SHARED_DEVICE) -> None:
        self._task, self._seed, self._placement = task, seed, placement
        self._digests: tuple[str, ...] = ()
        self._seats: list[Tree] = []
        self._joint: Tree | None = None
        self._lock = threading.Lock()

    def at(self, worker: int) -> Tree | None:
        """Return them at a worker's seat; None where all leaves are trained."""
        if self._task.frozen is None:
            return None
        if not self._seats:
            with self._lock:
                if not self._seats:
                    self._seats = self._placed()
        return self._seats[worker % len(self._seats)]

    def joint(self) -> Tree | None:
        """Return them where a replica lies, in the memory of the seats."""
        self.at(0)
        return self._joint

    def digests(self) -> tuple[str, ...]:
        """Return the digest of each leaf, in the order of their paths."""
        self.at(0)
        return self._digests

    def _placed(self) -> list[Tree]:
        at = self._placement
        leaves = frozen_leaves(self._task, self._seed)
        self._digests = tuple(found for _, found in sorted(digests(leaves).items()))
        self._joint = at.put(leaves)
        return [at.at_worker(self._joint, seat) for seat in range(at.num_seats)]
