"""The tally task's source: the batch of unit `u` is the number `u`, so parameters can count applied units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.source import DeviceBatch, HostBatch, content_hash


class TallySource:
    """Serve unit numbers: the field `unit`, int32, shape (1,).

    Args:
      num_units: numbers that may be asked for, 0 ... num_units-1; above the workload, since a dropped unit is
        replaced by a fresh one.
    """

    def __init__(self, num_units: int) -> None:
        self.num_examples = num_units

    def describe(self) -> dict[str, Any]:
        """Return the source's identity; see `UnitSource.describe`."""
        content = content_hash(f"tally {self.num_examples}")
        return {"name": "tally", "num_examples": self.num_examples, "hash": content}

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        """Return the unit's number, whatever the seed; see `UnitSource.batch`.

        Raises:
          DataError: another unit size than 1, or a number beyond the end (an index that JAX would clamp).
        """
        del seed
        if unit_size != 1:
            raise DataError(f"the tally counts units of 1 example, not of {unit_size}: set unit_size=1.")
        if not 0 <= unit < self.num_examples:
            raise DataError(
                f"the tally has entries for units below {self.num_examples}, unit {unit} was asked for: "
                "more units were dropped than applied; raise the tally's num_units."
            )
        return {"unit": np.array([unit], np.int32)}

    def augment(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        """Return the batch as it is; see `UnitSource.augment`."""
        del key
        return batch

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch as it is; see `UnitSource.prepare`."""
        return batch

    def test_batches(self, batch_size: int) -> Iterator[HostBatch]:
        """Yield nothing: a tally has no held-out set."""
        del batch_size
        return iter(())
