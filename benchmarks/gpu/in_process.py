"""What is measured by JAX in a process of its own: `python -m benchmarks.gpu.in_process NAME [ARGUMENT ...]`.

The last line of the output is a JSON object. So the benchmark itself loads no CUDA, and each measurement begins with a
GPU that is free.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.gpu import recipe
from benchmarks.gpu.run_figures import run_figures
from hybridsync import Trainer
from hybridsync.config import OptimizerConfig, RunConfig
from hybridsync.devices import staging
from hybridsync.devices.peaks import peak_flops

REPEATS = 5


def device() -> dict[str, Any]:
    """Return the device and the versions."""
    first = jax.devices()[0]
    limit = (first.memory_stats() or {}).get("bytes_limit", 0)
    return {
        "device": first.device_kind,
        "platform": first.platform,
        "memory_gib": round(limit / 2**30, 1),
        "peak_tflops": peak_flops(first.device_kind) / 1e12,
        "python": sys.version.split()[0],
        "jax": jax.__version__,
        "flax": flax.__version__,
    }


def seconds(function: Callable[[], Any]) -> float:
    """Return the shortest time of several calls, after one that is not counted."""
    function()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def transfers(megabytes: str) -> dict[str, Any]:
    """Return GB/s between device and host, for 8 leaves of so many megabytes in all."""
    size = int(float(megabytes) * 1e6 / 8 / 4)
    host = [np.full(size, number, np.float32) for number in range(8)]
    found: dict[str, Any] = {}
    total = 8 * size * 4 / 1e9

    def fresh() -> list[jax.Array]:  # an array keeps what NumPy has read of it once
        return jax.block_until_ready([jnp.copy(leaf) for leaf in leaves])

    leaves = jax.block_until_ready(jax.device_put(host))
    made = seconds(fresh)
    found["plain to host, GB/s"] = total / max(1e-9, seconds(lambda: [np.asarray(leaf) for leaf in fresh()]) - made)
    staging.STAGED_PLATFORMS |= {jax.devices()[0].platform}
    found["staged to host, GB/s"] = total / max(1e-9, seconds(lambda: staging.host_arrays(fresh())) - made)
    found["to device, GB/s"] = total / seconds(lambda: jax.block_until_ready(jax.device_put(host, may_alias=False)))
    return {name: round(figure, 2) for name, figure in found.items()}


def _run(model: Any) -> RunConfig:
    size = recipe.UNIT_SIZES[model]
    return RunConfig(
        workload=1 << 20,
        unit_size=size,
        workers=1,
        plan="bsp",
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.9),
        model=recipe.ModelConfig(model),
    )


def bare(model: str, secs: str) -> dict[str, Any]:
    """Return the rate of a plain jitted loop, with donated state, on a model's units."""
    config = _run(model)
    task = recipe.task(config)
    transformation = optax.sgd(0.02, 0.9)
    key = jax.random.key(0)
    params, rest = task.init(key)
    state = jax.block_until_ready((params, rest, transformation.init(params)))

    def step(state: Any, batch: Any, unit: Any) -> Any:
        params, rest, moments = state
        data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
        batch = task.source.augment(batch, data_key)
        (loss, (_, rest)), grads = jax.value_and_grad(task.loss, has_aux=True)(params, rest, batch, model_key)
        updates, moments = transformation.update(grads, moments, params)
        return (optax.apply_updates(params, updates), rest, moments), loss

    compiled = jax.jit(step, donate_argnums=0)
    losses: list[Any] = []

    def steps(first: int, count: int) -> None:
        nonlocal state
        for unit in range(first, first + count):
            batch = task.source.batch(unit, unit_size=config.unit_size, seed=0)
            state, loss = compiled(state, batch, np.int32(unit))
            losses.append(loss)
        jax.block_until_ready(state)

    steps(0, 5)
    unit, started = 5, time.perf_counter()
    while time.perf_counter() - started < float(secs):
        steps(unit, 5)
        unit += 5
    rate = (unit - 5) / (time.perf_counter() - started)
    return {
        "units/s": round(rate, 2),
        "examples/s": round(rate * config.unit_size, 1),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state[0])),
        "loss": round(float(losses[-1]), 4),
    }


def trainer(model: str, units: str) -> dict[str, Any]:
    """Return the rate of `Trainer` with one worker, in lock-step with itself."""
    config = _run(model)
    with tempfile.TemporaryDirectory() as folder:
        one = Trainer(
            recipe.task(config),
            recipe.optimizer(config),
            workload=int(units),
            unit_size=config.unit_size,
            workers=1,
            plan="bsp",
            workdir=folder,
            progress=False,
        )
        one.fit()
        return run_figures(Path(folder))


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps({"device": device, "transfers": transfers, "bare": bare, "trainer": trainer}[name](*arguments)))
