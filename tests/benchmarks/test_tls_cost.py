"""The measurement of TLS runs as it stands, and its ratios are of calls made beside each other."""

from __future__ import annotations

from benchmarks.tls_cost import measure, rows_of


def test_every_call_is_timed_with_and_without_tls() -> None:
    times = measure(calls=3)
    assert set(times) == {"a new connection", "a control call", "a message on an open stream", "4 MiB"}
    assert all(len(pairs) == 2 or len(pairs) == 3 for pairs in times.values())
    assert all(plain > 0 and secured > 0 for pairs in times.values() for plain, secured in pairs)


def test_a_ratio_is_of_each_pair() -> None:
    rows = rows_of({"a call": [(0.001, 0.002), (0.010, 0.010), (0.001, 0.003)]})
    assert [(row.name.split(" (")[0], row.figure) for row in rows] == [
        ("a call, plain", 1.0),
        ("a call, TLS", 3.0),
        ("a call, TLS to plain", 2.0),
    ]
