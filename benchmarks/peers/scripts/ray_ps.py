"""Ray: an actor that holds the parameters and applies SGD with momentum; its workers are actors, too."""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import numpy as np
import ray

from benchmarks.peers.scripts.peer_job import (
    ONE_THREAD,
    Device,
    data_of,
    leaf_floats,
    now,
    parsed,
    tell,
    timed,
)
from benchmarks.peers.work import NUM_LEAVES

Arrays = list[np.ndarray]
STORE_BYTES = 2 << 30


class Server:
    """Holds the parameters; its calls are served one after another."""

    def __init__(self, options: Namespace) -> None:
        if options.work == "digits":
            self._params = data_of(options).params
        else:
            self._params = [np.zeros(leaf_floats(options), "f") for _ in range(NUM_LEAVES)]
        self._velocity = [np.zeros_like(each) for each in self._params]
        self._rate, self._momentum = np.float32(options.rate), np.float32(options.momentum)
        self._stored: Arrays = []
        self._ends: list[float] = []
        self._left = options.units

    def pull(self) -> Arrays:
        return self._params

    def exchange(self, gradient: Arrays) -> Arrays:
        self._stored = gradient
        return self._params

    def update(self, gradient: Arrays) -> Arrays:
        for param, velocity, part in zip(self._params, self._velocity, gradient, strict=True):
            velocity *= self._momentum
            velocity += part
            param -= self._rate * velocity
        self._ends.append(now())
        return self._params

    def update_and_take(self, gradient: Arrays) -> tuple[Arrays, bool]:
        """Apply a gradient; return the parameters, and whether there is a unit more to compute."""
        self._left -= 1
        return self.update(gradient), self._left >= 0

    def take_first(self) -> tuple[Arrays, bool]:
        """Return what a worker begins with."""
        self._left -= 1
        return self._params, self._left >= 0

    def ends(self) -> list[float]:
        return self._ends


class Worker:
    """Calls the server."""

    def __init__(self, server: Any, options: Namespace, rank: int) -> None:
        self._server, self._options, self._rank = server, options, rank

    def transfer(self) -> dict[str, list[float]]:
        """Call each operation in a row."""
        gradient = [np.full(leaf_floats(self._options), 1e-6, "f") for _ in range(NUM_LEAVES)]
        server, calls = self._server, self._options.calls
        return {
            "pull": timed(lambda: ray.get(server.pull.remote()), calls),
            "exchange": timed(lambda: ray.get(server.exchange.remote(gradient)), calls),
            "update": timed(lambda: ray.get(server.update.remote(gradient)), calls),
        }

    def ready(self) -> None:
        """Return when this worker could compute."""
        import torch  # takes seconds

        from benchmarks.peers.scripts.torch_model import Units

        self._tensor = lambda array: torch.from_numpy(np.array(array))  # what Ray brings is read-only
        self._units = Units(data_of(self._options), self._options.unit_size, self._rank)

    def train(self) -> None:
        """Compute units while there are any, each on the parameters that the last push brought."""
        device = Device(self._options, self._rank)
        params, more = ray.get(self._server.take_first.remote())
        while more:
            began = now()
            gradient = [each.numpy() for each in self._units.gradient([self._tensor(each) for each in params])]
            device.finish(began)
            params, more = ray.get(self._server.update_and_take.remote(gradient))


def main(options: Namespace) -> None:
    """Start the actors and let them work."""
    os.environ.update(ONE_THREAD, RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    ray.init(
        num_cpus=options.workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=STORE_BYTES,
        _node_ip_address="127.0.0.1",
    )
    actor: Any = ray.remote(num_cpus=1)
    server = actor(Server).remote(options)
    workers = [actor(Worker).remote(server, options, rank) for rank in range(options.workers)]
    if options.work == "digits":
        ray.get([worker.ready.remote() for worker in workers])
        ray.get([worker.train.remote() for worker in workers])
        accuracy = data_of(options).accuracy(ray.get(server.pull.remote()))
        tell(ends=ray.get(server.ends.remote()), units_per_update=1, accuracy=accuracy)
    else:
        tell(**ray.get(workers[0].transfer.remote()))
    ray.shutdown()


if __name__ == "__main__":
    main(parsed())
