"""Equal workers whose units take 50 ms, give or take a fifth (a lognormal spread), as on machines that others share.

Lock-step waits for the slowest draw of every step; asynchronous workers drift apart, so that staleness varies.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario


def scenario() -> Scenario:
    """Return workers of 50 ms a unit with a standard deviation of 10 ms."""
    return Scenario(cluster=Cluster(devices=(Device(secs=0.05, spread=0.2),)))
