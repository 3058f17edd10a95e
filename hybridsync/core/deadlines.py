"""Deadlines that follow from how much there is to do. Pure."""

from __future__ import annotations


def transfer_secs(num_bytes: int) -> float:
    """Return how long the transfer of `num_bytes` may take.

    >>> transfer_secs(0), transfer_secs(2_000_000_000)
    (60.0, 160.0)
    """
    return num_bytes / 20e6 + 60.0
