"""Ports that are shared: who waits for whom."""

from __future__ import annotations

from random import Random

import pytest

from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import Push
from hybridsync.lab.simulator.cluster import Cluster, Link, Scenario
from hybridsync.lab.simulator.event_loop import Loop
from hybridsync.lab.simulator.network import Network

SLOW = Cluster(worker_link=Link(0.0, 1e9), server_link=Link(0.0, 100.0))


@pytest.fixture
def arrived() -> dict[str, float]:
    return {}


@pytest.mark.parametrize("direction", ["to_server", "from_server"])
def test_transfers_share_a_port_fairly_and_words_wait_for_none(direction: str, arrived: dict[str, float]) -> None:
    loop = Loop()
    network = Network(loop, Scenario(cluster=SLOW), Random(0), num_servers=1)

    def send(worker: int, num_bytes: int, name: str) -> None:
        push = Push(NO_PHASE, worker, 1, (0,), 0)

        def note() -> None:
            arrived[name] = loop.now

        if direction == "to_server":
            network.to_server(push, num_bytes, note)
        else:
            network.from_server(push, loop.now, num_bytes, note)

    for worker, num_bytes, name in ((0, 100, "first"), (1, 100, "second"), (2, 0, "word")):
        send(worker, num_bytes, name)
    loop.at(1.0, send, 3, 100, "third")
    loop.run_until(10.0)
    assert arrived == pytest.approx({"word": 0.0, "first": 2.5, "second": 2.5, "third": 3.0})
