"""Scenario 1 of Sync-Switch on its cluster: one of 8 machines sends everything 10 ms later, once, for 32 s.

The machines are workers and parameter servers, fitted to the published times of pure BSP and ASP and to the eight
published slowdowns (`benchmarks/syncswitch_stragglers.py`): a lock-step step takes 1.317 s, and 1.38 s while the
machine is late; an asynchronous unit takes .2 s. A switch costs nothing, as in the published times. When it happens,
and for how long, is a reconstruction: about 23 steps, as in scenario 2.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Colocated, Costs, Device, Link, Scenario

LATE = Colocated(
    latency_secs=(0.010, *(0.0,) * 7), round_trips=0.72, recovery=14.0, incast=45.5, stretches=((80.0, 112.0),)
)


def scenario() -> Scenario:
    """Return the published cluster with one late machine."""
    costs = Costs(step_secs=1.11651, call_secs=0.0, capture_secs=0.0, reserve_secs=0.0, commit_secs=0.0)
    link = Link(latency_secs=0.0)
    return Scenario(Cluster((Device(0.199555),), link, link, costs, LATE))
