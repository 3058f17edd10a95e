"""The simulated clusters of the experiments: values that say how, and the scenario that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.grid.cells import Cell, scenario
from benchmarks.syncswitch_stragglers import STEP_SECS, UNIT_SECS
from benchmarks.syncswitch_times import fitted
from hybridsync.lab.simulator.arithmetic import Sizes
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Link, Scenario, Slow


@dataclass(frozen=True)
class Fitted:
    """A cluster with the published times of Sync-Switch's setup 1.

    A lock-step step takes 1.317 s, and a worker's asynchronous unit .1998 s; a switch costs next to nothing, because
    the published times leave it out.

    Args:
      spread: standard deviation of a unit's compute time over its mean.
      slow: who is slow when.
    """

    spread: float = 0.1
    slow: tuple[Slow, ...] = ()

    def scenario(self, workers: int, sizes: Sizes) -> Scenario:
        """Return the cluster of so many workers, and what happens to it."""
        return Scenario(cluster=_published(workers, self.spread), slow=self.slow)


@cache
def _published(workers: int, spread: float) -> Cluster:
    cluster = fitted(STEP_SECS, UNIT_SECS, workers)
    return replace(cluster, devices=(replace(cluster.devices[0], spread=spread),))


@dataclass(frozen=True)
class Even:
    """A cluster of alike workers, at a server's port that may be slow.

    Args:
      compute_secs, spread: of a unit.
      ratio: n transfers of a gradient through the servers' port take so many times a unit's compute time; 0 for a
        port of 10 Gb/s.
      link_ratio: a transfer through a worker's own link, likewise; 0 for 10 Gb/s.
      node_size: workers of a machine.
      slow: who is slow when.
      deaths: who is killed when.
    """

    compute_secs: float = 0.05
    spread: float = 0.2
    ratio: float = 0.0
    link_ratio: float = 0.0
    node_size: int = 1
    slow: tuple[Slow, ...] = ()
    deaths: tuple[Death, ...] = ()

    def scenario(self, workers: int, sizes: Sizes) -> Scenario:
        """Return the cluster of so many workers, and what happens to it."""
        server, own = Link(), Link()
        if self.ratio:
            server = Link(bytes_per_sec=workers * sizes.gradient / (self.ratio * self.compute_secs))
        if self.link_ratio:
            own = Link(bytes_per_sec=sizes.gradient / (self.link_ratio * self.compute_secs))
        device = Device(self.compute_secs, spread=self.spread)
        cluster = Cluster((device,), worker_link=own, server_link=server, node_size=self.node_size)
        return Scenario(cluster=cluster, slow=self.slow, deaths=self.deaths)


@dataclass(frozen=True)
class Gridded:
    """A cluster of the grid of `benchmarks.protocols`, which has eight workers.

    Args:
      straggler, link: one of each that the grid has.
      seed: of the bursts.
    """

    straggler: str
    link: str
    seed: int

    def scenario(self, workers: int, sizes: Sizes) -> Scenario:
        """Return the cluster, and what happens to it."""
        return scenario(Cell("", self.straggler, self.link, self.seed), sizes.gradient)


Conditions = Fitted | Even | Gridded
