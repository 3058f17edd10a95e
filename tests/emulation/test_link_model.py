"""When transfers over shared links end."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.config.injected_stragglers import Slowness
from hybridsync.emulation.link_model import Transfer, Wire

TRANSFERS = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1000)), min_size=1, max_size=20)


def arrivals(*transfers: Transfer) -> list[float]:
    return [round(transfer.arrives, 9) for transfer in transfers]


def test_transfers_that_begin_together_share_the_port_fairly_and_end_together() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    assert arrivals(*[wire.begin_push(0.0, 50) for _ in range(4)]) == [2.0] * 4


def test_one_after_another_each_has_the_whole_port() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    assert arrivals(*[wire.begin_push(at / 2, 50) for at in range(4)]) == [0.5, 1.0, 1.5, 2.0]


def test_who_comes_later_makes_those_under_way_later_and_a_small_one_ends_before_them() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    large = wire.begin_push(0.0, 100)
    assert arrivals(large) == [1.0]
    small = wire.begin_push(0.5, 10)
    assert arrivals(large, small) == [1.1, 0.7], "10 of each until 0.7, and the other 40 alone"
    late = wire.begin_push(0.9, 100)
    assert arrivals(large, small, late) == [1.3, 0.7, 2.1]


def test_the_two_directions_of_a_port_do_not_wait_for_each_other() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    assert arrivals(wire.begin_push(0.0, 100), wire.begin_pull(0.0, 100)) == [1.0, 1.0]


def test_a_workers_link_keeps_nobody_else_waiting() -> None:
    wire = Wire(link_bytes_per_sec=100.0)
    assert arrivals(wire.begin_push(0.0, 50), wire.begin_push(0.0, 50), wire.begin_pull(0.5, 50)) == [0.5, 0.5, 1.0]


def test_a_share_of_the_port_is_never_more_than_a_link_carries() -> None:
    wire = Wire(link_bytes_per_sec=100.0, port_bytes_per_sec=200.0)
    two = wire.begin_push(0.0, 100), wire.begin_push(0.0, 100)
    assert arrivals(*two) == [1.0, 1.0]
    wire.begin_push(0.0, 100)
    third = wire.begin_push(0.0, 100)
    assert arrivals(*two, third) == [2.0] * 3


def test_latency_comes_on_top_and_takes_no_port() -> None:
    wire = Wire(port_bytes_per_sec=100.0, latency_secs=0.25)
    assert arrivals(wire.begin_pull(0.0, 100), wire.begin_pull(1.0, 100)) == [1.25, 2.25]


def test_a_message_without_bytes_waits_for_no_transfer() -> None:
    wire = Wire(port_bytes_per_sec=1.0, latency_secs=0.5)
    wire.begin_push(0.0, 1000)
    wire.begin_pull(0.0, 1000)
    assert arrivals(wire.begin_push(1.0, 0), wire.begin_pull(1.0, 0)) == [1.0, 1.0]


@pytest.mark.parametrize(("incast", "secs"), [(0.0, 4.0), (0.5, 10.0)])
def test_incast_costs_the_port_goodput_by_the_number_of_transfers(incast: float, secs: float) -> None:
    wire = Wire(port_bytes_per_sec=100.0, incast=incast)
    assert arrivals(wire.begin_push(0.0, 100)) == [1.0], "alone it costs nothing"
    begun = [wire.begin_pull(0.0, 100) for _ in range(4)]
    assert arrivals(*begun) == [secs] * 4


def test_a_worker_with_a_slow_link_arrives_later_and_holds_the_port_no_longer() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    slow = wire.begin_push(0.0, 100, Slowness(rpc_secs=0.5, bytes_per_sec=10.0))
    assert arrivals(slow, wire.begin_push(0.0, 100)) == [10.5, 2.0]


@given(TRANSFERS)
def test_a_port_carries_just_its_speed_whenever_anybody_waits(transfers: list[tuple[float, int]]) -> None:
    transfers = sorted(transfers)
    wire, free_at = Wire(port_bytes_per_sec=100.0), 0.0
    begun = [wire.begin_push(*transfer) for transfer in transfers]
    for begins, num_bytes in transfers:
        free_at = max(begins, free_at) + num_bytes / 100.0
    assert max(transfer.arrives for transfer in begun) == pytest.approx(free_at)
    for transfer, (begins, num_bytes) in zip(begun, transfers, strict=True):
        assert transfer.arrives >= begins + num_bytes / 100.0 - 1e-9


@given(TRANSFERS, st.sampled_from((0.0, 0.1)), st.sampled_from((math.inf, 40.0)))
def test_whoever_waits_until_an_arrival_finds_it_past_and_one_never_comes_sooner_than_was_said(
    transfers: list[tuple[float, int]], incast: float, link: float
) -> None:
    wire = Wire(link, 100.0, incast=incast)
    said: list[tuple[Transfer, float]] = []
    for transfer in sorted(transfers):
        said = [(known, known.arrives) for known, _ in said]
        said.append((wire.begin_push(*transfer), 0.0))
        for known, arrives in said:
            assert known.arrives >= arrives - 1e-9
            assert known.arrives == arrives or arrives > transfer[0] or not arrives, "what has arrived moves no more"
