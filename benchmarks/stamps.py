"""When each unit's examples were fetched: how fast a training loop goes, seen from its data source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hybridsync.data.source import DeviceBatch, HostBatch, UnitSource


class StampedSource:
    """Serves another source's units and notes when each was asked for, in every loop alike.

    Args:
      source: what is served.

    Attributes:
      stamps: seconds, one for each unit, in the order of asking; a list's append needs no lock.
    """

    def __init__(self, source: UnitSource) -> None:
        self._source = source
        self.stamps: list[float] = []

    @property
    def num_examples(self) -> int:
        return self._source.num_examples

    def take(self) -> list[float]:
        """Return the stamps so far, and begin anew."""
        stamps, self.stamps = self.stamps, []
        return stamps

    def describe(self) -> dict[str, Any]:
        return self._source.describe()

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        self.stamps.append(time.perf_counter())
        return self._source.batch(unit, unit_size=unit_size, seed=seed)

    def augment(self, batch: DeviceBatch, key: Any) -> DeviceBatch:
        return self._source.augment(batch, key)

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        return self._source.prepare(batch)

    def test_batches(self, batch_size: int) -> Iterator[HostBatch]:
        return self._source.test_batches(batch_size)
