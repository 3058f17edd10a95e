"""Fast devices behind a slow network: 10 ms a unit, ports of 100 Mbit/s, 1 ms of latency, and devices of two kinds.

All pushes and pulls share the server's port, so that with enough workers it sets the pace of an asynchronous phase;
a lock-step step sends its messages around a ring instead.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Device, Link, Scenario


def scenario() -> Scenario:
    """Return a cluster whose network is the bottleneck."""
    port = Link(latency_secs=1e-3, bytes_per_sec=12.5e6)
    return Scenario(
        cluster=Cluster(
            devices=(Device(secs=0.010, spread=0.05), Device(secs=0.015, spread=0.05)),
            worker_link=port,
            server_link=port,
        )
    )
