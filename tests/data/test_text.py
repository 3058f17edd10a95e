import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import TextSource


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(101)))
    return path


def test_windows_predict_every_byte_but_the_first_once_a_pass(path):
    source = TextSource(path, 10, test_share=0.2)
    train = source.batch(0, unit_size=source.num_examples, seed=0)["tokens"]
    test = np.concatenate([b["tokens"] for b in source.test_batches(3)])
    assert train.shape == (8, 11)
    assert sorted(train[:, 1:].reshape(-1)) == list(range(1, 81))
    assert test[:, 1:].reshape(-1).tolist() == list(range(81, 101))


def test_the_first_unit_is_the_golden_one(path):
    first = TextSource(path, 10).batch(0, unit_size=4, seed=0)["tokens"][:, 0]
    assert first.tolist() == [0, 80, 30, 70]


def test_bytes_decode_to_token_numbers(path):
    source = TextSource(path, 10)
    tokens = source.prepare({"tokens": jnp.asarray([[0, 255]], jnp.uint8)})["tokens"]
    assert tokens.dtype == jnp.int32
    assert tokens.tolist() == [[0, 255]]


def test_another_text_has_another_hash(path, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(bytes(range(1, 102)))
    found = TextSource(path, 10).describe()["hash"]
    assert TextSource(other, 10).describe()["hash"] != found
    with pytest.raises(DataError, match=f"other.txt .* expected {found}"):
        TextSource(other, 10, expected_hash=found)


def test_a_file_too_short_for_two_windows_is_refused(path):
    with pytest.raises(DataError, match=r"text\.txt holds 101 bytes, two windows of 51 need 103"):
        TextSource(path, 51)


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt cannot be read \(No such file"):
        TextSource(tmp_path / "none.txt")


@pytest.mark.parametrize(("length", "share"), [(0, 0.1), (10, 0.0), (10, 1.0)])
def test_windows_that_cannot_be_cut_are_refused(path, length, share):
    with pytest.raises(DataError, match="cannot be cut"):
        TextSource(path, length, test_share=share)
