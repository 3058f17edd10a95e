"""Host time that the framework adds to a BSP step: `python -m benchmarks.step_overhead [--rounds=5]`.

Compared are median step times, in turns: `Trainer.fit` in-process with one worker and all telemetry, and a
bare loop of the same three programs and transfers (batch gather, unit gradient, wait, update). A step is the
time from one batch to the next, stamped in the data source of both. Digits MLP; once as fast as it goes, once
with an *emulated* 20 ms of compute a unit (--compute_secs), of which the framework may add 1 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile

import jax
import numpy as np

from benchmarks.jobs import DIGITS, ROOT, Row, load, report
from benchmarks.stamps import StampedSource
from hybridsync.config import EmulationConfig, load_config
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.emulation.device import Emulation
from hybridsync.trainer import Trainer
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from hybridsync.training.task import Task

WARM_STEPS = 20


class Loops:
    """The two loops over the same task, data and optimizer.

    Args:
      steps: units to train.
      compute_secs: emulated compute of a unit.
    """

    def __init__(self, steps: int, compute_secs: float) -> None:
        loaded = load_config(ROOT / DIGITS)
        self._config = dataclasses.replace(
            loaded.config,
            workload=steps,
            workers=1,
            plan="bsp",
            emulation=EmulationConfig(compute_secs=compute_secs),
        )
        task: Task = loaded.module.task(self._config)
        self._source = StampedSource(task.source)
        self._task = dataclasses.replace(task, source=self._source)
        self._optimizer: Optimizer = loaded.module.optimizer(self._config)
        self._run = Run(self._config, self._task, self._optimizer, None)
        self._programs = self._run.programs(donate_parameters=False)
        self._emulation = Emulation(self._config.emulation, steps)

    def framework(self) -> list[float]:
        """Return the seconds of each of the framework's steps."""
        with tempfile.TemporaryDirectory() as workdir:
            trainer = Trainer(self._task, self._optimizer, self._config, workdir=workdir, progress=False)
            self._source.take()
            trainer.fit()
        return self._steps()

    def bare(self) -> list[float]:
        """Return the seconds of each step of the bare loop."""
        programs, state = self._programs, self._run.initial_state()
        self._source.take()
        for unit in range(self._config.workload):
            started = SYSTEM_CLOCK.monotonic()
            contribution = programs.gradient(Parameters(state.params, state.model_state), unit)
            jax.block_until_ready(contribution)
            if self._emulation.active:
                self._emulation.finish(0, unit, started, SYSTEM_CLOCK)
            state = programs.update(state, contribution, units=1, factor=1.0, blend=1.0)
        jax.block_until_ready(state)
        return self._steps()

    def _steps(self) -> list[float]:
        return np.diff(self._source.take()[-self._config.workload :])[WARM_STEPS:].tolist()


def measure(steps: int, rounds: int, compute_secs: float) -> tuple[float, float, list[float], float]:
    """Return the median step of the framework and of the bare loop, the rounds' differences, and the load."""
    loops = Loops(steps, compute_secs)
    loops.bare()
    before = load()
    framework, bare = [], []
    for _ in range(rounds):
        framework.append(loops.framework())
        bare.append(loops.bare())
    differences = [statistics.median(f) - statistics.median(b) for f, b in zip(framework, bare, strict=True)]
    whole = [statistics.median([step for steps in loop for step in steps]) for loop in (framework, bare)]
    return whole[0], whole[1], differences, max(before, load())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compute_secs", type=float, default=0.02)
    options = parser.parse_args()
    rows = []
    for compute_secs, steps in ((0.0, options.steps), (options.compute_secs, min(options.steps, 200))):
        framework, bare, differences, at = measure(steps, options.rounds, compute_secs)
        name = f"emulated {compute_secs * 1e3:g} ms" if compute_secs else "digits"
        rows += [
            Row(f"{name}: framework step, median", framework * 1e6, "us", load=at),
            Row(f"{name}: bare step, median", bare * 1e6, "us", load=at),
        ]
        added = statistics.median(differences)
        if compute_secs:
            rows.append(Row(f"{name}: framework adds", 100 * added / compute_secs, "%", "<=", 1.0, load=at))
        else:
            rows.append(Row(f"{name}: framework adds", added * 1e6, "us", "<=", 100.0, load=at))
    report("BSP step, in-process, one worker: framework against bare loop", rows, steps=options.steps)


if __name__ == "__main__":
    main()
