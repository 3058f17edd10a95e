"""Push and pull between one of our workers and one of our servers, as the peers' scripts measure theirs.

`python -m benchmarks.peers.our_transfer --megabytes=100 --calls=20` starts the server's process, and is the worker.
Both have the transport of jobs (`runtime/wiring.py`). The worker hands trees to its link and gets trees, and
copies these into arrays of its own, as the peers have them after a call; a job's worker reads them where they lie. One
port of the server is a primary under `asp`, which updates with SGD and momentum; the other keeps what it is sent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.jobs import JOB_SECS, ROOT
from benchmarks.peers.scripts.peer_job import tell, timed
from benchmarks.peers.work import EXCHANGE, MOMENTUM, NUM_LEAVES, PULL, RATE, UPDATE
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.data import TallySource
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Answer
from hybridsync.runtime.role.server_main import warm_up
from hybridsync.runtime.wiring import SHARED_MEMORY, transport_of
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.training.state import initial_state
from hybridsync.training.task import Task
from hybridsync.transport.link import Services, Transport
from hybridsync.worker.link import ServerLink

WORKLOAD = 1_000_000
"""More than is pushed: the phase must not end."""
TOKEN = "transfer"
PHASE = PhaseId(1, 1)
BUFFERS = 4


def programs_of(megabytes: float) -> Programs:
    """Return the programs of a model of 100 arrays; its loss is only traced."""
    floats = round(megabytes * 1e6 / 4 / NUM_LEAVES)

    def init(key: jax.Array) -> tuple[Any, Any]:
        return {f"leaf{index:02}": jnp.zeros(floats, jnp.float32) for index in range(NUM_LEAVES)}, {}

    def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return jnp.sum(jnp.stack([leaf.sum() for leaf in params.values()])), ({}, model_state)

    optimizer = Optimizer(
        lambda learning_rate, momentum: optax.sgd(learning_rate, momentum), learning_rate=RATE, momentum=MOMENTUM
    )
    task = Task(init, loss, TallySource(WORKLOAD))
    return Programs(task, optimizer, unit_size=1, workload=WORKLOAD, seed=0, donate_parameters=True)


class Stored:
    """A buffer that is lent again and again."""

    def __init__(self, buffer: np.ndarray) -> None:
        buffer[:] = 1
        self.buffer = buffer

    def release(self) -> None:
        """Do nothing: nobody rewrites it."""


class StoringPort:
    """A `ParameterPort` that keeps the last contribution and computes nothing."""

    def __init__(self, programs: Programs, transport: Transport) -> None:
        self._parameters = Stored(transport.allocate(programs.parameters_layout.nbytes))
        self._stored = programs.contribution_layout.empty()

    def pull(self, push: Push) -> Answer:
        return Answer(PushReply(sequence=push.base), self._parameters)

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...

    def begin_push(self, push: Push) -> Callable[[Any], Answer]:
        def offer(contribution: Any) -> Answer:
            self._stored[:] = contribution
            return Answer(PushReply(sequence=push.base + 1), self._parameters)

        return offer


def serve(megabytes: float, folder: Path) -> None:
    """Serve both ports until standard input closes; a line on standard output says that they are there."""
    programs, transport = programs_of(megabytes), transport_of(SHARED_MEMORY, Keyring(TOKEN))
    state = initial_state(programs.task, programs.optimizer, 0)
    start = SnapshotBuffer(programs.state_layout)
    start.pack(jax.device_get(state))
    snapshot = start.finalize(NO_PHASE, sequence=0, applied=())
    warm_up(programs)
    pool, completed = ParameterPool(programs.parameters_layout, transport.allocate), threading.Event()
    primary = Primary(programs, pool, lambda address: start, SYSTEM_CLOCK, NullApplyLog(), completed)
    primary.enter(
        Phase(
            id=PHASE,
            spec="asp",
            members=(0,),
            device_choice=0,
            end_units=WORKLOAD,
            applied=(),
            dropped=(),
            sequence=0,
            source="start",
            snapshot_id=snapshot.snapshot_id,
            fingerprint=snapshot.held.fingerprint,
            servers=(UPDATE,),
            reason="start",
        )
    )
    layout = programs.contribution_layout
    serving = [
        transport.serve(
            Services(
                holder=primary,
                parameters=port,
                state_bytes=programs.state_layout.nbytes,
                contribution_bytes=layout.nbytes,
                num_buffers=BUFFERS,
            ),
            at_socket(folder / name),
            calls=BUFFERS,
        )
        for name, port in ((UPDATE, Endpoint(primary, layout)), (EXCHANGE, StoringPort(programs, transport)))
    ]
    print(json.dumps([each.address for each in serving]), flush=True)
    sys.stdin.read()
    for each in serving:
        each.stop()


def work(megabytes: float, calls: int, addresses: list[str]) -> dict[str, list[float]]:
    """Return how long each call of each operation took."""
    programs = programs_of(megabytes)
    parts = partition(programs, 1)
    gradient = jax.tree.map(lambda leaf: np.full(leaf.shape, 1e-6, leaf.dtype), programs.one["floats"]["grads"])
    contribution = {**programs.one, "floats": {**programs.one["floats"], "grads": gradient}}
    contribution = jax.block_until_ready(jax.device_put(contribution))
    found: dict[str, list[float]] = {}
    for name, address in zip((UPDATE, EXCHANGE), addresses, strict=True):
        link = transport_of(SHARED_MEMORY, Keyring(TOKEN)).link([address], parts)
        calls_of = Calls(link, contribution)
        if name == UPDATE:
            found[PULL] = timed(calls_of.pull, calls)
        found[name] = timed(calls_of.push_pull, calls)
        link.close()
    return found


class Calls:
    """A worker's calls, each on the parameters of the one before; a worker pulls before it pushes."""

    def __init__(self, link: ServerLink, contribution: Any) -> None:
        self._link, self._contribution = link, contribution
        self._base, self._unit = 0, 0
        self._own: list[np.ndarray] = []
        self.pull()

    def pull(self) -> None:
        """Fetch the parameters."""
        self._keep(*self._link.pull(Push(PHASE, 0, 1, (), self._base)))

    def push_pull(self) -> None:
        """Push the contribution and fetch the parameters."""
        self._keep(*self._link.push_pull(Push(PHASE, 0, 1, (self._unit,), self._base), self._contribution))
        self._unit += 1

    def _keep(self, reply: PushReply, parameters: Any) -> None:
        self._base = reply.sequence
        leaves = jax.tree.leaves(parameters)
        self._own = self._own or [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        for own, leaf in zip(self._own, leaves, strict=True):
            np.copyto(own, leaf)


def main() -> None:
    """Measure and print, or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.megabytes, Path(options.serve))
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        command = [sys.executable, "-m", "benchmarks.peers.our_transfer", f"--megabytes={options.megabytes}"]
        server = subprocess.Popen(
            [*command, f"--serve={folder}"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdin is not None and server.stdout is not None
            if not (line := server.stdout.readline()):
                raise RuntimeError(f"the server ended with {server.wait()} before it served")
            found = work(options.megabytes, options.calls, json.loads(line))
            server.stdin.close()
            server.wait(JOB_SECS)
        finally:
            server.kill()
            server.wait()
    tell(**found)


if __name__ == "__main__":
    main()
