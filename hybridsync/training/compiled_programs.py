"""The step as three programs, the same in every mode: unit gradient, mean, update.

    unit_gradient(parameters, unit)    local; pure function of the parameters and (seed, unit), and of frozen leaves
    total(contributions)               the only collective: an ordered sum (over threads, or psum over the mesh)
    update(state, total)               local; divides by the weight, sets the rate, runs the optimizer

If workers make local updates there are three more: `local_step`, a worker's own update; `combine`, a version less what
is not in it yet; and `mean_state`, the shared optimizer state of all of theirs. An update then takes the mean
contribution off the parameters, as it is or through an outer optimizer.

A *contribution* is one tree of float32 and int32 leaves: gradients, float model statistics and loss, each already
weighted, their weight, and the integers of the model state (see `hybridsync.training.model_state`). Idle members
contribute weight 0. Buffers that a failed collective could lose are never donated: `update` runs after it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.extend.core import ClosedJaxpr

from hybridsync.core.activity import current
from hybridsync.core.errors import TaskError
from hybridsync.core.user_code import end_if_forked
from hybridsync.devices.placement import SHARED_DEVICE, DevicePlacement, Placement, SharedDevice
from hybridsync.policies.momentum import KEEP, MomentumHandling
from hybridsync.protocols.base import FLOAT32, Change, Compensation
from hybridsync.training.buffer_layout import Layout, describe
from hybridsync.training.frozen import Frozen
from hybridsync.training.micro_steps import gradient_in_parts
from hybridsync.training.model_state import loss_and_contribution, merged, moving
from hybridsync.training.optimizer import Optimizer, without_momentum
from hybridsync.training.state import TrainState, abstract_state
from hybridsync.training.task import Task
from hybridsync.training.wire import narrowed_contribution, narrowed_parameters, rounded, widened


class Parameters(NamedTuple):
    """Holds what a worker computes a gradient on: `params` and `model_state` of a TrainState."""

    params: Any
    model_state: Any


class Programs:
    """The compiled programs of one task and optimizer, shared by all phases so that a switch compiles nothing.

    Args:
      task, optimizer: model, loss and data, and the optimizer of the training.
      unit_size: examples a unit, B.
      workload: number of units, W.
      seed: random seed of the run.
      donate_parameters: whether `update` may reuse the parameters' memory. False where others read them while it
        runs (threads sharing one state).
      donate_rest: whether it may reuse the memory of everything else in the state. False where a state is needed again
        after its update (a simulation, whose states are values).
      kept: names of the protocols whose outer optimizers keep something in the state.
      handling: treatment of the momentum where the plan goes over to asynchrony.
      placement: where each worker computes.
      frozen: leaves of the task that are not trained, at that placement; None makes them.
      micro_steps: parts in which the gradient of a unit is computed, one after the other.

    Raises:
      TaskError: the loss returns another model state than it got, or the source's first unit is not of this size.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Optimizer,
        *,
        unit_size: int,
        workload: int,
        seed: int,
        donate_parameters: bool,
        donate_rest: bool = True,
        kept: tuple[str, ...] = (),
        handling: MomentumHandling = KEEP,
        placement: Placement = SHARED_DEVICE,
        frozen: Frozen | None = None,
        micro_steps: int = 1,
    ) -> None:
        self.placement = placement
        self.task, self.optimizer = task, optimizer
        self._handling = handling
        self.unit_size, self.workload, self.seed = unit_size, workload, seed
        self.keys = self._keys_of(seed)
        self.frozen = frozen or Frozen(task, seed, placement)

        def compiled(program: Callable[..., Any], **options: Any) -> Any:
            return placement.jit(_announced(program), **options)

        self._micro_steps = micro_steps
        self._gradient = functools.partial(_unit_gradient, task, optimizer.clip, micro_steps)
        self.unit_gradient = compiled(self._gradient)
        self._round_parameters, self._round_grads = compiled(self._rounded_parameters), compiled(_rounded_grads)
        self.total = compiled(_total)
        self._add, self._weigh = compiled(_add), compiled(_weigh)
        self._compensate, self._adapt = compiled(_compensate), compiled(_adapt)
        donated = ("parameters",) * donate_parameters + ("opt_state", "counters") * donate_rest
        self._update = compiled(self._update_program, donate_argnames=donated)
        alone = ("parameters",) * donate_parameters
        self._outer_update = compiled(self._outer_program, static_argnames="replaces", donate_argnames=alone)
        self._local_step = compiled(self._local_program, static_argnames="replaces")
        self._combine = compiled(_combine, static_argnames="replaces")
        self.mean_state = compiled(_mean_state)
        self._fields: dict[str, tuple[Any, ...]] = {}
        batch = self.batch(0)
        self._fields = {name: (field.shape, field.dtype) for name, field in batch.items()}
        example = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in batch.items()}
        state = abstract_state(task, optimizer, kept)
        parameters = Parameters(state.params, state.model_state)
        inputs = parameters, example, jnp.int32(0), jax.random.key(seed), task.abstract_frozen
        # Of the program itself: its first call finds it traced.
        self.lay_out(state, self.unit_gradient.eval_shape(*inputs))

    def on_part(self, state: TrainState, contribution: Any) -> Programs:
        """Return the same programs for a part of the leaves; `gradient` needs the whole ones.

        Args:
          state: shapes, with None in place of the leaves that are elsewhere.
          contribution: likewise.
        """
        part = copy.copy(self)
        part.lay_out(state, contribution)
        return part

    def with_seed(self, seed: int) -> Programs:
        """Return the same compiled programs for a run of another seed."""
        other = copy.copy(self)
        other.seed, other.keys = seed, self._keys_of(seed)
        other.frozen = Frozen(self.task, seed, self.placement)
        return other

    def _keys_of(self, seed: int) -> tuple[jax.Array, ...]:
        """Return the run's key at each seat, so that no gradient waits for its way there."""
        at, key = self.placement, jax.random.key(seed)
        return tuple(at.at_worker(key, seat) for seat in range(at.num_seats))

    def entered(self, state: TrainState) -> TrainState:
        """Return what a phase that begins with `state` trains on: the same, unless its momentum is to begin anew.

        It depends on the units applied alone, so that every entry with a state that has had no update since, for
        whatever reason and however often, treats it as before.
        """
        if not self._handling.zero_at or int(state.counters["units"]) not in self._handling.zero_at:
            return state
        return dataclasses.replace(state, opt_state=without_momentum(state.opt_state))

    def _momentum_share(self, units: jax.Array) -> jax.Array | None:
        """Return the share of the momentum's coefficient in the update after `units` units; None for all of it."""
        if not self._handling.segments:
            return None
        share = jnp.float32(1.0)
        for begin, end, first, last in self._handling.segments:
            inside = (units >= begin) & (units < end)
            slope = (last - first) / (end - begin)
            share = jnp.where(inside, first + slope * (units - begin).astype(jnp.float32), share)
        return share

    def lay_out(self, state: TrainState, contribution: Any) -> None:
        """Set the shapes and layouts of everything that is computed on (see `on_part`, which does it in a copy)."""
        self.state, self.contribution = state, contribution
        self.parameters = Parameters(state.params, state.model_state)
        self.contribution_layout = Layout.of(contribution)
        self.parameters_layout = Layout.of(self.parameters)
        self.state_layout = Layout.of(state)
        self.opt_state_layout = Layout.of(state.opt_state)
        # An idle member has no say in a maximum, also where all values are negative.
        lowest = {np.dtype(np.int32): np.iinfo(np.int32).min}
        # Of the floats nobody writes a page, so they take no memory.
        self.zero = jax.tree.map(
            lambda a: np.full(a.shape, lowest[a.dtype], a.dtype) if a.dtype in lowest else np.zeros(a.shape, a.dtype),
            self.contribution,
        )
        weight = np.ones((), np.float32)
        self.one = {**self.zero, "floats": {**self.zero["floats"], "weight": weight}}

    def moving(self, state: TrainState) -> TrainState:
        """Return a state with None in place of the leaves of the model state that the loss never changes."""
        offered = self.contribution["floats"]["stats"], self.contribution["ints"]
        return dataclasses.replace(state, model_state=moving(state.model_state, offered))

    def wire_sizes(self, wire: str) -> tuple[int, int]:
        """Return the bytes of a contribution, and of the parameters, as they travel."""
        travel = narrowed_contribution(self.contribution, wire), narrowed_parameters(self.parameters, wire)
        return Layout.of(travel[0]).nbytes, Layout.of(travel[1]).nbytes

    def batch(self, unit: int) -> dict[str, np.ndarray]:
        """Return the raw examples of `unit`, gathered on the host.

        Raises:
          TaskError: the source has not served `unit_size` examples, or other fields than in unit 0.
        """
        activity, pid = current(), os.getpid()
        activity.reading()
        try:
            batch = self.task.source.batch(unit, unit_size=self.unit_size, seed=self.seed)
        except BaseException as error:
            end_if_forked(pid, error)
            raise
        finally:
            activity.has_read()
        end_if_forked(pid)
        if {name: (field.shape, field.dtype) for name, field in batch.items()} != self._fields:
            self._check_batch(unit, batch)
        return batch

    def _check_batch(self, unit: int, batch: dict[str, np.ndarray]) -> None:
        """Refuse a unit that is not full, or not of unit 0's fields and types: figures count units of `unit_size`.

        Its other dimensions may differ, as those of sequences of several lengths do; each shape is compiled once.
        """
        for name, field in batch.items():
            if (examples := field.shape[0] if field.ndim else 0) != self.unit_size:
                raise TaskError(
                    f"unit {unit} has {examples} examples, unit_size is {self.unit_size}: the source returned "
                    f"its field {name!r} as {describe(field.dtype, field.shape)}; serve every unit in full, the last "
                    "one of a pass with the first examples of the next"
                )
        found = {name: (field.ndim, field.dtype) for name, field in batch.items()}
        expected = {name: (len(shape), dtype) for name, (shape, dtype) in self._fields.items()} or found
        for name in [*expected, *found]:
            if found.get(name) != expected.get(name):
                here = describe(batch[name].dtype, batch[name].shape) if name in found else "absent"
                first = describe(*reversed(self._fields[name])) if name in expected else "absent"
                raise TaskError(
                    f"unit {unit} has the field {name!r} as {here}, unit 0 as {first}: the source's batch() must "
                    "return the same fields for every unit, with the same types and numbers of dimensions"
                )

    def gradient(
        self,
        parameters: Parameters,
        unit: int,
        wire: str = FLOAT32,
        worker: int = 0,
        batch: dict[str, np.ndarray] | None = None,
    ) -> Any:
        """Return the contribution of `unit` at `parameters`; dispatched, not awaited.

        Args:
          parameters: parameters to compute on; with a narrow wire also as they have travelled.
          unit: unit whose gradient is computed.
          wire: number format that both are rounded to (see `hybridsync.training.wire`). Rounding has programs of its
            own: the gradient's last bits depend on what it is compiled with.
          worker: worker that computes it.
          batch: raw examples of the unit; None reads them.
        """
        at, key = self.placement, self.keys[worker % len(self.keys)]
        parameters = at.at_worker(parameters, worker)
        if wire == FLOAT32:
            batch, pid = self.batch(unit) if batch is None else batch, os.getpid()
            try:
                frozen = self.frozen.at(worker)
                return self.unit_gradient(parameters, at.batch(batch, worker), np.int32(unit), key, frozen)
            finally:
                end_if_forked(pid)  # out of the loss, which is traced here
        return self._round_grads(self.gradient(self._round_parameters(parameters), unit, worker=worker, batch=batch))

    def joint_gradient(self, at: DevicePlacement) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
        """Return the program of a gradient on each seat, of one device: a call costs the host what one of them would.

        Its arguments are (parameters, the run's key, frozen leaves), which all seats have, and (raw examples, int32[n]
        units) of the n seats. It returns their contributions, and float32[n, 2]: loss, and 1.0 where each entry of the
        contribution is finite. All but the first lie side by side (see `DevicePlacement.on_each_seat`).
        """

        def gradient(shared: Any, own: Any) -> tuple[Any, jax.Array]:
            (parameters, key, frozen), (batch, units) = shared, own
            found = self._gradient(parameters, batch, units[0], key, frozen)
            finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found["floats"])]).all()
            told = jnp.stack([found["floats"]["loss"], finite.astype(jnp.float32)])
            return jax.tree.map(lambda leaf: leaf[None], (found, told))

        return at.on_each_seat(_announced(gradient))

    def gradient_flops(
        self, parameters: Parameters, batch: dict[str, np.ndarray], wire: str = FLOAT32, worker: int = 0
    ) -> float:
        """Return the operations of each device for a unit's gradient, as XLA counts them in the compiled program.

        That has computed a gradient with such arguments before: nothing is compiled. A scan counts as one of its
        iterations, but that over the parts of a unit, and what is computed again for the backward pass (remat) counts.

        Args:
          parameters: see `gradient`.
          batch: raw examples of a unit.
          wire: see `gradient`.
          worker: likewise.
        """
        at, key = self.placement, self.keys[worker % len(self.keys)]
        parameters = at.at_worker(parameters, worker)
        if wire != FLOAT32:
            parameters = at.at_worker(self._round_parameters(parameters), worker)
        frozen = self.frozen.at(worker)
        lowered = self.unit_gradient.lower(parameters, at.batch(batch, worker), np.int32(0), key, frozen)
        cost = lowered.compile().cost_analysis()
        return self._micro_steps * max(0.0, float((cost or {}).get("flops", 0.0)))

    def sum(self, contributions: Sequence[Any], weights: Sequence[float] = ()) -> Any:
        """Return the sum of contributions in their order, to the bit what `total` gives for any number of them.

        Two by two, so that one compiled program serves updates of every size.

        Args:
          contributions: contributions to add, at least one.
          weights: factor on each one's gradients; () is 1 each. The divisor, the number of units, stays.
        """
        if weights:
            contributions = [
                contribution if weight == 1.0 else self._weigh(contribution, np.float32(weight))
                for contribution, weight in zip(contributions, weights, strict=True)
            ]
        return functools.reduce(self._add, contributions)

    def compensate(
        self, contribution: Any, base: Parameters, now: Parameters, how: Compensation, squares: Any
    ) -> tuple[Any, Any]:
        """Return a unit's contribution with its gradients compensated for their staleness, and the squares after it.

        Args:
          contribution: contribution of one unit.
          base: parameters that it was computed on.
          now: parameters that it will be applied to.
          how: see `Compensation`.
          squares: moving mean of the gradients' squares before it; None before the first, or where `how` needs none.
        """
        if not how.adaptive:
            return self._compensate(contribution, base.params, now.params, np.float32(how.strength)), None
        if squares is None:
            squares = self.zero["floats"]["grads"]
        return self._adapt(contribution, base.params, now.params, np.float32(how.strength), squares)

    def update(
        self,
        state: TrainState,
        total: Any,
        *,
        units: int,
        factor: float,
        blend: float,
        change: Change = "optimizer",
    ) -> TrainState:
        """Return the state after one update; parts of `state` may be donated (see the class).

        Args:
          state: state before the update.
          total: summed contributions, of weight at least one unit.
          units: units in `total`.
          factor: the protocol's factor on the schedule's learning rate; on the mean where no optimizer reads one.
          blend: share of the new float model statistics: 1 under lock-step, 1/n from one of n asynchronous workers.
          change: use of the mean of `total`.
        """
        constant = self.placement.constant
        scalars = constant(np.int32, units), constant(np.float32, factor), constant(np.float32, blend)
        if change != "optimizer":
            return self._without_optimizer(state, total, scalars, change)
        return self.updated(state, total, *scalars)

    def updated(self, state: TrainState, total: Any, units: Any, factor: Any, blend: Any) -> TrainState:
        """Return the state after one update of the run's optimizer; as `update`, of arrays, and may be traced."""
        parameters, opt_state, counters = self._update(
            Parameters(state.params, state.model_state),
            state.opt_state,
            state.counters,
            _without_loss(total),
            (units, factor, blend),
        )
        return TrainState(parameters.params, opt_state, parameters.model_state, state.protocol_state, counters)

    def compile_update(self) -> threading.Thread:
        """Compile the update of a whole state in a thread of its own, which is returned, while another compiles.

        It is compiled for arrays of the default device, or of the host; elsewhere its first call compiles it.
        """

        def compile_it() -> None:
            if not isinstance(self.placement, SharedDevice):
                return
            # As arrays have them: the scalars of an abstract state may be weaker than those that arrive.
            state, total = (
                jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)
                for tree in (self.state, _without_loss(self.contribution))
            )
            parameters = Parameters(state.params, state.model_state)
            scalars = np.int32(1), np.float32(1.0), np.float32(1.0)
            try:
                self._update.lower(parameters, state.opt_state, state.counters, total, scalars).compile()
            except Exception as error:  # noqa: BLE001 its first call raises it again, where it is reported
                logging.info("the update cannot be compiled ahead: %s: %s", type(error).__name__, error)

        thread = threading.Thread(target=compile_it, name="compile", daemon=True)
        thread.start()
        return thread

    def local_step(
        self,
        parameters: Parameters,
        opt_state: Any,
        moved: Any,
        gradient: Any,
        *,
        at: int,
        factor: float,
        replaces: bool = False,
    ) -> tuple[Parameters, Any, Any]:
        """Return parameters, optax state and `moved` after a worker's own update; nothing is donated.

        Args:
          parameters: parameters before the update.
          opt_state: the worker's optimizer state.
          moved: difference that its steps have taken off the parameters since their start, like `params`; None at the
            start.
          gradient: contribution of one unit.
          at: units that the schedule reads.
          factor: on the schedule's learning rate.
          replaces: whether `moved` is to be where the steps came to instead.
        """
        before = None if replaces else moved
        return self._local_step(
            parameters, opt_state, before, gradient, (np.int32(at), np.float32(factor)), replaces=replaces
        )

    @staticmethod
    def difference(contribution: Any, moved: Any) -> Any:
        """Return the contribution that says `moved` in place of the gradient of `contribution`, the last one's."""
        return {**contribution, "floats": {**contribution["floats"], "grads": moved}}

    def combine(self, parameters: Parameters, contribution: Any, blend: float, replaces: bool) -> Parameters:
        """Return parameters less a difference, or in its place, with a share of its model statistics."""
        return self._combine(parameters, contribution, np.float32(blend), replaces=replaces)

    def _without_optimizer(
        self, state: TrainState, total: Any, scalars: tuple[Any, Any, Any], change: Change
    ) -> TrainState:
        outer, replaces = (None if isinstance(change, str) else change), change == "replace"
        momentum = state.protocol_state[outer.name] if outer else None
        rate, decay = (np.float32(outer.rate), np.float32(outer.momentum)) if outer else (None, None)
        parameters = Parameters(state.params, state.model_state)
        parameters, momentum, counters = self._outer_update(
            parameters, momentum, state.counters, total, (*scalars, rate, decay), replaces=replaces
        )
        protocol_state = {**state.protocol_state, outer.name: momentum} if outer else state.protocol_state
        return TrainState(parameters.params, state.opt_state, parameters.model_state, protocol_state, counters)

    def _rounded_parameters(self, parameters: Parameters) -> Parameters:
        return parameters._replace(params=rounded(widened(parameters.params, self.parameters.params)))

    # A compiled program takes trees by position: its keyword arguments are static. Numbers travel as one tree.

    def _outer_program(self, parameters, momentum, counters, total, scalars, *, replaces: bool):
        params, model_state = parameters
        units, factor, blend, rate, decay = scalars
        weight = total["floats"]["weight"]
        taken = jax.tree.map(lambda d: factor * (d / weight), total["floats"]["grads"])
        if momentum is not None:
            after: Any
            taken, after = optax.trace(decay, nesterov=True).update(taken, optax.TraceState(momentum))
            momentum = after.trace
            taken = jax.tree.map(lambda d: rate * d, taken)
        params = jax.tree.map(lambda p, d: (d if replaces else p - d).astype(p.dtype), params, taken)
        model_state = _merged(model_state, total, blend)
        counters = {"units": counters["units"] + units, "updates": counters["updates"] + 1}
        return Parameters(params, model_state), momentum, counters

    def _mean_grads(self, total: dict, params: Any) -> Any:
        """Return the mean gradient as the optimizer takes it: in the parameters' types, or its masters'."""
        weight = total["floats"]["weight"]
        if self.optimizer.master:
            return jax.tree.map(lambda g: g / weight, total["floats"]["grads"])
        return jax.tree.map(lambda g, p: (g / weight).astype(p.dtype), total["floats"]["grads"], params)

    def _local_program(self, parameters, opt_state, moved, gradient, scalars, *, replaces: bool):
        params, model_state = parameters
        at, factor = scalars
        rate = self.optimizer.learning_rate_after(at, self.unit_size, self.workload) * factor
        grads = self._mean_grads(gradient, params)
        updates, opt_state = self.optimizer.update(grads, opt_state, params, rate, self._momentum_share(at))
        params = jax.tree.map(lambda p, u: jnp.asarray(p + u).astype(p.dtype), params, updates)
        if replaces:  # and the updates have no other use, so that XLA rounds as in a plain loop
            moved = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        else:
            taken = jax.tree.map(lambda u: -u.astype(jnp.float32), updates)
            moved = taken if moved is None else jax.tree.map(jnp.add, moved, taken)
        model_state = _merged(model_state, gradient, jnp.float32(1.0))
        return Parameters(params, model_state), opt_state, moved

    def _update_program(self, parameters, opt_state, counters, total, scalars):
        params, model_state = parameters
        units, factor, blend = scalars
        total = summed_up(total)
        applied = counters["units"]
        rate = self.optimizer.learning_rate_after(applied, self.unit_size, self.workload) * factor
        grads = self._mean_grads(total, params)
        updates, opt_state = self.optimizer.update(grads, opt_state, params, rate, self._momentum_share(applied))
        params = jax.tree.map(lambda p, u: jnp.asarray(p + u).astype(p.dtype), params, updates)
        model_state = _merged(model_state, total, blend)
        counters = {"units": applied + units, "updates": counters["updates"] + 1}
        return Parameters(params, model_state), opt_state, counters


def _announced(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a program to compile, which notifies the worker of the calling thread each time it is compiled.

    JAX calls a program to trace it, for each new signature of its arguments (a batch of another shape, say), and never
    again: a call of what is compiled already costs nothing more.
    """

    @functools.wraps(program)
    def traced(*args: Any, **named: Any) -> Any:
        current().compiling()
        return program(*args, **named)

    if isinstance(program, functools.partial):  # which has no name; a compiled program is known by it
        traced.__name__ = program.func.__name__
    return traced


def _unit_gradient(
    task: Task, clip: float | None, micro_steps: int, parameters: Parameters, batch: dict, unit, key, frozen=None
) -> dict:
    """Compute the gradient of one unit on that unit alone: its own batch statistics, its own mask mean."""
    params, model_state = parameters
    data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
    batch = task.source.augment(batch, data_key)

    def loss(params):
        return loss_and_contribution(task, params, model_state, batch, model_key, frozen=frozen)

    if micro_steps == 1:
        (value, (stats, counts)), grads = jax.value_and_grad(loss, has_aux=True)(params)
    else:
        found = gradient_in_parts(task, params, model_state, batch, model_key, frozen=frozen, micro_steps=micro_steps)
        (value, (stats, counts)), grads = found
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    if clip is not None:
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-30)), grads)
    return {
        "floats": {
            "grads": grads,
            "loss": value.astype(jnp.float32),
            "stats": stats,
            "weight": jnp.float32(1.0),
        },
        "ints": counts,
    }


def traced_unit_gradient(
    task: Task, clip: float | None, parameters: Parameters, batch: dict, micro_steps: int = 1
) -> ClosedJaxpr:
    """Return the program of a unit's gradient as it is traced, for shapes of parameters and batch."""
    program = functools.partial(_unit_gradient, task, clip, micro_steps)
    return jax.make_jaxpr(program)(parameters, batch, jnp.int32(0), jax.random.key(0), task.abstract_frozen)


def _rounded_grads(contribution: dict) -> dict:
    """Return a contribution as it travels with a narrow wire."""
    floats = contribution["floats"]
    return {**contribution, "floats": {**floats, "grads": rounded(floats["grads"])}}


def _total(contributions: tuple) -> dict:
    """Return the ordered sum of contributions: floats add up in member order, integers take the maximum."""
    return functools.reduce(_add, contributions)


def _without_loss(total: dict) -> dict:
    """Return what an update reads of a total: its loss is another number in each step."""
    return {**total, "floats": {name: part for name, part in total["floats"].items() if name != "loss"}}


def summed_up(total: dict) -> dict:
    """Return a total with its shares summed up, if it has some; the barrier keeps the bits of a program of its own."""
    if "shares" not in total:
        return total
    shares, present = total["shares"]

    def summed(leaf: jax.Array) -> jax.Array:
        here = present.reshape(-1, *[1] * (leaf.ndim - 1))
        if leaf.dtype == np.float32:
            return jnp.where(here, leaf, 0.0).sum(0)
        return jnp.where(here, leaf, np.iinfo(leaf.dtype).min).max(0)

    found = jax.lax.optimization_barrier(jax.tree.map(summed, shares))
    return {**found, "floats": {**found["floats"], **total["floats"]}}


def _add(left: dict, right: dict) -> dict:
    """Return the sum of two contributions (see `_total`)."""
    return {
        "floats": jax.tree.map(jnp.add, left["floats"], right["floats"]),
        "ints": jax.tree.map(jnp.maximum, left["ints"], right["ints"]),
    }


def _weigh(contribution: dict, weight: jax.Array) -> dict:
    """Return a contribution whose gradients count `weight` times."""
    grads = jax.tree.map(lambda g: g * weight, contribution["floats"]["grads"])
    return {**contribution, "floats": {**contribution["floats"], "grads": grads}}


MEAN_SQUARE_SHARE = 0.95
"""Of the moving mean that the newest square leaves as it is, m."""
MEAN_SQUARE_FLOOR = 1e-7


def _compensate(contribution: dict, base: Any, now: Any, strength: jax.Array) -> dict:
    """Add strength * g * g * (now - base) to the gradients g."""
    moved = jax.tree.map(lambda n, b: n.astype(jnp.float32) - b.astype(jnp.float32), now, base)
    grads = jax.tree.map(lambda g, d: g + strength * g * g * d, contribution["floats"]["grads"], moved)
    return {**contribution, "floats": {**contribution["floats"], "grads": grads}}


def _adapt(contribution: dict, base: Any, now: Any, strength: jax.Array, squares: Any) -> tuple[dict, Any]:
    """Compensate with a strength for each entry by the moving mean of its squares; returns that mean, too."""
    share, grads = MEAN_SQUARE_SHARE, contribution["floats"]["grads"]
    squares = jax.tree.map(lambda v, g: share * v + (1.0 - share) * g * g, squares, grads)
    moved = jax.tree.map(lambda n, b: n.astype(jnp.float32) - b.astype(jnp.float32), now, base)
    grads = jax.tree.map(
        lambda g, d, v: g + strength / jnp.sqrt(v + MEAN_SQUARE_FLOOR) * g * g * d, grads, moved, squares
    )
    return {**contribution, "floats": {**contribution["floats"], "grads": grads}}, squares


def _combine(parameters: Parameters, contribution: Any, blend: jax.Array, *, replaces: bool) -> Parameters:
    """Return a version less what one contribution takes off it, before the server has done so."""
    params, model_state = parameters
    floats = contribution["floats"]
    params = jax.tree.map(lambda p, d: (d if replaces else p - d).astype(p.dtype), params, floats["grads"])
    return Parameters(params, _merged(model_state, contribution, blend))


def _mean_state(states: tuple) -> Any:
    """Return the mean of optax states in their order; what counts, their integers, takes the maximum."""

    def merge(first: jax.Array, *others: jax.Array) -> jax.Array:
        if not _is_float(first):
            return functools.reduce(jnp.maximum, others, first)
        total = functools.reduce(jnp.add, (leaf.astype(jnp.float32) for leaf in others), first.astype(jnp.float32))
        return (total / len(states)).astype(first.dtype)

    return jax.tree.map(merge, *states)


def _merged(model_state: Any, total: dict, blend: jax.Array) -> Any:
    """Return the model state after an update with a sum of contributions (see `model_state.merged`)."""
    weight = total["floats"]["weight"]
    stats = jax.tree.map(lambda stat: stat / weight, total["floats"]["stats"])
    return merged(model_state, stats, total["ints"], blend)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
