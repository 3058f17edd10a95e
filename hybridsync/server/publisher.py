"""Ways to lend out the server's parameters: as device arrays to threads, as packed buffers to other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from hybridsync.core.errors import HybridSyncError
from hybridsync.training.buffer_layout import BufferTree, Layout
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.state import TrainState


class DevicePublisher:
    """Lends the arrays themselves: immutable, and kept out of the update's donation by `Programs`."""

    def __init__(self) -> None:
        self._current: Parameters | None = None

    def reserve(self) -> None:
        """Do nothing: what is lent is what the updates have made."""

    def begin(self, wire: str) -> None:
        """Do nothing: what stays in memory is rounded where it is computed on."""

    def publish(self, state: TrainState) -> None:
        """Make the parameters of `state` the current ones."""
        self._current = Parameters(state.params, state.model_state)

    def current(self) -> Parameters:
        """Return the current parameters."""
        assert self._current is not None, "nothing was published yet"
        return self._current

    def read(self, served: Parameters) -> Parameters:
        """Return the parameters that were lent."""
        return served

    def give_back(self, served: Parameters) -> None:
        """Do nothing: what nobody uses any more is freed."""


class PublishedParameters:
    """A packed copy of the parameters, lent to any number of readers at once."""

    def __init__(self, pool: ParameterPool, memory: np.ndarray) -> None:
        self._pool = pool
        self.memory = self.buffer = memory
        self.readers = 0
        self._tree: BufferTree | None = None

    def pack(self, layout: Layout, parameters: Parameters) -> None:
        """Write parameters, as `layout` has them, from the memory's first byte on."""
        if self._tree is None or self._tree.layout is not layout:
            if self.buffer.nbytes != layout.nbytes:
                self.buffer = self.memory[: layout.nbytes]
            self._tree = layout.over(self.buffer)
        self._tree.pack(parameters)

    def release(self) -> None:
        """Give the copy back; it may be rewritten when nobody reads it any more."""
        self._pool.release(self)


class ParameterPool:
    """Packs the parameters of each update into a buffer that nobody reads.

    Two buffers suffice unless a reader is slow; then a further buffer is added, so that a pull never sees half an
    update. The lock guards the readers' counts and the current copy.

    Args:
      layout: layout of the parameters.
      allocate: makes a buffer of so many bytes (see `Transport.allocate`); None for memory of this process.
      narrow: name of a phase's wire -> the layout of the parameters in that format, of no more bytes.
    """

    def __init__(
        self,
        layout: Layout,
        allocate: Callable[[int], np.ndarray] | None = None,
        narrow: Mapping[str, Layout] | None = None,
    ) -> None:
        self._layout = self._whole = layout
        self._narrow = narrow or {}
        self._allocate = allocate or (lambda num_bytes: layout.empty())
        self._lock = threading.Lock()
        self._copies: list[PublishedParameters] = []
        self._current: PublishedParameters | None = None

    def reserve(self) -> None:
        """Take the memory of two copies now, because training waits for the first ones that are published.

        Raises:
          HybridSyncError: there is no memory for them.
        """
        self._copies += [self._new_copy() for _ in range(2 - len(self._copies))]

    def begin(self, wire: str) -> None:
        """Begin a phase whose parameters travel as `wire`; what was published before is nobody's any more."""
        self._layout = self._narrow.get(wire, self._whole)

    def publish(self, state: TrainState) -> None:
        """Pack the parameters of `state` and make them the current ones; one caller at a time.

        Raises:
          MemoryError: there is no memory for one more copy.
        """
        with self._lock:
            free = next((copy for copy in self._copies if not copy.readers and copy is not self._current), None)
        if free is None:
            try:
                free = self._new_copy()
            except HybridSyncError as error:  # the state has moved on: this does not refuse a call
                raise MemoryError(str(error)) from error
            self._copies.append(free)
        free.pack(self._layout, Parameters(state.params, state.model_state))
        with self._lock:
            self._current = free

    def _new_copy(self) -> PublishedParameters:
        return PublishedParameters(self, self._allocate(self._whole.nbytes))

    def current(self) -> PublishedParameters:
        """Lend the current copy; the caller releases it."""
        assert self._current is not None, "nothing was published yet"
        return self.lend(self._current)

    def read(self, served: PublishedParameters) -> Parameters:
        """Return the parameters that were lent, as views."""
        return self._layout.unpack(served.buffer)

    def give_back(self, served: PublishedParameters) -> None:
        """Take back what was lent."""
        served.release()

    def lend(self, copy: PublishedParameters) -> PublishedParameters:
        """Lend a copy that is current, or that somebody else has not given back yet."""
        with self._lock:
            copy.readers += 1
            return copy

    def release(self, copy: PublishedParameters) -> None:
        """Take one reader off `copy`."""
        with self._lock:
            copy.readers -= 1
            assert copy.readers >= 0, "a copy was released twice"
