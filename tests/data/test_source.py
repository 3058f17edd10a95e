import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridsync.core.errors import DataError
from hybridsync.data.source import content_hash, pass_order, require_hash, unit_indices

# First examples of seed 0: a change here re-orders every user's run.
FIRST = {
    "digits": (1437, 8, [1153, 652, 293, 617, 1101, 707, 1050, 693]),
    "cifar10": (50_000, 8, [18634, 19031, 31749, 40765, 3600, 43263, 24791, 13393]),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_units_indices_are_the_golden_ones(name):
    num_examples, unit_size, golden = FIRST[name]
    assert unit_indices(num_examples, 0, unit_size=unit_size, seed=0).tolist() == golden


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_units_in_order_meet_every_example_once_a_pass(num_examples, unit_size, seed, first_pass):
    passes = 3
    num_units = -(-num_examples * (first_pass + passes) // unit_size)
    stream = np.concatenate([unit_indices(num_examples, u, unit_size=unit_size, seed=seed) for u in range(num_units)])
    assert len(stream) == num_units * unit_size
    for index in range(first_pass, first_pass + passes):
        one_pass = stream[index * num_examples : (index + 1) * num_examples]
        assert sorted(one_pass.tolist()) == list(range(num_examples))


def test_every_seed_and_pass_has_its_own_order():
    orders = {tuple(pass_order(100, seed, index)) for seed in range(4) for index in range(4)}
    assert len(orders) == 16


def test_an_order_cannot_be_changed_by_who_reads_it():
    with pytest.raises(ValueError, match="read-only"):
        pass_order(100, 0, 0)[0] = 1


def test_the_content_hash_covers_shape_dtype_and_bytes():
    plain = np.arange(6, dtype=np.uint8)
    other = [plain.reshape(2, 3), plain.astype(np.int16), plain[::-1], np.arange(7, dtype=np.uint8)]
    assert len({content_hash(x) for x in [plain, *other]}) == 5
    assert content_hash(np.repeat(plain, 2)[::2]) == content_hash(plain)


def test_a_wrong_hash_is_refused_with_both_and_the_remedy():
    require_hash("aa", "", what="file", remedy="Fetch it.")
    with pytest.raises(DataError, match=r"file .* aa, expected bb\. Fetch it\."):
        require_hash("aa", "bb", what="file", remedy="Fetch it.")
