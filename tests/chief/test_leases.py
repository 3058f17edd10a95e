"""How much is handed out ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.chief.leases import MESH_SECS, WORKER_SECS, Rate, mesh_grant, worker_grant

rates = st.floats(0, 1e6)


@given(st.integers(1, 64), rates)
def test_a_mesh_gets_whole_steps_and_about_a_quarter_second_of_them(members, rate):
    grant = mesh_grant(members, rate)
    assert grant % members == 0
    assert grant >= members * (2 if not rate else 1)
    assert abs(grant - rate * MESH_SECS) <= 2 * members


@given(rates, st.integers(0, 100_000), st.integers(1, 64))
def test_a_workers_grant_shrinks_with_what_is_left_and_never_vanishes(rate, room, workers):
    grant = worker_grant(rate, room, workers)
    assert 1 <= grant <= max(1, rate * WORKER_SECS + 1)
    assert grant <= max(1, room // (2 * workers))


def test_the_last_units_go_out_one_by_one_so_that_workers_end_together():
    left, handed = 400, []
    while left:
        handed.append(min(left, worker_grant(1000.0, left, num_workers=4)))
        left -= handed[-1]
    assert handed[0] == 50
    assert handed == sorted(handed, reverse=True)
    assert handed[-8:] == [1] * 8


def test_a_slow_worker_ends_with_the_others_however_slow_it_is():
    rates, room, free_at = [20.0] * 7 + [4.0], 1600, [0.0] * 8
    while room:
        worker = min(range(8), key=free_at.__getitem__)
        grant = min(room, worker_grant(rates[worker], room, num_workers=8, all_per_sec=sum(rates)))
        room -= grant
        free_at[worker] += grant / rates[worker]
    assert max(free_at) < 1.05 * 1600 / sum(rates)


def test_a_rate_follows_a_change_within_seconds():
    rate = Rate()
    for tick in range(50):
        rate = rate.observe(tick * 10, tick * 0.1)
    assert rate.per_sec == pytest.approx(100)
    for tick in range(50):
        rate = rate.observe(500 + tick, 5 + tick * 0.1)
    assert rate.per_sec == pytest.approx(10, rel=0.1)


def test_a_rate_survives_a_clock_that_stands_and_a_count_that_restarts():
    rate = Rate().observe(0, 1.0).observe(10, 2.0)
    assert rate.observe(20, 2.0) == rate
    restarted = rate.observe(3, 3.0)
    assert restarted.per_sec == rate.per_sec
    assert restarted.observe(13, 4.0).per_sec == pytest.approx(10)
