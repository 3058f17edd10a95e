"""How long a transfer may take, from its size. Pure.

>>> transfer_secs(0), transfer_secs(2_000_000_000)
(60.0, 160.0)
"""

from __future__ import annotations


def transfer_secs(num_bytes: int) -> float:
    """Return the deadline in seconds of a transfer of `num_bytes`: 20 MB/s, and a minute for everything else."""
    return num_bytes / 20e6 + 60.0
