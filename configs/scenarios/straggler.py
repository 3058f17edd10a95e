"""One worker is slow for a while: 30 ms more for each unit, from second 5 of the run to second 15.

Lock-step waits for it at every step; asynchronous workers go on, and its own updates become stale.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow


def scenario() -> Scenario:
    """Return four or more workers of 50 ms a unit, of which worker 3 is slow for 10 seconds."""
    return Scenario(
        cluster=Cluster(devices=(Device(secs=0.05, spread=0.05),)),
        slow=(Slow(worker=3, delay_secs=0.03, start_secs=5.0, stop_secs=15.0),),
    )
