import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import SyntheticSource


def make(**kwargs):
    return SyntheticSource(**{"num_examples": 1000, "shape": (5, 5, 1), **kwargs})


def test_the_first_unit_is_the_golden_one():
    batch = make().batch(0, unit_size=4, seed=0)
    assert batch["label"].tolist() == [9, 6, 6, 3]
    assert batch["image"][:, 0, 0, 0].tolist() == [149, 173, 109, 171]


def test_an_example_depends_on_its_number_alone():
    source = make()
    whole = source.batch(0, unit_size=12, seed=0)
    parts = [source.batch(unit, unit_size=4, seed=9) for unit in (2, 0, 1)]
    for field in whole:
        assert np.array_equal(np.concatenate([parts[i][field] for i in (1, 2, 0)]), whole[field])


def test_passes_repeat_and_units_cross_from_one_to_the_next():
    source = make(num_examples=10)
    crossing = source.batch(1, unit_size=6, seed=0)["image"]
    assert np.array_equal(crossing[4:], source.batch(0, unit_size=2, seed=0)["image"])


def test_a_source_of_any_size_holds_nothing():
    source = make(num_examples=10**12)
    far = source.batch(10**11, unit_size=8, seed=0)
    assert far["image"].shape == (8, 5, 5, 1)
    assert source.describe()["num_examples"] == 10**12


def test_held_out_examples_are_none_of_the_trained_ones():
    source = make(num_examples=50, num_test=30)
    train = {x.tobytes() for x in source.batch(0, unit_size=50, seed=0)["image"]}
    test = [x.tobytes() for b in source.test_batches(8) for x in b["image"]]
    assert len(train) == 50
    assert len(test) == 30
    assert not train.intersection(test)


def test_images_of_one_class_are_alike():
    batch = make(shape=(16, 16, 1)).batch(0, unit_size=200, seed=0)
    mean = np.stack([batch["image"][batch["label"] == c].mean(0) for c in range(10)])
    distance = np.abs(batch["image"][:, None].astype(float) - mean).mean((2, 3, 4))
    assert (distance.argmin(1) == batch["label"]).mean() > 0.95


@pytest.mark.parametrize("change", [{"data_seed": 1}, {"num_classes": 9}, {"shape": (5, 5, 2)}, {"num_examples": 999}])
def test_each_setting_changes_the_hash(change):
    assert make(**change).describe()["hash"] != make().describe()["hash"]


@pytest.mark.parametrize("change", [{"num_examples": 0}, {"shape": (5, 0)}, {"num_classes": 257}, {"num_test": -1}])
def test_impossible_sizes_are_refused(change):
    with pytest.raises(DataError, match="cannot make"):
        make(**change)
