"""TensorFlow: ParameterServerStrategy over gRPC, a chief, one parameter server and the workers, a process each.

Plain variables and the fused momentum update that is placed on the server: Keras 3 does not support this strategy. The
coordinator hands a function to whatever worker is free. Every function returns the time of its end.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportArgumentType=false

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from benchmarks.peers.scripts.peer_job import (
    SLOW_RANK,
    WARM_CALLS,
    children,
    data_of,
    free_port,
    leaf_floats,
    leave,
    module_name,
    parsed,
    results,
    tell,
)
from benchmarks.peers.work import NUM_LEAVES
from hybridsync.core.clock import SYSTEM_CLOCK, pause

QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "GRPC_FAIL_FAST": "use_caller",
}
NAP = "pyfunc_0"
"""Name of the first Python function that a process registers; the worker's is its sleep."""
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
"""Where a transfer ends. Without it the placer moves what reads a parameter to the server, and little is sent."""


def main(options: Namespace) -> None:
    """Start the tasks and hand on what the chief told; or be one of them."""
    if options.role == "chief":
        chief(options)
    elif options.role:
        serve(options)
    else:
        numbers = {"chief": 1, "ps": 1, "worker": options.workers}
        cluster = {role: [f"127.0.0.1:{free_port()}" for _ in range(number)] for role, number in numbers.items()}
        roles = [(role, rank) for role in ("ps", "worker", "chief") for rank in range(numbers[role])]
        environments = dict.fromkeys(numbers, QUIET)
        with children(module_name(), roles, environments, extra=json.dumps(cluster)) as processes:
            tell(**results(processes[-1:])[0])


def serve(options: Namespace) -> None:
    """Be a worker or the parameter server until the process is killed."""
    is_slow = options.role == "worker" and options.rank == SLOW_RANK
    secs = options.compute_secs * (options.slowdown if is_slow else 1.0)

    def nap(began: Any) -> np.float64:
        pause(float(began) + secs - SYSTEM_CLOCK.wall())  # the function's times are TensorFlow's, of the wall
        return np.float64(0.0)

    token = script_ops._py_funcs.insert(nap)
    if (token.decode() if isinstance(token, bytes) else token) != NAP:
        raise RuntimeError(f"the sleep was registered as {token}, not as {NAP}; another function came first")
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    cluster = tf.train.ClusterSpec(json.loads(options.extra))
    tf.distribute.Server(cluster, job_name=options.role, task_index=options.rank, protocol="grpc", config=config).join()


def chief(options: Namespace) -> None:
    """Schedule the work."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(json.loads(options.extra)), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    (train if options.work == "digits" else transfer)(options, strategy, coordinator)
    leave()


def ends_of(coordinator: Any, function: Any, args: tuple[Any, ...], calls: int) -> list[float]:
    """Return the times at which so many calls of a function ended, in order."""
    scheduled = [coordinator.schedule(function, args=args) for _ in range(calls)]
    coordinator.join()
    return sorted(float(end) for end in coordinator.fetch(scheduled))


def apply_momentum(options: Namespace, variable: Any, velocity: Any, gradient: Any) -> Any:
    """Return the update of one variable, made where it lives."""
    with tf.device(variable.device):
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle, accum=velocity.handle, lr=options.rate, grad=gradient, momentum=options.momentum
        )


def transfer(options: Namespace, strategy: Any, coordinator: Any) -> None:
    """Run each operation in a row, by the one worker."""
    floats = leaf_floats(options)
    with strategy.scope():
        params = [tf.Variable(tf.zeros([floats])) for _ in range(NUM_LEAVES)]
        velocity = [tf.Variable(tf.zeros([floats]), trainable=False) for _ in range(NUM_LEAVES)]
        stored = [tf.Variable(tf.zeros([floats]), trainable=False) for _ in range(NUM_LEAVES)]
    # Gradients live in the worker's memory, as an element of its data set: what is made in the function could be made
    # on the server, and nothing would be sent.
    leaf = tf.fill([floats], 1e-6)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.from_tensors((leaf,) * NUM_LEAVES).repeat(),
        )
    )

    def after(operations: list[Any]) -> Any:
        """Pull when these have run, and return the time; each parameter is taken whole in the worker."""
        with tf.control_dependencies(operations):
            pulled = [param.read_value() for param in params]
        with tf.device(WORKER):
            arrived = [tf.raw_ops.Snapshot(input=each) for each in pulled]
            with tf.control_dependencies(arrived):
                return tf.timestamp()

    @tf.function
    def pull() -> Any:
        return after([])

    @tf.function
    def exchange(batches: Any) -> Any:
        return after([kept.assign(part) for kept, part in zip(stored, next(batches), strict=True)])

    @tf.function
    def update(batches: Any) -> Any:
        parts = zip(params, velocity, next(batches), strict=True)
        return after([apply_momentum(options, *part) for part in parts])

    found = {}
    for name, function, args in (
        ("pull", pull, ()),
        ("exchange", exchange, (batches,)),
        ("update", update, (batches,)),
    ):
        ends = ends_of(coordinator, function, args, WARM_CALLS + 1 + options.calls)[WARM_CALLS:]
        found[name] = [end - began for began, end in itertools.pairwise(ends)]
    tell(**found)


def train(options: Namespace, strategy: Any, coordinator: Any) -> None:
    """Schedule every unit at once; whatever worker is free takes the next."""
    data = data_of(options)
    with strategy.scope():
        params = [tf.Variable(each) for each in data.params]
        velocity = [tf.Variable(tf.zeros_like(each), trainable=False) for each in params]
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: (
                tf.data.Dataset.from_tensor_slices((data.images, data.labels))
                .shuffle(len(data.images))
                .repeat()
                .batch(options.unit_size)
                .prefetch(4)
            )
        )
    )

    @tf.function
    def step(batches: Any) -> Any:
        images, labels = next(batches)
        with tf.control_dependencies([images]):
            began = tf.timestamp()
        own = [tf.convert_to_tensor(param) for param in params]
        with tf.GradientTape() as tape:
            tape.watch(own)
            hidden = images
            for index in range(0, len(own), 2):
                hidden = tf.matmul(hidden, own[index]) + own[index + 1]
                if index + 2 < len(own):
                    hidden = tf.nn.relu(hidden)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden))
        gradient = tape.gradient(loss, own)
        if options.compute_secs:
            with tf.control_dependencies(gradient):
                (slept,) = tf.raw_ops.PyFunc(input=[began], token=NAP, Tout=[tf.float64])
            with tf.control_dependencies([slept]):
                gradient = [tf.identity(each) for each in gradient]
        parts = zip(params, velocity, gradient, strict=True)
        with tf.control_dependencies([apply_momentum(options, *part) for part in parts]):
            return tf.timestamp()

    ends = ends_of(coordinator, step, (batches,), options.units)
    tell(ends=ends, units_per_update=1, accuracy=data.accuracy([param.numpy() for param in params]))


if __name__ == "__main__":
    main(parsed())
