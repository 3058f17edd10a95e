"""How many units to hand out ahead: enough that nobody waits for the chief, few enough that a stop is near.

    >>> mesh_grant(num_members=4, units_per_sec=400.0)
    100
    >>> worker_grant(units_per_sec=50.0, room=4000, num_workers=4), worker_grant(50.0, room=5, num_workers=4)
    (500, 1)
"""

from __future__ import annotations

MESH_SECS = 0.25
"""A mesh runs this far ahead of the chief; it is also how long a lock-step drain takes at most."""
WORKER_SECS = 10.0
"""An asynchronous worker's grant, far from the end of the phase."""


def mesh_grant(num_members: int, units_per_sec: float) -> int:
    """Return the units to grant a lock-step mesh: about MESH_SECS of work in whole steps, at least two steps."""
    steps = max(2, round(units_per_sec * MESH_SECS / num_members))
    return steps * num_members


def worker_grant(units_per_sec: float, room: int, num_workers: int) -> int:
    """Return the units to grant one asynchronous worker: about WORKER_SECS of its work, shrinking towards the end.

    Guided self-scheduling (Polychronopoulos and Kuck, 1987) with half a share, so that the workers end together
    although they are not equally fast.
    """
    ahead = max(1, round(units_per_sec * WORKER_SECS))
    return max(1, min(ahead, room // (2 * num_workers)))
