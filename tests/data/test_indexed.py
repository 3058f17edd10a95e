import sys
import threading

import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import ArraySource, IndexedSource

IMAGES = np.arange(40, dtype=np.float32).reshape(10, 4)
LABELS = np.arange(10)


class Rows:
    """Ten examples; `make` gives the form of each."""

    def __init__(self, make, length=10):
        self.make, self.length, self.calls = make, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.calls.append(index)
        return self.make(index)


class Batched(Rows):
    def __getitems__(self, indices):
        self.calls.append(indices)
        return [self.make(index) for index in indices]


def as_dict(index):
    return {"image": IMAGES[index], "label": int(LABELS[index])}


def as_other_names(index):
    return {"pixels": IMAGES[index], "y": index, "id": "a"}


def as_tuple(index):
    return IMAGES[index], LABELS[index]


@pytest.mark.parametrize(
    "source",
    [
        IndexedSource(Rows(as_dict)),
        IndexedSource(Batched(as_dict)),
        IndexedSource(Rows(as_tuple), fields=("image", "label")),
        IndexedSource(Rows(as_tuple), fields={"image": 0, "label": 1}),
        IndexedSource(
            Rows(lambda i: {"pixels": IMAGES[i], "y": i, "id": "a"}), fields={"image": "pixels", "label": "y"}
        ),
        IndexedSource(Rows(lambda i: {**as_dict(i), "text": "a"}), fields=("image", "label")),
    ],
    ids=["dicts", "batched", "tuples", "positions", "renamed", "chosen"],
)
def test_units_are_those_of_the_same_arrays_in_memory(source):
    arrays = ArraySource("arrays", {"image": IMAGES, "label": LABELS.astype(np.int32)})
    for unit in range(4):
        batch, expected = (each.batch(unit, unit_size=4, seed=3) for each in (source, arrays))
        assert {field: (array.dtype, array.tolist()) for field, array in batch.items()} == {
            field: (array.dtype, array.tolist()) for field, array in expected.items()
        }


def test_data_set_that_reads_batches_is_asked_once_a_unit():
    rows = Batched(as_dict)
    source = IndexedSource(rows, fingerprint="rows")
    rows.calls.clear()
    source.batch(0, unit_size=5, seed=0)
    assert [len(call) for call in rows.calls] == [5]


def test_test_batches_cover_the_held_out_examples_in_order_and_end_short():
    source = IndexedSource(Rows(as_dict), Rows(as_dict, length=5))
    assert [batch["label"].tolist() for batch in source.test_batches(2)] == [[0, 1], [2, 3], [4]]
    assert list(IndexedSource(Rows(as_dict)).test_batches(2)) == []


def test_collate_pads_examples_of_several_lengths():
    def pad(arrays):
        return np.stack([np.pad(array, (0, 9 - len(array))) for array in arrays])

    ragged = Rows(lambda index: {"tokens": np.arange(index)})
    assert IndexedSource(ragged, collate=pad).batch(0, unit_size=3, seed=0)["tokens"].shape == (3, 9)
    with pytest.raises(DataError, match=r"Rows: field 'tokens' has examples of the shapes .* pass `collate`"):
        IndexedSource(ragged, fingerprint="ragged").batch(0, unit_size=3, seed=0)


def test_identity_is_the_given_fingerprint_the_data_set_s_own_or_a_hash_over_examples():
    rows = Rows(as_dict)
    assert IndexedSource(rows, fingerprint="v2").describe() == {"name": "Rows", "num_examples": 10, "hash": "v2"}
    sampled = IndexedSource(rows, name="mine").describe()
    assert sampled["name"] == "mine"
    assert sampled == IndexedSource(Rows(as_dict), name="mine").describe()
    changed = Rows(lambda index: {**as_dict(index), "label": index + (index == 9)})
    assert sampled != IndexedSource(changed, name="mine").describe()
    one, two = Rows(as_dict), Rows(as_dict)
    vars(one)["_fingerprint"], vars(two)["_fingerprint"] = "a", "b"
    assert IndexedSource(one).describe() != IndexedSource(two).describe()


class IterDataset:
    """Called as Grain's."""


class MapIterDataset(IterDataset):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IndexedSource(iter([1])), r"the training split, of type list_iterator, has no len\(\) and \[index\]"),
        (
            lambda: IndexedSource({"train": Rows(as_dict), "test": Rows(as_dict)}),
            r"split, of type dict, has the keys 'train', 'test' and no \[0\]. Pass one split, such as ds\['train'\]",
        ),
        (
            lambda: IndexedSource(MapIterDataset()),
            r"is Grain's MapIterDataset, .* the MapDataset before .to_iter_dataset",
        ),
        (lambda: IndexedSource(Rows(as_dict, length=0)), "the training split holds no examples"),
        (lambda: IndexedSource(Rows(as_dict), Rows(as_dict, length=0)), "the test split holds no examples"),
        (lambda: IndexedSource(Rows(as_tuple)), r"an example is a tuple, and `fields` is None. .*fields=\('image'"),
        (lambda: IndexedSource(Rows(as_dict), fields={"x": "pixels"}), r"keys \['image', 'label'\], not \['pixels'\]"),
        (lambda: IndexedSource(Rows(as_dict), Rows(as_tuple)), "a test example is a tuple, a training example a dict"),
    ],
)
def test_data_sets_that_cannot_serve_units_are_refused_at_once(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda index: {"text": "cat"}, r"field 'text' is <U3 .* which is no number"),
        (lambda index: {"id": 2**40 + index}, "field 'id' has int64 numbers beyond int32"),
        (lambda index: {"x": 1} if index == 0 else {}, "field 'x' is missing in one of the examples"),
    ],
)
def test_examples_that_are_no_numbers_or_lack_a_field_are_refused_by_the_field_s_name(make, message):
    with pytest.raises(DataError, match=message):
        IndexedSource(Rows(make), fingerprint="x").batch(0, unit_size=4, seed=0)


def test_no_thread_is_left_once_a_unit_was_read():
    source = IndexedSource(Rows(as_dict), fingerprint="rows", threads=3)
    plain = IndexedSource(Rows(as_dict), fingerprint="rows", threads=0)
    before = threading.active_count()
    for unit in range(3):
        found, expected = (each.batch(unit, unit_size=6, seed=1) for each in (source, plain))
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert threading.active_count() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read")]


def test_examples_are_read_by_several_threads_at_a_time():
    together = threading.Barrier(3, timeout=120)

    def read(index):
        together.wait()
        return as_dict(index)

    source = IndexedSource(Rows(as_dict), fingerprint="rows", threads=3)
    source._train = Rows(read)
    assert sorted(source.batch(0, unit_size=3, seed=0)) == ["image", "label"]


class BatchMapDataset(Rows):
    """Called as Grain's; what follows on it has it among its parents."""


class MapMapDataset(Rows):
    def __init__(self, parent):
        super().__init__(as_dict)
        self._parents = [parent]


@pytest.mark.parametrize(
    "data", [BatchMapDataset(as_dict), MapMapDataset(MapMapDataset(BatchMapDataset(as_dict)))], ids=["last", "before"]
)
def test_grain_batches_are_refused_wherever_they_are_made(data):
    with pytest.raises(DataError, match=r"the training split has a Grain batch\(\) step.*unit_size"):
        IndexedSource(data)
    with pytest.raises(DataError, match="the test split has a Grain"):
        IndexedSource(Rows(as_dict), data)


def test_endless_data_set_is_refused():
    with pytest.raises(DataError, match=r"repeats without end.*Leave repeat\(\) out"):
        IndexedSource(Rows(as_dict, sys.maxsize))
