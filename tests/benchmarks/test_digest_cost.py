"""The measurement of digests runs as it stands, and one end alone without them is refused by the other."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.digest_cost import WITHOUT, digests, measure, rows_of
from hybridsync.core.errors import DamagedState
from hybridsync.transport.tcp.lanes import Lanes
from tests.fuzz.link_calls import tcp_pair


def test_every_call_is_timed_with_digests_and_without() -> None:
    times = measure(num_bytes=2_000_000, calls=2)
    assert set(times) == {"push", "push with the update", "pull", "push and pull without an update"}
    assert all(len(pairs) == 2 for pairs in times.values())
    assert all(checked > 0 and unchecked > 0 for pairs in times.values() for checked, unchecked in pairs)


def test_a_ratio_is_of_each_pair() -> None:
    rows = rows_of(2.0, {"push": [(0.002, 0.001), (0.010, 0.010), (0.003, 0.001)]})
    found = {(row.name.split(" (")[0], row.unit): row.figure for row in rows}
    assert found == {
        ("2 MB, push, with digests", "ms"): 3.0,
        ("2 MB, push, with digests", "GB/s"): pytest.approx(2 / 3),
        ("2 MB, push, without", "ms"): 1.0,
        ("2 MB, push, without", "GB/s"): pytest.approx(2.0),
        ("2 MB, push, with digests to without", "x"): 2.0,
    }


def test_without_digests_nothing_is_checked_and_behind_it_everything_is_again() -> None:
    near, far = (Lanes([each]) for each in tcp_pair())
    buffer, into = np.ones(100, np.uint8), np.zeros(100, np.uint8)
    with digests(WITHOUT):
        near.send(b"of no digest", buffer)
        assert far.await_message() == b"of no digest"
        far.receive(into)
        assert np.array_equal(buffer, into)
        near.send(b"of no digest", buffer)
    with pytest.raises(DamagedState, match=r"where 0000000000000000 was sent"):
        far.await_message()
    for each in (near, far):
        each.close()
