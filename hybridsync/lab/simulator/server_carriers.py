"""Carries out a worker's calls on a simulated parameter server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.messages import Push
from hybridsync.lab.simulator.drive_events import PENDING, Carriers, EventDriver, Then
from hybridsync.lab.simulator.network import Insisting, Network
from hybridsync.lab.simulator.simulated_server import Outcome, Server
from hybridsync.worker.requests import CallServer


class ServerCarriers:
    """The calls of one worker on the server of its phase.

    A worker uploads its state at its end in one message, sent once: if that is lost, the server continues without it
    after a while, as everywhere.

    Args:
      driver: driver of the worker's engine.
    """

    def __init__(self, driver: EventDriver) -> None:
        simulated = driver.simulated
        self._driver, self._simulated = driver, simulated
        self._way, self._beside = self._way_to_server(), self._way_to_server()
        self._server: Server = simulated.at(driver.phase.servers[0])
        self._sizes = simulated.arithmetic.sizes
        self._push_bytes, _ = self._sizes.on_wire(driver.phase.protocol.wire_dtype)

    @property
    def carriers(self) -> Carriers:
        """Carriers of the requests of phases whose state servers hold."""
        return {CallServer: self._call}

    def _call(self, request: CallServer, then: Then) -> Any:
        verb, push, server = request.verb, request.push, self._server
        if verb in ("push_pull", "push"):
            way = self._beside if verb == "push" else self._way
            heard = partial(self._pushed, push, then) if self._simulated.watches else then
            way.to_server(push, self._push_bytes, partial(server.push, push, request.body), heard)
        elif verb == "upload_opt_state":
            opt_state_bytes = self._sizes.state - self._sizes.parameters
            self._simulated.network.to_server(push, opt_state_bytes, server.upload_opt_state, push, request.body)
            return None, None
        else:
            calls: dict[str, Callable[..., object]] = {
                "pull": server.pull,
                "ready": server.ready,
                "idle": server.idle,
                "download_opt_state": server.download_opt_state,
            }
            self._way.to_server(push, 0, calls[verb], push, then)
        return PENDING

    def _way_to_server(self) -> Network | Insisting:
        """Return a way for one call at a time: what is pushed beside the others has its own."""
        simulated = self._simulated
        network = simulated.network
        if network.reliable:
            return network
        return Insisting(network, simulated.loop, simulated.retry_secs, self._driver.is_stale)

    def _pushed(self, push: Push, then: Then, outcome: Outcome) -> None:
        if not (isinstance(outcome, HybridSyncError) or self._driver.is_over):
            self._simulated.watch.pushed(push, outcome[0])
        then(outcome)
