"""Describes a run before anybody starts it: the same values in every role's process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
from absl import logging

from hybridsync import protocols
from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError, TaskError
from hybridsync.core.plan import Plan
from hybridsync.core.user_code import ends_forks
from hybridsync.devices.mesh import divide
from hybridsync.devices.placement import DevicePlacement, Placement, SharedDevice
from hybridsync.devices.rules import Places, on_mesh
from hybridsync.interfaces.callbacks import Callback
from hybridsync.policies.momentum import MomentumHandling, is_asynchronous, momentum_handling
from hybridsync.policies.plan_checks import check_plan, parsed_plan
from hybridsync.protocols.base import Outer, Protocol
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.evaluation import BATCH_EXAMPLES, Evaluator
from hybridsync.training.frozen import Frozen, joined
from hybridsync.training.optimizer import Optimizer, no_optimizer
from hybridsync.training.state import TrainState, abstract_state, initial_state
from hybridsync.training.task import Task

LARGE_MODEL = 10_000_000
"""Parameters from which on a worker measures the states: below, its own units would wait longer than the chief."""


@dataclass(frozen=True)
class Run:
    """A task, an optimizer and the values they run with.

    Args:
      config: resolved configuration; passes in its plan become units of the task's data.
      task, optimizer: model, loss and data, and the optimizer of the training.
      workdir: folder for everything that the run writes; None leaves nothing.
      file: the configuration file as it was given; None for an embedded run.
      callbacks: the user's, which the chief calls; the runs of all other roles have none.
    """

    config: RunConfig
    task: Task
    optimizer: Optimizer
    workdir: Path | None
    file: Path | None = None
    callbacks: tuple[Callback, ...] = ()

    def __post_init__(self) -> None:
        plan = Plan.parse(self.config.plan)
        if plan.has_passes and isinstance(self.task, Task):  # another object is refused by `check`
            in_units = plan.in_units(Fraction(self.task.source.num_examples, self.config.unit_size))
            object.__setattr__(self, "config", dataclasses.replace(self.config, plan=str(in_units)))

    @functools.cached_property
    def plan(self) -> Plan:
        """The parsed plan, whose stages scale the rate as the configuration says where they do not say it themselves.

        Raises:
          ConfigError: the configuration wants another scaling than a stage has.
        """
        return parsed_plan(self.config)

    @functools.cached_property
    def stages(self) -> tuple[Protocol, ...]:
        """The protocol of each stage.

        Raises:
          PlanError: unknown protocol or argument.
        """
        return tuple(protocols.resolve(stage) for stage in self.plan.stages)

    @functools.cached_property
    def handling(self) -> MomentumHandling:
        """Handling of the momentum where the plan goes over to asynchrony."""
        policy, workers = self.config.policy, self.config.workers
        ends = self.plan.ends(self.config.workload)
        asynchronous = [is_asynchronous(protocol, workers) for protocol in self.stages]
        return momentum_handling(policy.momentum, policy.ramp, workers, ends, asynchronous)

    @functools.cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of the protocols in the plan that keep an outer momentum in the state."""
        changes = [stage.change(self.config.workers) for stage in self.stages]
        return tuple(sorted({change.name for change in changes if isinstance(change, Outer)}))

    @ends_forks
    def check(self) -> None:
        """Check what can be checked before anything starts.

        Raises:
          TaskError: the task is none.
          OptimizerError: the optimizer is none, for example a ready GradientTransformation.
          OptimizerError: its momentum cannot be handled as the configuration asks.
          ConfigError: a stage cannot work with these workers, a callback needs a workdir or evaluations and the run has
            none, or a value is impossible.
        """
        if not isinstance(self.task, Task):
            raise TaskError(
                f"the task is a {type(self.task).__name__}, not a Task; return one from task(config), made by "
                "Task.from_nnx, Task.from_linen or Task(init, loss, source)"
            )
        if not isinstance(self.optimizer, Optimizer):
            raise no_optimizer(self.optimizer)
        check_plan(self.config)
        if self.workdir is None and (needs := [each for each in self.callbacks if each.needs_workdir]):
            name = type(needs[0]).__name__
            raise ConfigError(f"the callback {name} needs a workdir, and the run has none; name one, or leave it out")
        if (needs := [each for each in self.callbacks if each.needs_evaluations]) and self.why_unmeasured:
            name = type(needs[0]).__name__
            raise ConfigError(f"the callback {name} needs evaluations, and {self.why_unmeasured}, or leave it out")
        if self.handling.variant != "keep":
            self.optimizer.check_momentum(self.handling, self.abstract_state().opt_state)

    @functools.cached_property
    def why_unmeasured(self) -> str:
        """Why no evaluation of the run has figures, and what to give; "" where they have some."""
        if self.task.summarize is not None:
            return ""
        if self.task.evaluate is None:
            return "the task has no evaluate: give it one"
        with contextlib.suppress(Exception, SystemExit):  # the user's: what it raises is reported at each evaluation
            if not any(True for _ in self.task.source.test_batches(BATCH_EXAMPLES)):
                return "the source has no held-out examples: give some, such as test= of ArraySource or IndexedSource"
        return ""

    def evaluation_warning(self) -> str:
        """Return a warning of evaluations that the run asks for and that have no figures; "" for any other run."""
        asked = ["telemetry.evaluate_units"] if self.config.telemetry.evaluate_units else []
        follow = [type(each) for each in self.callbacks if type(each).on_evaluation is not Callback.on_evaluation]
        asked += [f"{kind.__name__}.on_evaluation" for kind in follow]
        if not asked or not self.why_unmeasured:
            return ""
        return f"nothing is evaluated, in spite of {', '.join(asked)}: {self.why_unmeasured}"

    def is_measured_by_workers(self, state: TrainState) -> bool:
        """Return whether worker processes measure states like this one: it is large, or they have more than a CPU.

        A task that summarizes its states by what was applied is left to the chief, which knows that.
        """
        devices = self.config.devices
        if self.task.summarize is not None or self.task.evaluate is None:
            return False
        numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
        return devices.platform in ("cuda", "tpu") or devices.size != 1 or numbers >= LARGE_MODEL

    @functools.cached_property
    def shared_device(self) -> Placement:
        """The placement of a process that has no devices of its own for workers."""
        axes = (*self.config.devices.axes,)
        return SharedDevice(axes, on_mesh(self.config.devices.rules, axes))

    def placement(self, devices: Sequence[Any], num_workers: int) -> Placement:
        """Return where the workers of one process compute.

        Args:
          devices: devices of the process.
          num_workers: workers that the process has.

        Raises:
          ConfigError: the mesh does not fit the devices, the unit or the parameters.
          TaskError: an annotation of the model does not fit its leaf.
        """
        config = self.config.devices
        division = divide(config, num_workers, len(devices))
        config.check_unit(self.config.unit_size, division.axes)
        if division.seats == division.size == 1 and devices[0] == jax.local_devices()[0]:
            return self.shared_device
        params = joined(self.abstract_state().params, self.task.abstract_frozen)
        leaves = Layout.of(params).leaves
        names = {} if self.task.axes is None else self.task.axes()
        places = Places(config, division.axes, {leaf.path: leaf.shape for leaf in leaves}, names)
        for path, why in places.whole.items():
            logging.warning("Parameter %s is whole on each device: %s.", path, why)
        return DevicePlacement(devices, division, places)

    @ends_forks
    def programs(
        self, *, donate_parameters: bool, donate_rest: bool = True, placement: Placement | None = None
    ) -> Programs:
        """Return the compiled programs (see `Programs`)."""
        placement = placement or self.shared_device
        return Programs(
            self.task,
            self.optimizer,
            unit_size=self.config.unit_size,
            workload=self.config.workload,
            seed=self.config.seed,
            donate_parameters=donate_parameters,
            donate_rest=donate_rest,
            kept=self.kept,
            handling=self.handling,
            placement=placement,
            frozen=self.frozen(placement),
            micro_steps=self.config.devices.micro_steps,
        )

    def evaluator(self, placement: Placement | None = None, progress: Callable[[], object] = lambda: None) -> Evaluator:
        """Return what measures states of this run (see `Evaluator`)."""
        placement = placement or self.shared_device
        return Evaluator(self.task, placement, progress, self.frozen(placement))

    def frozen(self, placement: Placement) -> Frozen:
        """Return the leaves that are not trained, the same object for all who compute at a placement."""
        return self._frozen.setdefault(placement, Frozen(self.task, self.config.seed, placement))

    @functools.cached_property
    def _frozen(self) -> dict[Placement, Frozen]:
        return {}

    @ends_forks
    def initial_state(self) -> TrainState:
        """Return the state before the first unit."""
        return initial_state(self.task, self.optimizer, self.config.seed, self.kept)

    @ends_forks
    def abstract_state(self) -> TrainState:
        """Return the shapes and dtypes of the state without computing it."""
        return abstract_state(self.task, self.optimizer, self.kept)

    @ends_forks
    def describe_source(self) -> dict[str, Any]:
        """Return what the data source says of itself, for the checkpoint."""
        return self.task.source.describe()
