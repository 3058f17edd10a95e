"""A step's files as Orbax writes and reads them: the state and JSON items beside it. Nothing else imports Orbax."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

STATE = "state"
_DRAIN_SECS = 30.0

# What Orbax, TensorStore and JSON raise on damaged files and refusing disks; there is no common base.
FAILURES = (
    *(OSError, EOFError, RuntimeError, ArithmeticError, AssertionError),
    *(ValueError, TypeError, LookupError, AttributeError),
)


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


@contextmanager
def _unsynced() -> Iterator[None]:
    """Let TensorStore sync no file: the caller syncs all of a step's files in one go, temporary ones excepted.

    Orbax has no option for it, so this sets a private default of its contexts while a step is written. Where another
    version has none, files are synced twice, which costs time and nothing else.
    """
    try:
        module = importlib.import_module("orbax.checkpoint._src.serialization.tensorstore_utils")
    except ImportError:
        module = None
    defaults = getattr(module, "_DEFAULT_OCDBT_TS_CONTEXT", None)
    if not isinstance(defaults, dict) or "file_io_sync" in defaults:
        yield
        return
    defaults["file_io_sync"] = False
    try:
        yield
    finally:
        del defaults["file_io_sync"]


def _leaf_handlers() -> Any:
    """Return Orbax's handlers of leaves, which write arrays of the host where they lie: no state changes meanwhile.

    Orbax would copy all of them first, as its versions without this option do.
    """
    types = ocp.type_handlers
    handlers = {kind: types.get_type_handler(kind) for kind in types.supported_types()}
    if "deepcopy_host_arrays" in inspect.signature(types.NumpyHandler).parameters:
        handlers[np.ndarray] = types.NumpyHandler(deepcopy_host_arrays=False)
    return types.create_type_handler_registry(*handlers.items())


class StepFiles:
    """Writes and reads the files of one step at a time.

    Args:
      items: names of the JSON objects that are stored with the state.
    """

    def __init__(self, items: tuple[str, ...]) -> None:
        self._items = items
        self._open: ocp.Checkpointer | None = None

    def write(self, folder: Path, state: Any, items: Mapping[str, Any]) -> None:
        """Write a step into a new folder; what is on the disk then is not durable yet.

        Args:
          folder: absent; its parent exists.
          state: pytree of numpy arrays.
          items: JSON objects by name.

        Raises:
          FAILURES: a part of the step was not written.
        """
        with _patient(), _unsynced():
            self._checkpointer().save(
                folder,
                args=ocp.args.Composite(
                    **{STATE: ocp.args.PyTreeSave(state)},
                    **{name: ocp.args.JsonSave(items[name]) for name in self._items},
                ),
            )

    def read(self, folder: Path) -> tuple[Any, dict[str, Any]]:
        """Return the state (numpy leaves in nested dicts and lists) and the items.

        Raises:
          FAILURES: the files cannot be read.
        """
        with _patient():
            found = self._checkpointer().restore(
                folder,
                args=ocp.args.Composite(
                    **{STATE: ocp.args.PyTreeRestore()}, **{name: ocp.args.JsonRestore() for name in self._items}
                ),
            )
        return found[STATE], {name: found[name] for name in self._items}

    def close(self) -> None:
        """Release Orbax's threads; the next call starts new ones."""
        checkpointer, self._open = self._open, None
        if checkpointer is not None:
            checkpointer.close()

    def _checkpointer(self) -> ocp.Checkpointer:
        if self._open is None:
            # zstd saves a tenth of the space of float noise and takes three times as long (100 MB: 0.41 s).
            of_state = ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=_leaf_handlers())
            handlers: dict[str, Any] = {STATE: of_state}
            handlers |= {name: ocp.JsonCheckpointHandler() for name in self._items}
            self._open = ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers))
        return self._open


def write_tree(folder: Path, tree: Any) -> None:
    """Write a tree of arrays as a plain Orbax checkpoint, into a folder that is absent."""
    with _patient(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))


def stored_paths(state: Any) -> set[str]:
    """Return the paths under which Orbax will give a tree's leaves back."""
    return set(by_path(ocp.tree.serialize_tree(state, keep_empty_nodes=True)))


def by_path(tree: Any) -> dict[str, Any]:
    """Return a tree's leaves by their keys from the root, joined by "/".

    >>> by_path({"a": [1, 2]})
    {'a/0': 1, 'a/1': 2}
    """
    entries = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(keys, simple=True, separator="/"): leaf for keys, leaf in entries}
