"""Spot machines: workers are taken away and come back, and the parameter server dies once.

Lock-step enters a new phase at every loss and at every return; an asynchronous phase goes on. The server's death takes
everybody back to the last commit: the units after it count as rolled back and are done again.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Costs, Death, Device, Scenario


def scenario() -> Scenario:
    """Return a cluster of which three workers are lost for a while, and the server once."""
    return Scenario(
        cluster=Cluster(devices=(Device(secs=0.05, spread=0.1),), costs=Costs(restart_secs=4.0)),
        deaths=(
            Death("worker", 0, at_secs=3.0),
            Death("worker", 1, at_secs=12.0, back_secs=10.0),
            Death("worker", 2, at_secs=25.0),
            Death("server", 0, at_secs=32.0),
        ),
    )
