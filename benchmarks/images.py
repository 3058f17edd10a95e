"""Training on CIFAR-10 in-process: does it learn, and how fast: `python -m benchmarks.images --data=DIR`.

DIR holds the binary version of CIFAR-10. For each plan, `Trainer.fit` trains a ResNet with several workers
that share one device; held against a target is the mean loss of the last 50 units over that of the first
50. Then, in turns, one worker under BSP and a bare jitted loop (batch, augmentation, gradient and update in
one program, plain optax) go through as many units; the target is for the ratio of their images a second,
stamped in the data source of both. Nothing is emulated. For a GPU: --model=32 --workers=8 --units=2000
--unit_size=128.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax

from benchmarks.jobs import ROOT, Row, load, report, steady_rate
from benchmarks.stamps import StampedSource
from hybridsync.config import RunConfig, TelemetryConfig, load_config
from hybridsync.storage.jsonl import read_lines
from hybridsync.telemetry.metrics import METRICS_FILE
from hybridsync.trainer import Trainer
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.task import Task

COUNTED_UNITS = 50
LOG_SECS = 0.25


class Images:
    """One task and optimizer for all loops of the benchmark.

    Args:
      options: the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        loaded = load_config(ROOT / "configs/cifar_resnet8.py")
        self.config: RunConfig = dataclasses.replace(
            loaded.config,
            workload=options.units,
            unit_size=options.unit_size,
            workers=options.workers,
            model=dataclasses.replace(loaded.config.model, depth=options.model),
            data=dataclasses.replace(loaded.config.data, folder=str(options.data)),
            telemetry=TelemetryConfig(log_secs=LOG_SECS),
        )
        task: Task = loaded.module.task(self.config)
        self.source = StampedSource(task.source)
        self.task = dataclasses.replace(task, source=self.source)
        self.optimizer: Optimizer = loaded.module.optimizer(self.config)

    def framework(self, plan: str, workers: int, units: int) -> tuple[float, float]:
        """Return images a second without the first and last tenth, and last loss over first loss."""
        config = dataclasses.replace(self.config, plan=plan, workers=workers, workload=units)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(self.task, self.optimizer, config, workdir=folder, progress=False)
            self.source.take()
            trainer.fit()
            fall = loss_fall(Path(folder), units)
        return self._rate(units), fall

    def bare(self, units: int) -> float:
        """Return images a second of the bare loop."""
        task, config = self.task, self.config.optimizer
        optimizer = optax.chain(
            optax.add_decayed_weights(config.weight_decay), optax.sgd(config.learning_rate, config.momentum)
        )
        key = jax.random.key(self.config.seed)
        params, model_state = task.init(key)

        @partial(jax.jit, donate_argnums=(0, 1, 2))
        def step(params: Any, opt_state: Any, model_state: Any, batch: Any, unit: int) -> tuple[Any, Any, Any]:
            data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
            batch = task.source.augment(batch, data_key)

            def loss(params: Any) -> tuple[jax.Array, Any]:
                value, (_, after) = task.loss(params, model_state, batch, model_key)
                return value, after

            grads, model_state_after = jax.grad(loss, has_aux=True)(params)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, model_state_after

        opt_state = optimizer.init(params)
        self.source.take()
        for unit in range(units):
            batch = task.source.batch(unit, unit_size=self.config.unit_size, seed=self.config.seed)
            params, opt_state, model_state = step(params, opt_state, model_state, batch, unit)
            jax.block_until_ready(params)
        return self._rate(units)

    def _rate(self, units: int) -> float:
        return steady_rate(self.source.take()[-units:], units) * self.config.unit_size


def loss_fall(workdir: Path, units: int) -> float:
    """Return the mean loss of the last units over that of the first, from a run's metrics."""
    losses: list[float] = []
    for line in read_lines(workdir / METRICS_FILE):
        if line["loss"] is not None:
            losses += [line["loss"]] * (line["units"] - len(losses))
    assert len(losses) >= units - COUNTED_UNITS // 5, f"metrics tell the loss of {len(losses)} units of {units}"
    return statistics.fmean(losses[-COUNTED_UNITS:]) / statistics.fmean(losses[:COUNTED_UNITS])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar-10-batches-bin")
    parser.add_argument("--model", type=int, default=8, help="depth of the ResNet")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--units", type=int, default=300)
    parser.add_argument("--unit_size", type=int, default=64)
    parser.add_argument("--turn_units", type=int, default=100, help="in each turn of the comparison")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    images = Images(options)
    title = f"CIFAR-10, ResNet-{options.model}, units of {options.unit_size}, {jax.devices()[0].device_kind}"
    rows = []
    for plan in ("bsp", "asp"):
        rate, fall = images.framework(plan, options.workers, options.units)
        name = f"{plan}, {options.workers} workers"
        rows.append(Row(f"{name}: last {COUNTED_UNITS} losses / first", fall, "x", "<=", 0.85, load()))
        rows.append(Row(f"{name}", rate, "images/s", load=load()))
    ratios, bare = [], []
    for _ in range(options.turns):
        rate, _ = images.framework("bsp", 1, options.turn_units)
        bare.append(images.bare(options.turn_units))
        ratios.append(rate / bare[-1])
    rows.append(Row("bare jitted loop", statistics.median(bare), "images/s", load=load()))
    ratio = statistics.median(ratios)
    rows.append(Row("bsp, 1 worker / bare loop", ratio, "x", ">=", 0.9, load()))
    report(title, rows, units=options.units, ratios=ratios)


if __name__ == "__main__":
    main()
