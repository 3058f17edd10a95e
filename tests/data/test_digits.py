import gzip
import time

import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import DigitsSource
from hybridsync.data.digits import _bundled_path

HASH = "aea7a982ab18c60ecfb0ab6e7d125dae3b878a4fa9660ec4e235a5655a1ccdfa"
FIRST_LABELS = [9, 0, 3, 7, 5, 0, 5, 0]


@pytest.fixture(scope="module")
def source():
    return DigitsSource()


def test_the_split_is_fixed(source):
    assert source.describe() == {"name": "digits", "num_examples": 1437, "hash": HASH}
    assert source.num_test_examples == 360


def test_the_first_unit_is_the_golden_one(source):
    assert source.batch(0, unit_size=8, seed=0)["label"].tolist() == FIRST_LABELS


def test_it_is_scikit_learns_own_table(source):
    from sklearn.datasets import load_digits

    images = np.concatenate([source.batch(0, unit_size=1437, seed=0)["image"], next(source.test_batches(360))["image"]])
    table, _ = load_digits(return_X_y=True)
    assert sorted(map(bytes, images.reshape(-1, 64))) == sorted(map(bytes, np.asarray(table).astype(np.uint8)))


def test_decoding_scales_to_one(source):
    batch = source.prepare({k: jnp.asarray(v) for k, v in source.batch(0, unit_size=64, seed=0).items()})
    assert batch["image"].shape == (64, 8, 8, 1)
    assert batch["image"].dtype == jnp.float32
    assert float(batch["image"].max()) == 1.0
    assert batch["label"].dtype == jnp.int32


def test_a_cached_passs_gather_is_far_below_a_tenth_of_a_millisecond(source):
    source.batch(0, unit_size=32, seed=0)
    fastest = 1.0
    for unit in range(40):
        start = time.perf_counter()
        source.batch(unit, unit_size=32, seed=0)
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 100e-6


def damaged(path, change):
    text = gzip.decompress(_bundled_path().read_bytes()).decode()
    path.write_bytes(gzip.compress(change(text).encode()))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[text.index("\n") + 1 :], r"shape \(1796, 65\), expected \(1797, 65\)"),
        (lambda text: text.replace("13", "12", 1), "sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}"),
        (lambda text: text.replace("13", "x", 1), "not the digits' table"),
    ],
)
def test_a_damaged_table_is_refused_by_name(tmp_path, change, message):
    path = damaged(tmp_path / "digits.csv.gz", change)
    with pytest.raises(DataError, match=message) as caught:
        DigitsSource(path)
    assert str(path) in str(caught.value)
    assert "Install scikit-learn again" in str(caught.value)


def test_a_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(_bundled_path().read_bytes()[:1000])
    with pytest.raises(DataError, match="not the digits' table"):
        DigitsSource(path)


def test_an_absent_table_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        DigitsSource(tmp_path / "none.csv.gz")
