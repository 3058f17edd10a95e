"""Labelled images of any size and number, computed from (seed, index) when asked for; nothing is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.source import DeviceBatch, HostBatch, content_hash

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


class SyntheticSource:
    """Serve images that can be learned: half the pattern of their class, half noise.

    Example `i` is a pure function of (`data_seed`, i): passes repeat the same examples. Since they are
    independent draws already, a pass meets them in their own order and no permutation is kept. The held-out
    examples carry the numbers from `num_examples` on.

    Fields: `image` (*shape), raw uint8 and decoded float32 about -1..1; `label`.

    Args:
      num_examples: examples in one pass; costs no memory.
      shape: shape of one image, for instance (32, 32, 3).
      num_classes: labels, at most 256.
      num_test: held-out examples.
      data_seed: random seed that selects the data set; separate from the run's seed.

    Raises:
      DataError: a number that is not positive, or too many classes.
    """

    def __init__(
        self,
        num_examples: int = 1_000_000,
        shape: tuple[int, ...] = (32, 32, 3),
        num_classes: int = 10,
        *,
        num_test: int = 1_000,
        data_seed: int = 0,
    ) -> None:
        sizes = (num_examples, math.prod(shape), num_classes, num_test + 1, data_seed + 1)
        if min(sizes) < 1 or num_classes > 256:
            raise DataError(
                f"cannot make {num_examples} examples of shape {shape} in {num_classes} classes, {num_test} "
                f"held out, seed {data_seed}: sizes must be positive, num_test and seed not negative, "
                "classes at most 256."
            )
        self.num_examples = num_examples
        self.num_test_examples = num_test
        self._shape = tuple(shape)
        self._num_classes = num_classes
        self._data_seed = data_seed
        self._num_words = -(-math.prod(shape) // 8)
        key = np.random.SeedSequence(data_seed).generate_state(2, np.uint64)
        self._example_key, pattern_key = np.uint64(key[0]), np.uint64(key[1])
        self._patterns = self._noise(np.arange(num_classes), pattern_key) >> 1

    def describe(self) -> dict[str, Any]:
        """Return the source's identity; see `UnitSource.describe`. The hash covers its first 16 examples."""
        first = self._examples(np.arange(16))
        sizes = (self.num_examples, self._shape, self._num_classes, self.num_test_examples, self._data_seed)
        content = content_hash(repr(sizes), first["image"], first["label"])
        return {"name": "synthetic", "num_examples": self.num_examples, "hash": content}

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        """Return the examples of `unit`, whatever the run's seed; see `UnitSource.batch`."""
        del seed
        return self._examples(np.arange(unit * unit_size, (unit + 1) * unit_size) % self.num_examples)

    def augment(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        """Decode the batch, nothing random; see `UnitSource.augment`."""
        del key
        return self.prepare(batch)

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Centre and scale the bytes; see `UnitSource.prepare`."""
        image = (batch["image"].astype(jnp.float32) - 127.5) / 127.5
        return {"image": image, "label": batch["label"].astype(jnp.int32)}

    def test_batches(self, batch_size: int) -> Iterator[HostBatch]:
        """Yield the held-out examples in order; see `UnitSource.test_batches`."""
        end = self.num_examples + self.num_test_examples
        for start in range(self.num_examples, end, batch_size):
            yield self._examples(np.arange(start, min(start + batch_size, end)))

    def _examples(self, indices: np.ndarray) -> HostBatch:
        labels = _mix(indices.astype(np.uint64) ^ self._example_key) % np.uint64(self._num_classes)
        labels = labels.astype(np.uint8)
        image = (self._noise(indices, self._example_key) >> 1) + self._patterns[labels]
        return {"image": image, "label": labels}

    def _noise(self, indices: np.ndarray, key: np.uint64) -> np.ndarray:
        """Return an image of uniform bytes for each index: word `w` of image `i` is a counter, mixed."""
        first = indices.astype(np.uint64)[:, None] * np.uint64(self._num_words)
        words = _mix((first + np.arange(self._num_words, dtype=np.uint64)) * _GOLDEN + key)
        used = words.astype("<u8", copy=False).view(np.uint8)[:, : math.prod(self._shape)]
        return used.reshape(len(indices), *self._shape)


def _mix(words: np.ndarray) -> np.ndarray:
    """Return the finaliser of splitmix64 over uint64 words (Steele et al., OOPSLA 2014, figure 15)."""
    words = (words ^ (words >> np.uint64(30))) * _MULTIPLY_1
    words = (words ^ (words >> np.uint64(27))) * _MULTIPLY_2
    return words ^ (words >> np.uint64(31))
