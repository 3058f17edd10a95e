"""Scenario 2 of Sync-Switch on its cluster: two of 8 machines send everything 30 ms later, four times, for 83 s each.

The cluster is that of `syncswitch_1.py`. While the machines are late, a lock-step step takes 3.62 s, 2.75 times as
long, so that a stretch of 83 s is 23 such steps. With the four of them 526 s of lock-step become 738 s, where 721 to
753 were published. When the stretches begin is a reconstruction: they lie evenly in those 738 s.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Colocated, Costs, Device, Link, Scenario

BEGINS = 80.0, 245.0, 410.0, 575.0
SECS = 83.0
LATE = Colocated(
    latency_secs=(0.030, 0.030, *(0.0,) * 6),
    round_trips=0.72,
    recovery=14.0,
    incast=45.5,
    stretches=tuple((begin, begin + SECS) for begin in BEGINS),
)


def scenario() -> Scenario:
    """Return the published cluster with two machines that are late four times."""
    costs = Costs(step_secs=1.11651, call_secs=0.0, capture_secs=0.0, reserve_secs=0.0, commit_secs=0.0)
    link = Link(latency_secs=0.0)
    return Scenario(Cluster((Device(0.199555),), link, link, costs, LATE))
