"""Lock-step over the devices of one process beside a plain jitted program: `python -m benchmarks.joint_devices`.

Compared in turns, on the same forced CPU devices: `Trainer.fit` with a worker a device (`collective="xla"`), and one
program over a mesh of all devices that computes the gradient of a whole step and the update, its batch divided and its
state donated. A step is stamped where its first unit is read: by the wall clock, by the process's processor time, and
by that of the threads of Python without what they read of the data, which is the host's time: the rest is the devices'.
Two models say what share of the plain program's rate is left, one of next to no compute what the host spends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.jobs import Row, load, report

WARM_STEPS = 10
MODELS = {"compute": ((256, 256), 256), "parameters": ((1024, 1024), 64), "tiny": ((32,), 8), "leaves": ((64,) * 49, 8)}
"""Name -> hidden layers and examples a unit."""


class SteppedSource:
    """A source that stamps each step, where its first unit is read."""

    def __init__(self, source: Any, workers: int) -> None:
        self._source, self._workers = source, workers
        self._read_secs = dict[int, float]()  # thread -> seconds
        self.stamps: list[tuple[float, float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batch(self, unit: int, *, unit_size: int, seed: int) -> Any:
        """Return the examples of a unit."""
        if unit % self._workers == 0:
            self.stamps.append((time.perf_counter(), time.process_time(), self._host_secs()))
        started = time.thread_time()
        batch = self._source.batch(unit, unit_size=unit_size, seed=seed)
        thread = threading.get_ident()
        self._read_secs[thread] = self._read_secs.get(thread, 0.0) + time.thread_time() - started
        return batch

    def _host_secs(self) -> float:
        """Return the processor seconds of all threads of Python that live, without what they read of the data."""
        alive = [thread.ident for thread in threading.enumerate() if thread.ident is not None]
        spent = sum(map(time.clock_gettime, map(time.pthread_getcpuclockid, alive)))  # noqa: TID251 of each thread
        return spent - sum(self._read_secs.get(thread, 0.0) for thread in alive)

    def take(self, steps: int) -> np.ndarray:
        """Return wall, processor and host seconds of each of the last steps but the first few; forget all stamps."""
        found, self.stamps = np.diff(np.array(self.stamps[-steps:]), axis=0)[WARM_STEPS:], []
        return found


class Loops:
    """Both loops over the same model, data and optimizer.

    Args:
      model: name of the model.
      workers: workers, each on a device of its own.
      steps: steps of each run.
    """

    def __init__(self, model: str, workers: int, steps: int) -> None:
        from flax import nnx

        from hybridsync import Optimizer, Task
        from hybridsync.data import SyntheticSource
        from hybridsync.models.mlp import MLP

        hidden, self._unit_size = MODELS[model]
        self._source: Any = SteppedSource(SyntheticSource(shape=(16, 16, 3)), workers)
        self._workers, self._steps = workers, steps

        def made(rngs: nnx.Rngs) -> nnx.Module:
            return MLP((16 * 16 * 3, *hidden, 10), rngs=rngs)

        self._task = Task.from_nnx(made, self._source)
        self._optimizer = Optimizer(_sgd, learning_rate=0.01)

    def framework(self) -> np.ndarray:
        """Return the seconds of each of the framework's steps."""
        from hybridsync import Trainer

        workload = self._steps * self._workers
        options: dict[str, Any] = {"unit_size": self._unit_size, "workers": self._workers, "plan": "bsp"}
        assert Trainer(self._task, self._optimizer, workload=workload, progress=False, **options).fit().completed
        return self._source.take(self._steps)

    def plain(self) -> np.ndarray:
        """Return the seconds of each step of the plain program."""
        import jax
        import optax
        from jax.sharding import AxisType, NamedSharding, PartitionSpec

        mesh = jax.make_mesh((self._workers,), ("data",), (AxisType.Auto,))
        whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
        task, transformation, key = self._task, _sgd(0.01), jax.random.key(0)
        params, rest = task.init(key)
        state = jax.device_put((params, rest, transformation.init(params)), whole, may_alias=False)

        def step(state: Any, batch: Any, number: Any) -> Any:
            params, rest, moments = state
            data_key, model_key = jax.random.split(jax.random.fold_in(key, number))
            batch = task.source.augment(batch, data_key)
            (loss, (_, rest)), grads = jax.value_and_grad(task.loss, has_aux=True)(params, rest, batch, model_key)
            updates, moments = transformation.update(grads, moments, params)
            return (optax.apply_updates(params, updates), rest, moments), loss

        compiled = jax.jit(step, donate_argnums=0, out_shardings=(whole, whole))
        for number in range(self._steps):
            first = number * self._workers
            units = [
                self._source.batch(unit, unit_size=self._unit_size, seed=0)
                for unit in range(first, first + self._workers)
            ]
            batch = {name: np.concatenate([unit[name] for unit in units]) for name in units[0]}
            state, loss = compiled(state, jax.device_put(batch, divided), np.int32(number))
            jax.block_until_ready(loss)  # as whoever looks at the loss of each step does
        return self._source.take(self._steps)


def _sgd(learning_rate: Any) -> Any:
    import optax

    return optax.sgd(learning_rate, 0.9)


def measured(model: str, workers: int, steps: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of one model."""
    loops, found = Loops(model, workers, steps), {"plain program": [], "xla": []}
    before = load()
    for _ in range(rounds):
        found["plain program"].append(loops.plain())
        found["xla"].append(loops.framework())
    at = max(before, load())
    wall, cpu = {}, {}
    for name, runs in found.items():
        wall[name] = [float(np.median(run[:, 0])) for run in runs]
        cpu[name] = [float(run[:, 1].mean()) for run in runs]
        host = statistics.median(float(np.median(run[:, 2])) for run in runs)
        bound, goal = ("<=", 4.0) if name == "xla" else ("", 0.0)
        yield Row(f"{model}: {name}, a step", statistics.median(wall[name]) * 1e3, "ms", load=at)
        yield Row(f"{model}: {name}, processor time a step", statistics.median(cpu[name]) * 1e3, "ms", load=at)
        yield Row(f"{model}: {name}, host time a step", host * 1e3, "ms", bound, goal, load=at)
    shares = [plain / ours for plain, ours in zip(wall["plain program"], wall["xla"], strict=True)]
    yield Row(f"{model}: share of the plain program", statistics.median(shares), "", ">=", 0.9, load=at)
    added = [ours - plain for plain, ours in zip(cpu["plain program"], cpu["xla"], strict=True)]
    yield Row(f"{model}: processor time added", statistics.median(added) * 1e3, "ms a step", load=at)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--model", choices=MODELS, default="compute")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(options.devices)}  # before JAX is imported
    rows = list(measured(options.model, options.devices, options.steps, options.rounds))
    title = f"Lock-step over {options.devices} devices of one process beside a plain program"
    report(title, rows, steps=options.steps)


if __name__ == "__main__":
    main()
