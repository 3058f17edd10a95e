"""When ring all-reduces over shared ports end."""

from __future__ import annotations

import pytest

from hybridsync.emulation.ring_model import Ring, Rings, ring_secs


def ends(*rings: Ring) -> list[float]:
    return [round(ring.arrives, 9) for ring in rings]


@pytest.mark.parametrize(
    ("num_members", "secs"),
    [(1, 0.0), (2, 2 * (0.5 + 1.0)), (4, 6 * (0.5 + 0.5)), (8, 14 * (0.5 + 0.25))],
)
def test_a_ring_takes_2_n_less_2_rounds_of_an_nth_of_the_buffer(num_members: int, secs: float) -> None:
    assert ring_secs(200, num_members, bytes_per_sec=100.0, latency_secs=0.5) == pytest.approx(secs)
    rings = Rings(bytes_per_sec=100.0, latency_secs=0.5)
    assert rings.begin(3.0, range(num_members), num_members, 200).arrives == pytest.approx(3.0 + secs)


def test_rings_that_share_no_port_keep_none_waiting() -> None:
    rings = Rings(bytes_per_sec=100.0)
    first, second = rings.begin(0.0, (0, 1), 2, 100), rings.begin(0.0, (2, 3), 2, 100)
    assert ends(first, second) == [1.0, 1.0]


def test_rings_under_way_share_a_port_fairly_and_the_slowest_port_counts() -> None:
    rings = Rings(bytes_per_sec=100.0)
    first = rings.begin(0.0, (0, 1), 2, 100)
    assert ends(first) == [1.0]
    second = rings.begin(0.5, (1, 2), 2, 100)
    assert ends(first, second) == [1.5, 2.0], "50 bytes of each share port 1 until 1.5, the other 50 pass it alone"
    rings.begin(2.5, (0, 1, 2), 3, 1)
    assert ends(first, second) == [1.5, 2.0]


def test_each_further_ring_may_cost_a_port_goodput() -> None:
    rings = Rings(bytes_per_sec=100.0, incast=0.5)
    both = [rings.begin(0.0, (0, 1), 2, 100) for _ in range(2)]
    assert ends(*both) == [3.0, 3.0], "two at once get 100 / 1.5 in all"


def test_what_a_ring_takes_besides_takes_no_port() -> None:
    rings = Rings(bytes_per_sec=100.0, latency_secs=0.25)
    first = rings.begin(0.0, (0, 1), 2, 100, beside_secs=2.0)
    second = rings.begin(1.0, (0, 1), 2, 100, beside_secs=2.0)
    assert ends(first, second) == [3.5, 4.5]


def test_ports_of_any_speed_take_the_latency_of_the_rounds_alone() -> None:
    assert Rings(latency_secs=0.5).begin(1.0, range(3), 3, 10**9).arrives == 3.0
