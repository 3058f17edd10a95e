"""MXNet: its distributed key-value store over ps-lite, with one server that applies SGD with momentum.

Scheduler and server are processes that import MXNet: it reads their role from the environment and serves.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from argparse import Namespace
from typing import Any

import mxnet as mx
import numpy as np

from benchmarks.peers.scripts.peer_job import (
    Device,
    children,
    data_of,
    free_port,
    leaf_floats,
    leave,
    module_name,
    now,
    parsed,
    results,
    take_unit,
    tell,
    timed,
    units_in_a_pipe,
)
from benchmarks.peers.work import NUM_LEAVES

STORING, UPDATING = "dist_sync", "dist_async"
"""With one worker and no optimizer the first stores what is pushed; the second updates on every push."""


def main(options: Namespace) -> None:
    """Start a group and hand on what its workers told; or be a worker."""
    if options.role:
        worker(options)
    elif options.work == "digits":
        told = group(options, UPDATING)
        ends = sorted(end for each in told for end in each["ends"])
        tell(ends=ends, units_per_update=1, accuracy=told[0]["accuracy"])
    else:
        stored, updated = group(options, STORING)[0], group(options, UPDATING)[0]
        tell(pull=stored["pull"], exchange=stored["both"], update=updated["both"])


def group(options: Namespace, kind: str) -> list[dict[str, Any]]:
    """Run a scheduler, a server and the workers; returns what the workers told."""
    shared = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(options.workers),
    }
    environments = {role: {**shared, "DMLC_ROLE": role} for role in ("scheduler", "server", "worker")}
    roles = [("scheduler", 0), ("server", 0), *(("worker", rank) for rank in range(options.workers))]
    pipe = units_in_a_pipe(options.units)
    with children(module_name(), roles, environments, pipe=pipe, extra=kind) as processes:
        return results(processes[2:])


def worker(options: Namespace) -> None:
    """Join the group and do the work."""
    store = mx.kv.create(options.extra)
    if options.extra == UPDATING:
        sgd = mx.optimizer.SGD(learning_rate=options.rate, momentum=options.momentum, wd=0.0, rescale_grad=1.0)
        if store.rank == 0:
            store.set_optimizer(sgd)
        store._barrier()
    if options.work == "digits":
        train(options, store)
    else:
        transfer(options, store)
    leave()


def transfer(options: Namespace, store: Any) -> None:
    """Pull, then push and pull, in a row."""
    keys, shape = list(range(NUM_LEAVES)), (leaf_floats(options),)
    params, gradient = ([mx.nd.full(shape, value) for _ in keys] for value in (0.0, 1e-6))
    store.init(keys, params)
    mx.nd.waitall()

    def pull() -> None:
        store.pull(keys, out=params)
        mx.nd.waitall()

    def both() -> None:
        store.push(keys, gradient)
        pull()

    tell(pull=timed(pull, options.calls), both=timed(both, options.calls))


def train(options: Namespace, store: Any) -> None:
    """Compute units while there are any, each on the parameters that the last push brought."""
    data, device = data_of(options), Device(options, options.rank)
    images, labels = mx.nd.array(data.images), mx.nd.array(data.labels)
    params = [mx.nd.array(each) for each in data.params]
    keys, drawn, ends = list(range(len(params))), np.random.default_rng(options.rank), []
    store.init(keys, params)
    for each in params:
        each.attach_grad()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    store.pull(keys, out=params)
    while take_unit(options.pipe):
        began = now()
        batch = mx.nd.array(drawn.integers(0, len(images), options.unit_size))
        with mx.autograd.record():
            hidden = images.take(batch)
            for index in range(0, len(params), 2):
                hidden = mx.nd.broadcast_add(mx.nd.dot(hidden, params[index]), params[index + 1])
                if index + 2 < len(params):
                    hidden = mx.nd.relu(hidden)
            mean = loss(hidden, labels.take(batch)).mean()
        mean.backward()
        mx.nd.waitall()
        device.finish(began)
        store.push(keys, [each.grad for each in params])
        store.pull(keys, out=params)
        mx.nd.waitall()
        ends.append(now())
    store._barrier()
    store.pull(keys, out=params)
    tell(ends=ends, accuracy=data.accuracy([each.asnumpy() for each in params]))
    store._barrier()


if __name__ == "__main__":
    main(parsed())
