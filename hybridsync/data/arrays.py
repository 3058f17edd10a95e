"""Examples held in memory: the base of the stored data sets, and the quickest way to train on one's own.

>>> points = np.arange(12, dtype=np.float32).reshape(6, 2)
>>> source = ArraySource("points", {"image": points, "label": np.arange(6, dtype=np.int32)})
>>> source.batch(0, unit_size=2, seed=0)["image"].shape
(2, 2)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.source import DeviceBatch, HostBatch, content_hash, unit_indices


class ArraySource:
    """Serve units from arrays in memory; a subclass overrides `prepare` and `augment` to decode and vary.

    Args:
      name: name of the data set in checkpoints and messages.
      train: training examples by field, examples on the first axis; not copied.
      test: held-out examples with the same fields; None when there are none.

    Raises:
      DataError: no examples, or fields or lengths that do not agree.
    """

    def __init__(
        self, name: str, train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.name = name
        self._train = dict(train)
        self._test = dict(test) if test is not None else {}
        self.num_examples = _common_length(name, "training", self._train)
        self.num_test_examples = 0
        if self._test:
            if self._test.keys() != self._train.keys():
                raise DataError(
                    f"{name}: test examples have the fields {sorted(self._test)}, training examples "
                    f"{sorted(self._train)}. Give both the same fields."
                )
            self.num_test_examples = _common_length(name, "test", self._test)

    @functools.cached_property
    def content_hash(self) -> str:
        """The sha256 over every field of both splits, in the fields' alphabetical order."""
        splits = (self._train, self._test)
        return content_hash(*(split[field] for split in splits for field in sorted(split)))

    def describe(self) -> dict[str, Any]:
        """Return the data set's identity; see `UnitSource.describe`."""
        return {"name": self.name, "num_examples": self.num_examples, "hash": self.content_hash}

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        """Return the examples of `unit`; see `UnitSource.batch`."""
        indices = unit_indices(self.num_examples, unit, unit_size=unit_size, seed=seed)
        return {field: array[indices] for field, array in self._train.items()}

    def augment(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        """Decode the batch, nothing random; see `UnitSource.augment`."""
        del key
        return self.prepare(batch)

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch as it is; see `UnitSource.prepare`."""
        return batch

    def test_batches(self, batch_size: int) -> Iterator[HostBatch]:
        """Yield the held-out examples in order; see `UnitSource.test_batches`."""
        for start in range(0, self.num_test_examples, batch_size):
            yield {field: array[start : start + batch_size] for field, array in self._test.items()}


def _common_length(name: str, split: str, arrays: Mapping[str, np.ndarray]) -> int:
    lengths = {field: len(array) for field, array in arrays.items()}
    if not lengths or min(lengths.values()) == 0:
        raise DataError(f"{name}: the {split} split holds no examples (fields: {lengths}). Give at least one.")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{name}: the {split} fields have different lengths, {lengths}. Give one row an example.")
    return next(iter(lengths.values()))
