"""Three hosts of 6, 5 and 5 workers, each behind one port of 1 Gbit/s; the third one is lost and comes back.

Units take 0.1 s. All traffic of a host goes through its port: pushes and pulls, the ring of a lock-step step, and the
averages of groups that leave the host. Its five workers are lost at second 20 and back at second 50.
"""

from __future__ import annotations

from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Link, Scenario

HOSTS = (6, 5, 5)
LOST_AT_SECS, AWAY_SECS = 20.0, 30.0


def scenario() -> Scenario:
    """Return three hosts, of which one is away for a while; for 16 workers."""
    port = Link(latency_secs=2e-4, bytes_per_sec=1.25e8)
    lost = range(sum(HOSTS[:2]), sum(HOSTS))
    return Scenario(
        cluster=Cluster((Device(secs=0.1, spread=0.1),), worker_link=port, server_link=port, hosts=HOSTS),
        deaths=tuple(Death("worker", worker, at_secs=LOST_AT_SECS, back_secs=AWAY_SECS) for worker in lost),
    )
