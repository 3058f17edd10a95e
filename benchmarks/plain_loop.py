"""Does a run learn what a plain JAX loop learns: `python -m benchmarks.plain_loop cifar --data=DIR`, or `... text`.

DIR holds the binary version of CIFAR-10; the text is that of `configs/text_lm.py`. Both have the same parameters at the
start, the same examples in the same order, and the same rate. The loop is one jitted program on batches of --workers
units, with optax alone. The targets are for lock-step (`bsp`), which takes the same batches divided over the workers:
.3 points of accuracy, or .01 of the loss. Random crops and dropout have other keys. The hybrid plan has no target.
Two loops that differ in their keys alone show how much a figure is worth. Nothing is emulated; times are not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.jobs import ROOT, Row, load, report
from hybridsync.config import load_config
from hybridsync.core.units import UnitSet
from hybridsync.data import CifarSource
from hybridsync.trainer import Trainer
from hybridsync.training.evaluation import Evaluator
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import TrainState, initial_state
from hybridsync.training.task import Task

HYBRID = "bsp:50%,asp"


class ConvNet(nnx.Module):
    """Three convolutions and a mean over the image, without batch statistics: these would differ by the unit's size."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        widths = ((3, 16), (16, 32), (32, 64))
        self.layers = nnx.List([nnx.Conv(*pair, (3, 3), rngs=rngs) for pair in widths])
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Return the scores of the classes."""
        for layer in self.layers:
            image = nnx.max_pool(nnx.relu(layer(image)), (2, 2), (2, 2))
        return self.head(image.mean((1, 2)))


@dataclass(frozen=True)
class Job:
    """What is trained in both ways.

    Args:
      task: model, loss and data.
      rule: learning rate -> optax's transformation.
      learning_rate: of one unit; lock-step takes the mean of n units at n times this rate.
      unit_size: examples a unit.
      figure: what is compared, a key of an evaluation.
      unit: what it is in.
      scale: figure -> unit.
      target: the most that the two may differ.
    """

    task: Task
    rule: Callable[[Any], optax.GradientTransformation]
    learning_rate: float
    unit_size: int
    figure: str
    unit: str
    scale: float
    target: float


def job_of(options: argparse.Namespace) -> Job:
    """Return the job that the command line names."""
    if options.job == "text":
        loaded = load_config(ROOT / "configs/text_lm.py")
        task = loaded.module.task(loaded.config)
        return Job(task, optax.adam, 5e-4, 32, figure="loss", unit="nats", scale=1.0, target=0.01)
    task = Task.from_nnx(lambda rngs: ConvNet(rngs), CifarSource(options.data))
    return Job(task, optax.adam, 5e-4, 32, figure="accuracy", unit="points", scale=100.0, target=0.3)


def framework(job: Job, plan: str, options: argparse.Namespace) -> float:
    """Return the figure at the end of a run."""
    result = Trainer(
        job.task,
        Optimizer(job.rule, learning_rate=job.learning_rate),
        workload=options.units,
        unit_size=job.unit_size,
        workers=options.workers,
        plan=plan,
        seed=options.seed,
        progress=False,
    ).fit()
    return job.scale * float(result.summary.final[job.figure])


def bare(job: Job, options: argparse.Namespace, keys: Sequence[int]) -> list[float]:
    """Return the figure at the end of the plain loop, for each seed of its random keys."""
    task, optimizer = job.task, job.rule(job.learning_rate * options.workers)
    start = initial_state(task, Optimizer(job.rule, learning_rate=job.learning_rate), options.seed)

    @jax.jit
    def step(params: Any, opt_state: Any, model_state: Any, batch: Any, key: jax.Array) -> tuple[Any, Any, Any]:
        data_key, model_key = jax.random.split(key)
        batch = task.source.augment(batch, data_key)

        def loss(params: Any) -> tuple[jax.Array, Any]:
            value, (_, after) = task.loss(params, model_state, batch, model_key)
            return value, after

        grads, after = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, after

    def trained(seed: int) -> TrainState:
        params, model_state, opt_state = start.params, start.model_state, optimizer.init(start.params)
        for first in range(0, options.units, options.workers):
            units = range(first, first + options.workers)
            batches = [task.source.batch(unit, unit_size=job.unit_size, seed=options.seed) for unit in units]
            batch = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
            key = jax.random.fold_in(jax.random.key(seed), first)
            params, opt_state, model_state = step(params, opt_state, model_state, batch, key)
        return TrainState(params, (), model_state, {}, {})

    evaluator = Evaluator(task)
    return [job.scale * float(evaluator.evaluate(trained(seed), UnitSet())[job.figure]) for seed in keys]


def main() -> None:
    """Train in both ways and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("cifar", "text"))
    parser.add_argument("--data", help="folder of cifar-10-batches-bin")
    parser.add_argument("--units", type=int, default=1600, help="a multiple of --workers")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.units % options.workers or (options.job == "cifar" and options.data is None):
        parser.error("--units is a multiple of --workers, and cifar needs --data")
    job = job_of(options)
    loops = bare(job, options, keys=(options.seed, options.seed + 1000))
    rows = [Row("plain loop", loops[0], job.unit, load=load())]
    rows.append(Row("plain loop, other keys: differs by", abs(loops[1] - loops[0]), job.unit, load=load()))
    for plan in ("bsp", HYBRID):
        figure = framework(job, plan, options)
        rows.append(Row(plan, figure, job.unit, load=load()))
        goal = ("<=", job.target) if plan == "bsp" else ("", 0.0)
        rows.append(Row(f"{plan}: differs by", abs(figure - loops[0]), job.unit, *goal, load()))
    title = (
        f"{options.job}, {options.units} units of {job.unit_size}, {options.workers} workers: {job.figure} at the end"
    )
    report(title, rows, seed=options.seed)


if __name__ == "__main__":
    main()
