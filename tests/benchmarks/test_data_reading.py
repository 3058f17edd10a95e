"""The benchmark of reading: what it times are the reads, the worker's waits for them, and whole units."""

from __future__ import annotations

from benchmarks.data_reading import Examples, Rows, timed_waits, times_of
from hybridsync.worker.prefetch import Prefetch

UNITS = 20


def test_a_read_is_waited_for_where_it_is_not_made_ahead() -> None:
    needed, ahead = times_of(0.02, 0, UNITS), times_of(0.0, 1, UNITS)
    assert min(needed.unit, needed.read) >= 0.02 and needed.wait == needed.read
    assert min(ahead) > 0


def test_waits_are_timed_only_inside_the_block() -> None:
    take = Prefetch.take
    with timed_waits() as waits:
        Prefetch(lambda unit: {}).take(3, lambda: None)
    assert len(waits) == 1 and Prefetch.take is take


def test_rows_hide_the_call_that_reads_several() -> None:
    examples = Examples(0.0)
    rows = Rows(examples)
    assert not hasattr(rows, "__getitems__") and len(rows) == len(examples)
    assert rows[3]["label"] == examples.__getitems__([3])[0]["label"] and len(examples.read) == 1
