"""Real gradients in virtual time: each on the version of the model that its worker would have held, on one device.

The programs are those of every other runtime, so accuracy under staleness is real, and bits are those of a run in one
process that had the same order. A state is never donated: an older one may still be captured, kept or computed on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from hybridsync.core.units import UnitSet
from hybridsync.interfaces.messages import GroupReply, Snapshot
from hybridsync.lab.simulator.arithmetic import Sizes
from hybridsync.protocols.base import BFLOAT16, FLOAT32, Change, Compensation
from hybridsync.training.averaging import averaged_on_one_device
from hybridsync.training.buffer_layout import fingerprint, first_non_finite
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState


def sizes_of_programs(programs: Programs) -> Sizes:
    """Return the bytes of a run's messages and states."""
    whole, narrow = programs.wire_sizes(FLOAT32), programs.wire_sizes(BFLOAT16)
    return Sizes(*whole, programs.state_layout.nbytes, narrow)


class RealArithmetic:
    """The compiled programs of a run (see `hybridsync.lab.simulator.arithmetic.Arithmetic`).

    A state is a TrainState, what a gradient is computed on its Parameters, a contribution what
    `hybridsync.training.compiled_programs` calls one; all on jax's default device.

    Args:
      run: task, optimizer and values.
      programs: compiled before, for a run that differs in its seed and plan alone; None compiles them.
    """

    def __init__(self, run: Run, programs: Programs | None = None) -> None:
        self._run = run
        programs = programs or run.programs(donate_parameters=False, donate_rest=False)
        self._programs = programs
        self.zero = programs.zero
        self.sizes = sizes_of_programs(programs)

    def of_seed(self, run: Run) -> Self:
        """Return the arithmetic of a run that differs in its seed and plan alone; nothing is compiled again."""
        return type(self)(run, self._programs.with_seed(run.config.seed))

    def start(self) -> TrainState:
        return jax.device_put(self._run.initial_state())

    def entered(self, state: TrainState) -> TrainState:
        return self._programs.entered(state)

    def parameters(self, state: TrainState) -> Parameters:
        return Parameters(state.params, state.model_state)

    def gradient(self, parameters: Parameters, unit: int, wire: str = FLOAT32) -> Any:
        return self._programs.gradient(parameters, unit, wire)

    def loss(self, gradient: Any) -> Any:
        return gradient["floats"]["loss"]

    def non_finite(self, contribution: Any) -> str:
        return first_non_finite(contribution) or ""

    def sum(self, contributions: Sequence[Any]) -> Any:
        return self._programs.sum(contributions)

    def update(
        self,
        state: TrainState,
        contributions: Sequence[Any],
        *,
        units: int,
        factor: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> TrainState:
        programs = self._programs
        total = programs.sum(contributions, weights)
        return programs.update(state, total, units=units, factor=factor, blend=blend, change=change)

    def opt_state(self, state: TrainState) -> Any:
        return state.opt_state

    def local_step(
        self,
        parameters: Parameters,
        opt_state: Any,
        moved: Any,
        gradient: Any,
        *,
        at: int,
        factor: float,
        replaces: bool,
    ) -> tuple[Parameters, Any, Any]:
        return self._programs.local_step(
            parameters, opt_state, moved, gradient, at=at, factor=factor, replaces=replaces
        )

    def difference(self, contribution: Any, moved: Any) -> Any:
        return self._programs.difference(contribution, moved)

    def combine(self, parameters: Parameters, contribution: Any, blend: float, replaces: bool) -> Parameters:
        return self._programs.combine(parameters, contribution, blend, replaces)

    def with_mean_opt_state(self, state: TrainState, opt_states: Sequence[Any]) -> TrainState:
        if not opt_states:
            return state
        return dataclasses.replace(state, opt_state=self._programs.mean_state(tuple(opt_states)))

    def compensate(self, contribution: Any, base: Any, now: Any, how: Compensation, squares: Any) -> tuple[Any, Any]:
        return self._programs.compensate(contribution, base, now, how, squares)

    def step(self, state: TrainState, contribution: Any, factor: float) -> TrainState:
        return self._programs.update(state, contribution, units=1, factor=factor, blend=1.0)

    def averaged(self, states: list[TrainState], reply: GroupReply) -> list[TrainState]:
        return averaged_on_one_device(states, reply, self._programs.moving)

    def fingerprint(self, state: TrainState) -> str:
        return fingerprint(state)

    def computed(self, state: TrainState) -> TrainState:
        return state


def evaluator(run: Run) -> Callable[[TrainState, Snapshot], dict[str, Any] | None]:
    """Return what measures a captured state on the task's held-out examples, as every runtime's chief does."""
    measure = run.evaluator()

    def evaluate(state: TrainState, snapshot: Snapshot) -> dict[str, Any] | None:
        return measure.evaluate(jax.tree.map(np.asarray, state), UnitSet(snapshot.applied))

    return evaluate
