"""When transfers over shared links end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.emulation.link_model import Wire

TRANSFERS = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 1000)), min_size=1, max_size=20)


def test_transfers_share_the_port_one_after_another_in_the_order_in_which_they_begin() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    assert [wire.push_ends(0.0, 50), wire.push_ends(0.1, 50), wire.push_ends(5.0, 50)] == [0.5, 1.0, 5.5]


def test_the_two_directions_of_a_port_do_not_wait_for_each_other() -> None:
    wire = Wire(port_bytes_per_sec=100.0)
    assert [wire.push_ends(0.0, 100), wire.pull_ends(0.0, 100), wire.pull_ends(0.0, 100)] == [1.0, 1.0, 2.0]


def test_a_workers_link_keeps_nobody_else_waiting() -> None:
    wire = Wire(link_bytes_per_sec=100.0)
    assert [wire.push_ends(0.0, 50), wire.push_ends(0.0, 50), wire.pull_ends(0.5, 50)] == [0.5, 0.5, 1.0]


def test_the_slower_of_link_and_port_says_how_long_a_transfer_takes_not_their_sum() -> None:
    wire = Wire(link_bytes_per_sec=100.0, port_bytes_per_sec=200.0)
    assert [wire.push_ends(0.0, 100), wire.push_ends(0.0, 100), wire.push_ends(0.0, 100)] == [1.0, 1.0, 1.5]


def test_latency_comes_on_top_and_takes_no_port() -> None:
    wire = Wire(port_bytes_per_sec=100.0, latency_secs=0.25)
    assert [wire.pull_ends(0.0, 100), wire.pull_ends(0.0, 100)] == [1.25, 2.25]


def test_a_message_without_bytes_waits_for_no_transfer() -> None:
    wire = Wire(port_bytes_per_sec=1.0, latency_secs=0.5)
    wire.push_ends(0.0, 1000)
    wire.pull_ends(0.0, 1000)
    assert [wire.push_ends(1.0, 0), wire.pull_ends(1.0, 0)] == [1.0, 1.0]


@given(TRANSFERS)
def test_a_port_never_carries_more_than_its_speed_and_rests_only_when_nobody_waits(
    transfers: list[tuple[float, int]],
) -> None:
    wire, free_at = Wire(port_bytes_per_sec=100.0), 0.0
    for begins, num_bytes in sorted(transfers):
        ends = wire.push_ends(begins, num_bytes)
        assert ends == max(begins, free_at) + num_bytes / 100.0
        free_at = ends
