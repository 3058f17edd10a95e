import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import ArraySource


def make(test=None):
    return ArraySource("points", {"image": np.arange(10.0), "label": np.arange(10)}, test)


def test_fields_of_a_unit_belong_to_the_same_examples():
    batch = make().batch(3, unit_size=4, seed=1)
    assert batch["image"].tolist() == batch["label"].tolist()
    assert len(batch["label"]) == 4


def test_test_batches_cover_the_held_out_examples_in_order_and_end_short():
    batches = list(make({"image": np.arange(5.0), "label": np.arange(5)}).test_batches(2))
    assert [b["label"].tolist() for b in batches] == [[0, 1], [2, 3], [4]]


def test_without_held_out_examples_there_are_no_test_batches():
    assert list(make().test_batches(2)) == []


def test_augmentation_is_the_decoding_unless_overridden():
    batch = {"image": jnp.ones(2)}
    assert make().augment(batch, jax.random.key(0)) is batch


def test_describe_changes_with_the_held_out_bytes():
    one = make({"image": np.arange(5.0), "label": np.arange(5)}).describe()
    two = make({"image": np.arange(5.0), "label": np.arange(5)[::-1]}).describe()
    assert one["num_examples"] == two["num_examples"] == 10
    assert one["hash"] != two["hash"]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({}, None, "no examples"),
        ({"image": np.zeros(0)}, None, "no examples"),
        (
            {"image": np.zeros(3), "label": np.zeros(2)},
            None,
            r"different lengths, \{'image': 3, 'label': 2\}",
        ),
        ({"image": np.zeros(3)}, {"label": np.zeros(3)}, r"\['label'\], training examples \['image'\]"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(train, test, message):
    with pytest.raises(DataError, match=message):
        ArraySource("points", train, test)
