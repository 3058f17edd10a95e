"""Units of any data set that has a length and gives an example for an index: Grain, Hugging Face, PyTorch, memory maps.

>>> class Squares:
...     def __len__(self):
...         return 100
...     def __getitem__(self, index):
...         return {"x": np.float32(index), "y": np.float32(index**2)}
>>> source = IndexedSource(Squares(), fingerprint="squares-1")
>>> batch = source.batch(0, unit_size=4, seed=0)
>>> bool((batch["x"] ** 2 == batch["y"]).all()), batch["x"].dtype, batch["x"].shape
(True, dtype('float32'), (4,))
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from hybridsync.core.errors import DataError
from hybridsync.data.source import DeviceBatch, HostBatch, content_hash, unit_indices

FINGERPRINT_EXAMPLES = 8
"""Examples that identify a data set without a fingerprint of its own."""


class IndexedSource:
    """Serve units from a data set with `len()` and `[index]`; a subclass overrides `prepare` and `augment`.

    Several examples are read in one call where the data set has `__getitems__(indices)`, as Hugging Face's, PyTorch's
    and ArrayRecord's have. Each worker has its own copy of the data set's object where workers are processes.

    Args:
      train: training examples. An example is a dictionary, or a sequence whose fields `fields` names.
      test: held-out examples of the same form; None when there are none.
      fields: {name in the batch: key or position in an example}; a sequence names the positions of an example in
        order. None takes each key of a dictionary.
      collate: the examples' arrays of one field -> one array with the examples on its first axis.
      name: name of the data set in checkpoints and messages; None takes its type's.
      threads: threads that read the examples of a unit, each an equal part, while the unit before it is computed. 0
        reads them when they are needed, in the worker's own thread.
      fingerprint: identity of the data, which a resume compares. Empty: the data set's own, as Hugging Face's has, or
        else a hash over eight examples of each split, so a change of others is not seen.

    Raises:
      DataError: `threads` is below 0; or a data set without `len()` and `[index]`, without examples, without an end,
        with a Grain `batch()` step, or whose examples lack a field.
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        *,
        fields: Mapping[str, Any] | Sequence[str] | None = None,
        collate: Callable[[list[np.ndarray]], np.ndarray] = np.stack,
        name: str | None = None,
        fingerprint: str = "",
        threads: int = 1,
    ) -> None:
        if threads < 0:
            raise DataError(f"threads is {threads}; give 0 or more.")
        self.name = name or type(train).__name__
        self.num_examples = _num_examples(self.name, "training", train)
        self.num_test_examples = 0 if test is None else _num_examples(self.name, "test", test)
        self.threads = threads
        self._train, self._test = train, test
        self._collate, self._fingerprint = collate, fingerprint
        first = self._read(train, [0])[0]
        self._fields = _named_fields(self.name, first, fields)
        if test is not None and not isinstance(found := self._read(test, [0])[0], type(first)):
            raise DataError(
                f"{self.name}: a test example is a {type(found).__name__}, a training example a "
                f"{type(first).__name__}. Give both the same form."
            )

    def describe(self) -> dict[str, Any]:
        """Return the data set's identity; see `UnitSource.describe`."""
        return {"name": self.name, "num_examples": self.num_examples, "hash": self.content_hash}

    @functools.cached_property
    def content_hash(self) -> str:
        """The fingerprint, or what stands for it; see the class."""
        splits = [split for split in (self._train, self._test) if split is not None]
        own = [getattr(split, "_fingerprint", None) for split in splits]
        if self._fingerprint:
            return self._fingerprint
        if all(own):
            return content_hash(*map(str, own))
        parts: list[np.ndarray | str] = []
        for split in splits:
            places = np.linspace(0, len(split) - 1, min(FINGERPRINT_EXAMPLES, len(split))).astype(int)
            batch = self._batch(split, places.tolist())
            parts += [str(len(split)), *(part for field in sorted(batch) for part in (field, batch[field]))]
        return content_hash(*parts)

    def batch(self, unit: int, *, unit_size: int, seed: int) -> HostBatch:
        """Return the examples of `unit`; see `UnitSource.batch`."""
        indices = unit_indices(self.num_examples, unit, unit_size=unit_size, seed=seed)
        return self._batch(self._train, indices.tolist())

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
            yield self._batch(self._test, list(range(start, min(start + batch_size, self.num_test_examples))))

    def _read(self, split: Any, indices: list[int]) -> Sequence[Any]:
        if self.threads < 2 or len(indices) < 2:
            return _examples(split, indices)
        parts = [part.tolist() for part in np.array_split(indices, min(self.threads, len(indices)))]
        # Made for each unit, which costs some .1 ms a thread: nobody says when the source is used for the last time.
        with ThreadPoolExecutor(len(parts), thread_name_prefix="read") as pool:
            return [example for part in pool.map(functools.partial(_examples, split), parts) for example in part]

    def _batch(self, split: Any, indices: list[int]) -> HostBatch:
        examples = self._read(split, indices)
        return {field: self._column(field, key, examples, indices) for field, key in self._fields.items()}

    def _column(self, field: str, key: Any, examples: Sequence[Any], indices: list[int]) -> np.ndarray:
        try:
            values = [np.asarray(example[key]) for example in examples]
        except (KeyError, IndexError, TypeError) as error:
            raise DataError(
                f"{self.name}: field {field!r} is missing in one of the examples {indices}: there is no {key!r} "
                f"({type(error).__name__}). Correct `fields`, or leave such examples out."
            ) from error
        try:
            column = np.asarray(self._collate(values))
        except ValueError as error:
            shapes = sorted({value.shape for value in values})
            raise DataError(
                f"{self.name}: field {field!r} has examples of the shapes {shapes}, which do not make one array "
                f"({error}). Give them one shape, or pass `collate`, which pads them."
            ) from error
        if column.dtype.kind in "OSUM":
            raise DataError(
                f"{self.name}: field {field!r} is {values[0].dtype} ({values[0]!r}), which is no number. "
                "Leave it out by `fields`, or map it to numbers."
            )
        return _as_jax_has_it(self.name, field, column)


def _examples(split: Any, indices: list[int]) -> Sequence[Any]:
    # A data set reads a whole batch in far less time than its examples one by one: 2 to 100 times.
    read = getattr(split, "__getitems__", None)
    return read(indices) if read is not None else [split[index] for index in indices]


def _num_examples(name: str, split: str, examples: Any) -> int:
    kind = type(examples).__name__
    if isinstance(examples, Mapping) and 0 not in examples:  # such as Hugging Face's DatasetDict
        keys = [repr(key) for key in examples]
        raise DataError(
            f"{name}: the {split} split, of type {kind}, has the keys {', '.join(keys)} and no [0]. Pass one split, "
            f"such as ds[{(keys or ['...'])[0]}]; for a dictionary of arrays there is ArraySource."
        )
    if any(each.__name__ == "IterDataset" for each in type(examples).__mro__):
        raise DataError(
            f"{name}: the {split} split is Grain's {kind}, which has no [index]. Pass the MapDataset before "
            ".to_iter_dataset()."
        )
    if not hasattr(examples, "__len__") or not (hasattr(examples, "__getitem__") or hasattr(examples, "__getitems__")):
        raise DataError(
            f"{name}: the {split} split, of type {kind}, has no len() and [index]. A unit is a pure "
            "function of (seed, unit), so a stream has to be stored, or written as a unit source of its own."
        )
    if len(examples) == 0:
        raise DataError(f"{name}: the {split} split holds no examples. Give at least one.")
    if len(examples) >= sys.maxsize:  # what Grain's repeat() gives
        raise DataError(
            f"{name}: the {split} split repeats without end, its len() is {len(examples)}. Leave repeat() out: a run "
            "passes over the data as often as its workload asks for."
        )
    if _has_step(examples, "BatchMapDataset"):
        raise DataError(
            f"{name}: the {split} split has a Grain batch() step, and each element would count as one example. Leave "
            "batch() out: a run makes batches of its `unit_size`."
        )
    return len(examples)


def _has_step(examples: Any, step: str) -> bool:
    """Return whether a Grain data set has a step of this class, at its end or before."""
    return type(examples).__name__ == step or any(_has_step(each, step) for each in getattr(examples, "_parents", ()))


def _named_fields(name: str, example: Any, fields: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    """Return {name in the batch: key or position in an example}."""
    keys = list(example) if isinstance(example, Mapping) else None
    if fields is None and keys is not None:
        return {str(key): key for key in keys}
    if fields is None or isinstance(fields, str):
        raise DataError(
            f"{name}: an example is a {type(example).__name__}, and `fields` is {fields!r}. Name its parts, such as "
            "fields=('image', 'label')."
        )
    if isinstance(fields, Mapping):
        named = dict(fields)
    else:
        named = {field: field for field in fields} if keys is not None else {f: i for i, f in enumerate(fields)}
    if keys is not None and (missing := [key for key in named.values() if key not in keys]):
        raise DataError(f"{name}: an example has the keys {keys}, not {missing}. Correct `fields`.")
    return named


def _as_jax_has_it(name: str, field: str, column: np.ndarray) -> np.ndarray:
    """Return the numbers in the type that JAX gives them (int64 -> int32), which must not change an integer."""
    dtype = jax.dtypes.canonicalize_dtype(column.dtype)
    if dtype == column.dtype:
        return column
    narrow = column.astype(dtype)
    if column.dtype.kind in "iu" and not np.array_equal(narrow, column):
        raise DataError(
            f"{name}: field {field!r} has {column.dtype} numbers beyond {dtype}: {column.min()} to {column.max()}. "
            "Map them to smaller ones, or set jax_enable_x64."
        )
    return narrow
