"""Declares what every unit source offers, and the order in which stored examples are met.

Training reads an endless stream: pass after pass over the examples, each pass in its own order. Unit `u` of
`B` examples is the positions `u*B ... u*B+B-1` of that stream, so every unit is full, also the one that
crosses from one pass into the next (repeat comes before batch).

The order of a pass sorts the examples by the raw output of NumPy's Philox counter, whose bit stream is fixed
by NumPy's compatibility policy (that of `Generator.permutation` is not): the same on every machine, process
and version. grain's `index_shuffle`, made for random access into data too large to permute, cycles through
at least 2**16 indices: 32 ms a pass for 1,437 examples and 170 ms for 50,000, against 0.14 and 4.4 here.

    >>> unit_indices(5, 0, unit_size=5, seed=0).tolist()
    [0, 3, 1, 2, 4]
    >>> unit_indices(5, 1, unit_size=3, seed=0).tolist()  # two of the first pass, one of the second
    [2, 4, 3]
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from hybridsync.core.errors import DataError

HostBatch = dict[str, np.ndarray]
"""Raw examples in host memory, every array with the examples on its first axis."""

DeviceBatch = dict[str, jax.Array]
"""The same on a device, inside or outside a jitted function."""


class UnitSource(Protocol):
    """Examples as units: raw bytes on the host, decoded and augmented inside the jitted gradient."""

    @property
    def num_examples(self) -> int:
        """Training examples in one pass."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return {"name", "num_examples", "hash"} as JSON values; the hash is over the examples' bytes.

        A checkpoint stores it, and a resume with other data is refused by it.
        """
        ...

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        """Return the `unit_size` examples of `unit`, raw; a pure function of its arguments."""
        ...

    def augment(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        """Decode a raw batch and vary it at random by `key`; pure and traceable."""
        ...

    def prepare(self, batch: DeviceBatch) -> DeviceBatch:
        """Decode a raw batch without randomness, for evaluation; pure and traceable."""
        ...

    def test_batches(self, batch_size: int) -> Iterator[HostBatch]:
        """Yield the held-out examples once, raw, in a fixed order; the last batch may be short."""
        ...


@functools.lru_cache(maxsize=8)
def pass_order(num_examples: int, seed: int, pass_index: int) -> np.ndarray:
    """Return the order in which one pass meets the examples: a read-only permutation, int64.

    The newest few are kept; workers that share a process share them.
    """
    bits = np.random.Philox(np.random.SeedSequence((seed, pass_index))).random_raw(num_examples)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order


def unit_indices(num_examples: int, unit: int, *, unit_size: int, seed: int) -> np.ndarray:
    """Return which examples make up `unit`, in order.

    Args:
      num_examples: examples in one pass.
      unit: the unit's number, from 0, without an upper end.
      unit_size: examples in every unit; may exceed `num_examples`.
      seed: the run's seed, not negative.

    Returns:
      int64 indices, shape (unit_size,), each in [0, num_examples).
    """
    pass_index, start = divmod(unit * unit_size, num_examples)
    if start + unit_size <= num_examples:
        return pass_order(num_examples, seed, pass_index)[start : start + unit_size]
    parts = []
    missing = unit_size
    while missing:
        part = pass_order(num_examples, seed, pass_index)[start : start + missing]
        parts.append(part)
        missing -= len(part)
        pass_index, start = pass_index + 1, 0
    return np.concatenate(parts)


def content_hash(*parts: np.ndarray | str) -> str:
    """Return the sha256, in hex, of the parts' bytes, shapes and dtypes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
        else:
            digest.update(json.dumps([part.dtype.str, list(part.shape)]).encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def require_hash(found: str, expected: str, *, what: str, remedy: str) -> None:
    """Refuse data whose content hash is not the expected one; an empty `expected` accepts any.

    Raises:
      DataError: the two hashes differ; names `what`, both of them and the remedy.
    """
    if expected and found != expected:
        raise DataError(f"{what} holds other bytes: sha256 is {found}, expected {expected}. {remedy}")
