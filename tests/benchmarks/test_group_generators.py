"""Buffer, division and filter each make up for conflicts of the naive generator, and a slow worker stalls no node."""

from __future__ import annotations

from benchmarks.group_generators import FACTOR, PLANS, units_per_sec
from hybridsync.lab.simulator.cluster import Slow


def rate(what: str, *slow: Slow) -> float:
    return units_per_sec(PLANS[what], *slow, workload=1500)


def test_every_part_of_the_generator_makes_up_for_conflicts_of_the_naive_one() -> None:
    naive, buffered, divided = (rate(what) for what in ("naive", "and the buffer", "and division"))
    assert 1.2 * naive < buffered and 1.4 * buffered < divided
    slow = Slow(0, factor=FACTOR)
    assert 1.7 * rate("naive", slow) < rate("and division", slow) < rate("and the filter", slow)
    assert 1.2 * rate("naive", slow) < rate("the filter alone", slow)


def test_two_phases_with_the_filter_are_not_stalled_by_a_slow_worker() -> None:
    slow = Slow(0, factor=FACTOR)
    assert 3.0 * rate("static", slow) < rate("inter", slow)
    assert 1.4 * rate("inter without the filter", slow) < rate("inter", slow)


def test_a_partner_that_computes_meanwhile_is_no_wait() -> None:
    assert 1.8 * rate("AD-PSGD with one thread") < rate("AD-PSGD")
    slow = Slow(0, factor=FACTOR)
    assert 2.5 * rate("AD-PSGD with one thread", slow) < rate("AD-PSGD", slow)
