"""Sizes leases: large enough that nobody waits for the chief, small enough that a stop is near.

>>> mesh_grant(num_places=4, units_per_sec=400.0)
100
>>> worker_grant(units_per_sec=50.0, room=4000, num_workers=4), worker_grant(50.0, room=5, num_workers=4)
(500, 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MESH_SECS = 0.25
"""A mesh runs this far ahead of the chief; it is also how long a lock-step drain takes at most."""
WORKER_SECS = 10.0
"""An asynchronous worker's grant, far from the end of the phase."""


def mesh_grant(num_places: int, units_per_sec: float) -> int:
    """Return the units to grant a lock-step mesh: about MESH_SECS of work in whole steps.

    One step at least, which is time enough to renew it where it is longer than that; two before anything is known.

    Args:
      num_places: units of a whole step.
      units_per_sec: units per second of the whole mesh; 0 if unknown.
    """
    steps = max(1, round(units_per_sec * MESH_SECS / num_places)) if units_per_sec else 2
    return steps * num_places


def worker_grant(
    units_per_sec: float,
    room: int,
    num_workers: int,
    wanted: int = 1,
    in_hand: int = 0,
    secs: float = WORKER_SECS,
    all_per_sec: float = 0.0,
) -> int:
    """Return the units to grant one worker with a stream of its own: `secs` of its work, shrinking towards the end.

    Guided self-scheduling (Polychronopoulos and Kuck, 1987) with half a share, so that the workers end together. A
    worker that is slower than the mean of all has a share as small as its part of their rate: an equal one would keep
    it busy long after the others, and the phase with it. One that takes several units at a time gets as many at once,
    but of the last ones, with those that it has in hand, no more than its share.

    Args:
      units_per_sec: units per second of this worker; 0 if unknown.
      room: units of the phase that are not leased.
      num_workers: number of workers in the phase.
      wanted: units that the worker takes at a time.
      in_hand: units that it has.
      secs: seconds of work to hand out, far from the end.
      all_per_sec: units per second of all workers together; 0 if unknown.

    >>> worker_grant(units_per_sec=0.0, room=4000, num_workers=4, wanted=50), worker_grant(50.0, 40, 4, wanted=50)
    (50, 10)
    >>> worker_grant(50.0, room=30, num_workers=4, wanted=50, in_hand=10)
    0
    >>> worker_grant(10.0, room=800, num_workers=4), worker_grant(10.0, room=800, num_workers=4, all_per_sec=160.0)
    (100, 25)
    """
    ahead = max(1, round(units_per_sec * secs))
    share = room // (2 * num_workers)
    if units_per_sec * num_workers < all_per_sec:
        share = int(share * num_workers * units_per_sec / all_per_sec)
    grant = max(1, min(ahead, share))
    if wanted == 1:
        return grant
    return max(0, min(max(grant, wanted), -(-(room + in_hand) // num_workers) - in_hand))


RATE_SECS = 1.0
"""Over about this long a measured rate forgets."""


@dataclass(slots=True)
class Rate:
    """Units a second, from a growing count: an exponential average over about RATE_SECS.

    >>> rate = Rate().observe(count=0, now=10.0).observe(count=50, now=10.5)
    >>> rate.per_sec
    100.0
    """

    per_sec: float = 0.0
    count: int = 0
    at: float | None = None

    def observe(self, count: int, now: float) -> Rate:
        """Return the rate after `count` units in all were done by `now` (monotonic seconds)."""
        if self.at is None or count < self.count:
            return Rate(self.per_sec, count, now)
        if now <= self.at or count == self.count:
            return self
        measured = (count - self.count) / (now - self.at)
        kept = math.exp(-(now - self.at) / RATE_SECS) if self.per_sec else 0.0
        return Rate(kept * self.per_sec + (1 - kept) * measured, count, now)
