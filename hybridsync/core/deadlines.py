"""Bounds the waits of roles for each other: those who ask give up later than those who are asked. Pure."""

from __future__ import annotations

MEMBERS_SECS = 3900.0
"""How long a worker waits for the other workers, for units or for a phase. The chief judges earlier for whom everybody
waits: no limit of `HangConfig` is longer than an hour. This is the last resort."""

LATE_SECS = 5.0
"""Who looks again only after so long stood still meanwhile, or its machine did: what it judges is counted anew."""

UPLOAD_SECS = 5.0
"""How long the end of a phase waits for the optimizer states of workers with local updates."""

UPDATES_SECS = 90.0
"""How long a snapshot waits for the updates before it to be told to a server; that call's own deadline is shorter."""


def transfer_secs(num_bytes: int) -> float:
    """Return how long the transfer of `num_bytes` may take.

    >>> transfer_secs(0), transfer_secs(2_000_000_000)
    (60.0, 160.0)
    """
    return num_bytes / 20e6 + 60.0


def snapshot_secs(state_bytes: int) -> float:
    """Return how long a snapshot waits for a server: for the updates before it, and for the copy of its part.

    >>> snapshot_secs(2_000_000_000)
    250.0
    """
    return UPDATES_SECS + transfer_secs(state_bytes)
