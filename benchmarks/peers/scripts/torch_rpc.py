"""PyTorch: a parameter server over torch.distributed.rpc (TensorPipe), which applies SGD with momentum.

TensorPipe chooses how it carries tensors between processes of one host; `--tcp` leaves it plain TCP alone.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc

from benchmarks.peers.scripts.peer_job import (
    Device,
    children,
    data_of,
    free_port,
    leaf_floats,
    module_name,
    now,
    parsed,
    results,
    take_unit,
    tell,
    timed,
    units_in_a_pipe,
)
from benchmarks.peers.scripts.torch_model import Tensors, Units
from benchmarks.peers.work import NUM_LEAVES

SERVER = "server"
RPC_SECS = 60.0


class ServerState:
    """What the server's process holds; a call names a function of this module, which finds it here."""

    params: Tensors
    velocity: Tensors
    stored: Tensors
    rate = momentum = 0.0
    ends: list[float]
    lock = threading.Lock()


def pull() -> Tensors:
    """Return the parameters."""
    return ServerState.params


def exchange(gradient: Tensors) -> Tensors:
    """Store a gradient, and return the parameters."""
    ServerState.stored = gradient
    return ServerState.params


def update(gradient: Tensors) -> Tensors:
    """Apply a gradient, and return the parameters."""
    with ServerState.lock:
        torch._foreach_mul_(ServerState.velocity, ServerState.momentum)
        torch._foreach_add_(ServerState.velocity, gradient)
        torch._foreach_add_(ServerState.params, ServerState.velocity, alpha=-ServerState.rate)
        ServerState.ends.append(now())
    return ServerState.params


def main(options: Namespace) -> None:
    """Start the server and the workers and hand on what they told; or be one of them."""
    if options.role:
        member(options)
        return
    roles = [(SERVER, 0), *(("worker", rank) for rank in range(options.workers))]
    pipe = units_in_a_pipe(options.units)
    with children(module_name(), roles, port=free_port(), pipe=pipe) as processes:
        server, *workers = results(processes)
    tell(**(server if options.work == "digits" else workers[0]))


def member(options: Namespace) -> None:
    """Join, and serve or work until all have done."""
    torch.set_num_threads(1)
    chosen: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]} if options.tcp else {}
    backend = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{options.port}", num_worker_threads=16, rpc_timeout=RPC_SECS, **chosen
    )
    serves = options.role == SERVER
    if serves:
        hold(options)
    name, rank = (SERVER, 0) if serves else (f"worker{options.rank}", options.rank + 1)
    rpc.init_rpc(name, rank=rank, world_size=options.workers + 1, rpc_backend_options=backend)
    if serves:
        rpc.shutdown()  # returns when everybody has called it
        if options.work == "digits":
            accuracy = data_of(options).accuracy([each.numpy() for each in ServerState.params])
            tell(ends=ServerState.ends, units_per_update=1, accuracy=accuracy)
        else:
            tell()
        return
    if options.work == "digits":
        train(options)
        tell()
    else:
        transfer(options)
    rpc.shutdown()


def hold(options: Namespace) -> None:
    """Make the parameters, before anybody can call."""
    if options.work == "digits":
        ServerState.params = [torch.from_numpy(each) for each in data_of(options).params]
    else:
        ServerState.params = [torch.zeros(leaf_floats(options)) for _ in range(NUM_LEAVES)]
    ServerState.velocity = [torch.zeros_like(each) for each in ServerState.params]
    ServerState.rate, ServerState.momentum, ServerState.ends = options.rate, options.momentum, []


def transfer(options: Namespace) -> None:
    """Call each operation in a row."""
    gradient = [torch.full((leaf_floats(options),), 1e-6) for _ in range(NUM_LEAVES)]

    def call(function: Callable[..., Tensors], *given: Tensors) -> Tensors:
        return rpc.rpc_sync(SERVER, function, args=given)

    tell(
        pull=timed(lambda: call(pull), options.calls),
        exchange=timed(lambda: call(exchange, gradient), options.calls),
        update=timed(lambda: call(update, gradient), options.calls),
    )


def train(options: Namespace) -> None:
    """Compute units while there are any, each on the parameters that the last push brought."""
    units, device = Units(data_of(options), options.unit_size, options.rank), Device(options, options.rank)
    params = rpc.rpc_sync(SERVER, pull)
    while take_unit(options.pipe):
        began = now()
        gradient = units.gradient(params)
        device.finish(began)
        params = rpc.rpc_sync(SERVER, update, args=(gradient,))


if __name__ == "__main__":
    main(parsed())
