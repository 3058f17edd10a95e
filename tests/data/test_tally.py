import pytest

from hybridsync.core.errors import DataError
from hybridsync.data import TallySource


def test_the_batch_of_a_unit_is_its_number():
    assert [TallySource(10).batch(u, unit_size=1, seed=4)["unit"].tolist() for u in (0, 9)] == [[0], [9]]


def test_a_unit_beyond_the_entries_is_refused_before_an_index_is_clamped():
    with pytest.raises(DataError, match="below 10, unit 10"):
        TallySource(10).batch(10, unit_size=1, seed=0)


def test_units_of_several_examples_are_refused():
    with pytest.raises(DataError, match="not of 4: set unit_size=1"):
        TallySource(10).batch(0, unit_size=4, seed=0)


def test_there_is_nothing_to_evaluate_on():
    assert list(TallySource(10).test_batches(5)) == []


def test_another_number_of_entries_is_another_source():
    assert TallySource(10).describe() != TallySource(12).describe()
