"""PyTorch: DistributedDataParallel over gloo, and gloo's all-reduce, with a process for each member."""
# pyright: reportMissingImports=false

from __future__ import annotations

from argparse import Namespace

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.scripts.peer_job import (
    Data,
    Device,
    children,
    data_of,
    free_port,
    module_name,
    now,
    parsed,
    results,
    tell,
    timed,
)


def main(options: Namespace) -> None:
    """Start the members and hand on what they told; or be one of them."""
    if options.role:
        member(options)
        return
    roles = [("member", rank) for rank in range(options.workers)]
    with children(module_name(), roles, port=free_port()) as processes:
        told = results(processes)
    if options.work == "digits":
        tell(**told[0])
    else:
        tell(secs=[each["secs"] for each in told])


def member(options: Namespace) -> None:
    """Join the process group and do the work."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{options.port}"
    dist.init_process_group("gloo", init_method=address, rank=options.rank, world_size=options.workers)
    if options.work == "digits":
        train(options, data_of(options))
    else:
        reduce(options)
    dist.destroy_process_group()


def reduce(options: Namespace) -> None:
    """Sum a gradient over all members, again and again; it is copied into the buffer first, as DDP does."""
    gradient = torch.from_numpy(np.random.default_rng(options.rank).standard_normal(options.floats).astype("f"))
    buffer = torch.empty_like(gradient)

    def call() -> None:
        buffer.copy_(gradient)
        dist.all_reduce(buffer)

    tell(secs=timed(call, options.calls))


def model_of(data: Data) -> torch.nn.Sequential:
    """Return the network with the initial parameters."""
    layers: list[torch.nn.Module] = []
    for kernel, bias in zip(data.params[::2], data.params[1::2], strict=True):
        linear = torch.nn.Linear(*kernel.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(kernel.T.copy()))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def train(options: Namespace, data: Data) -> None:
    """Train in lock-step; a step is a unit of each member."""
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    network = model_of(data)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.rate, momentum=options.momentum)
    parallel, device = DistributedDataParallel(network), Device(options, options.rank)
    drawn, ends = np.random.default_rng(options.rank), []
    for _ in range(options.units // options.workers):
        began = now()
        batch = torch.from_numpy(drawn.integers(0, len(images), options.unit_size))
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(parallel(images[batch]), labels[batch])
        device.finish(began)  # before the backward pass, whose hooks send gradients as they come
        loss.backward()
        optimizer.step()
        ends.append(now())
    params = [each.detach().numpy() for each in network.parameters()]
    trained = [each.T if each.ndim == 2 else each for each in params]
    tell(ends=ends, units_per_update=options.workers, accuracy=data.accuracy(trained))


if __name__ == "__main__":
    main(parsed())
