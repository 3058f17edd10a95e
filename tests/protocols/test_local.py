"""Workers that make local updates: what one of them, or a round of all, comes to, beside a plain loop."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync import Trainer, protocols
from hybridsync.core.errors import ConfigError
from hybridsync.protocols.base import (
    Arrival,
    Await,
    Begin,
    Combine,
    Compute,
    Difference,
    Effect,
    Lease,
    Outer,
    Pull,
    PushOnly,
    PushPull,
    Release,
    Step,
    Version,
)
from hybridsync.protocols.psplus import LOWEST_FACTOR, PsPlus
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.local_updates import Gradient, Stepper
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.state import TrainState, initial_state
from hybridsync.training.task import Task
from tests.tasks import (
    UNIT_SIZE,
    adamw,
    batchnorm_task,
    copied,
    mlp_task,
    momentum_sgd,
    plain_sgd,
    programs_of,
)
from tests.trainers import NEVER, mlp_trainer

UNITS = 60


def plain_state(task: Task, optimizer: Optimizer, units: int = UNITS) -> tuple[Any, Any]:
    """Return parameters and model state of a loop of two compiled programs: gradient, and optax's update applied."""
    programs = programs_of(task, optimizer)
    state: TrainState = initial_state(task, optimizer, 0)
    params, opt_state, model_state = state.params, state.opt_state, state.model_state
    key = jax.random.key(0)

    @jax.jit
    def gradient(params, model_state, batch, unit):
        data_key, model_key = jax.random.split(jax.random.fold_in(key, unit))
        batch = task.source.augment(batch, data_key)
        return jax.grad(lambda p: task.loss(p, model_state, batch, model_key), has_aux=True)(params)

    @jax.jit
    def update(grads, opt_state, params, unit):
        updates, opt_state = optimizer.update(
            grads, opt_state, params, optimizer.learning_rate_at(unit * programs.unit_size)
        )
        return optax.apply_updates(params, updates), opt_state

    for unit in range(units):
        grads, (_, model_state) = gradient(params, model_state, programs.batch(unit), np.int32(unit))
        params, opt_state = update(grads, opt_state, params, np.int32(unit))
    return params, model_state


def decaying() -> Optimizer:
    """Return SGD whose rate halves with every fourth of the workload."""
    return Optimizer(
        lambda learning_rate, momentum: optax.sgd(learning_rate, momentum),
        learning_rate=lambda examples: 0.02 * 0.5 ** (examples // 120).astype(jnp.float32),
        momentum=0.9,
    )


EACH = [
    *[("psplus", mlp_task, momentum_sgd), ("psplus", batchnorm_task, adamw), ("psplus", mlp_task, decaying)],
    ("psplus(overlap=false)", mlp_task, momentum_sgd),
    *[("localsgd(steps=7)", batchnorm_task, momentum_sgd), ("localsgd(steps=7)", mlp_task, adamw)],
    ("localsgd(steps=7)", batchnorm_task, decaying),
]
"""Each plan with each optimizer and each task."""


@pytest.mark.parametrize(("plan", "task", "make"), EACH)
def test_one_worker_equals_a_plain_loop_bit_for_bit(plan, make, task):
    trainer = Trainer(
        task(), make(), workload=UNITS, plan=plan, workers=1, unit_size=UNIT_SIZE, checkpoint=NEVER, progress=False
    )
    result = trainer.fit()
    expected = plain_state(task(), make())
    found = result.state.params, result.state.model_state
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@functools.cache
def whole() -> Any:
    """Return the parameters of a worker whose steps nobody modulates."""
    return mlp_trainer("psplus", UNITS, decaying(), workers=1).fit().state.params


@pytest.mark.parametrize("modulation", ["schedule", "staleness", "progress", "none"])
def test_one_worker_is_modulated_by_nobody(modulation):
    result = mlp_trainer(f"psplus(modulation={modulation})", UNITS, decaying(), workers=1).fit()
    jax.tree.map(np.testing.assert_array_equal, result.state.params, whole())


def test_a_round_of_one_plain_step_of_each_is_a_step_in_lock_step():
    programs, workers = programs_of(mlp_task(), plain_sgd(0.02)), 4
    state = initial_state(mlp_task(), plain_sgd(0.02), 0)
    start = Version(0, Parameters(state.params, state.model_state))
    gradients, differences = [], []
    for unit in range(workers):
        stepper = Stepper(programs, protocols.parse("localsgd"), workers, state.opt_state)
        gradients.append(programs.gradient(start.parameters, unit))
        end = stepper.step(Step(Gradient((unit,), 0, gradients[-1]), start))
        differences.append(stepper.difference(Difference(start, end)).contribution)
    local = programs.update(state, programs.sum(differences), units=4, factor=1.0, blend=1.0, change="add")
    mesh = programs.update(copied(state), programs.sum(gradients), units=4, factor=4.0, blend=1.0)
    for mine, theirs in zip(jax.tree.leaves(local.params), jax.tree.leaves(mesh.params), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_diloco_without_momentum_is_localsgd_to_rounding():
    plain = mlp_trainer("diloco(steps=4,outer_rate=1,outer_momentum=0,scale=0)", 64, workers=1).fit()
    local = mlp_trainer("localsgd(steps=4)", 64, workers=1).fit()
    for mine, theirs in zip(jax.tree.leaves(plain.state.params), jax.tree.leaves(local.state.params), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-6)


def test_an_outer_momentum_waits_while_other_protocols_run():
    alone = mlp_trainer("diloco(steps=4)", 32, workers=1).fit()
    through = mlp_trainer("diloco(steps=4):50%,bsp", 64, workers=1).fit()
    kept, waited = alone.state.protocol_state["diloco"], through.state.protocol_state["diloco"]
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(kept)) > 0
    jax.tree.map(np.testing.assert_array_equal, waited, kept)


def test_the_optimizer_states_of_all_make_up_the_next_phases():
    """A counter takes the maximum, a fourth of the steps or more; another phase goes on from there."""
    result = mlp_trainer("localsgd(steps=4)", 64).fit()
    count = int(result.state.opt_state.count)
    assert 16 <= count < 64
    further = mlp_trainer("localsgd(steps=4):50%,asp", 64).fit()
    assert int(further.state.opt_state.count) >= 8 + 32


VERSIONS = Version(10, None, own=2), Version(16, None, own=3, fastest=12)
"""One update of the worker's own lies between them, and five of others."""


@pytest.mark.parametrize(
    ("modulation", "factor"), [("schedule", 1.0), ("none", 1.0), ("staleness", 3 / 5), ("progress", 0.25)]
)
def test_the_modulations_read_the_progress_of_a_version(modulation, factor):
    assert PsPlus(modulation=modulation)._factor(*VERSIONS, num_workers=4) == factor
    assert PsPlus(modulation=modulation)._factor(VERSIONS[0], VERSIONS[0], num_workers=4) == 1.0


@pytest.mark.parametrize(("workers", "factor"), [(1, 1 / 5), (2, 1 / 5), (6, 1.0), (7, 1.0)])
def test_by_staleness_only_the_stale_are_damped_and_alike_workers_are_not(workers, factor):
    """Five updates of others lie between the versions: among six workers that is one of each of them."""
    assert PsPlus(modulation="staleness")._factor(*VERSIONS, num_workers=workers) == factor


def test_who_is_far_behind_still_moves():
    behind = Version(9, None, own=0, fastest=9)
    assert PsPlus(modulation="progress")._factor(VERSIONS[0], behind, num_workers=4) == LOWEST_FACTOR


@pytest.mark.parametrize("num_own", [0, 1, 2])
def test_how_many_updates_of_its_own_lie_between_two_versions_damps_nobody(num_own):
    versions = Version(10, None), Version(13 + num_own, None, own=num_own)
    assert PsPlus(modulation="staleness")._factor(*versions, num_workers=4) == 1.0


def effects_of(num_units: int, own: Any = lambda number: 0) -> list[Effect]:
    """Return what a worker of four does; `own` says how many of its units the pull of a number brings.

    A push is answered with all that were pushed by then.
    """
    program, units = PsPlus().worker_program(4), iter([*((unit,) for unit in range(num_units)), None])
    effects, num_pulls, num_pushes, num_begun = [next(program)], 0, 0, 0
    while True:
        effect = effects[-1]
        if isinstance(effect, Lease):
            result = next(units)
        elif isinstance(effect, Begin):
            num_begun += isinstance(effect.effect, PushOnly)
            result = effect.effect
        elif isinstance(effect, Await) and isinstance(effect.pending, PushOnly):
            num_pushes += 1
            result = Version(100, None, own=num_pushes, fastest=100)
        elif isinstance(effect, Await):
            num_pulls += 1
            result = Version(num_pulls, f"version {num_pulls}", own=own(num_pulls), fastest=num_pulls)
        else:
            result = f"{type(effect).__name__} {num_begun}"
        try:
            effects.append(program.send(result))
        except StopIteration:
            return effects


def test_a_push_and_a_pull_are_in_flight_together_and_a_unit_is_computed_meanwhile():
    in_flight, seen = set(), []
    for effect in effects_of(4):
        if isinstance(effect, Begin):
            assert type(effect.effect) not in in_flight, "one transfer in each direction"
            in_flight.add(type(effect.effect))
        elif isinstance(effect, Await):
            in_flight.remove(type(effect.pending))
        elif isinstance(effect, Compute):
            seen.append(set(in_flight))
    assert seen == [{Pull}, *[{Pull, PushOnly}] * 3]
    assert not in_flight


def test_the_rate_is_modulated_by_the_newest_version_at_hand_when_the_push_begins():
    effects = effects_of(3, own=lambda number: 1)
    pushes = [effect.effect for effect in effects if isinstance(effect, Begin) and isinstance(effect.effect, PushOnly)]
    factors = [effect.factor for effect in effects if isinstance(effect, Step)]
    assert [push.newest.sequence for push in pushes] == [2, 3, 4]
    assert factors == [1 / 2, 1 / 3, 1 / 4]


@pytest.mark.parametrize(
    ("lacking", "taken_off"),
    [
        (1, [("Difference 0",), ("Difference 1",), ("Difference 2",)]),
        (2, [("Difference 0",), ("Difference 0", "Difference 1"), ("Difference 1", "Difference 2")]),
    ],
)
def test_what_a_version_lacks_of_a_workers_pushes_is_taken_off_it(lacking, taken_off):
    """A pull and the push that began beside it come to the server in either order: its version says in which."""
    effects = effects_of(3, own=lambda number: max(0, number - lacking - 1))
    assert [effect.differences for effect in effects if isinstance(effect, Combine)] == taken_off


def test_each_difference_that_a_version_lacks_counts_as_progress_and_is_taken_off():
    programs, optimizer = programs_of(mlp_task(), plain_sgd(0.02)), plain_sgd(0.02)
    state = initial_state(mlp_task(), optimizer, 0)
    version = Version(3, Parameters(state.params, state.model_state), units=40)
    stepper = Stepper(programs, protocols.parse("psplus"), 4, state.opt_state)
    differences = []
    for unit in range(2):
        end = stepper.step(Step(Gradient((unit,), 3, programs.gradient(version.parameters, unit)), version))
        differences.append(stepper.difference(Difference(version, end)))
    both = stepper.combine(Combine(version, tuple(differences)))
    first = stepper.combine(Combine(version, (differences[0],)))
    again = stepper.combine(Combine(Version(3, first.parameters, units=first.at), (differences[1],)))
    assert (both.sequence, both.at, first.at) == (3, 48, 44)
    jax.tree.map(np.testing.assert_array_equal, both.parameters, again.parameters)


def test_the_blocking_twin_computes_on_what_the_reply_to_its_push_brought():
    effects = [type(effect) for effect in played(PsPlus(overlap=False))]
    assert effects == [Pull, *[Lease, Compute, Step, Difference, PushPull] * 2, Lease]


def played(protocol):
    program, units = protocol.worker_program(4), iter([(7,), (8,), None])
    effect = next(program)
    while True:
        yield effect
        result = next(units) if isinstance(effect, Lease) else Version(3, "version")
        try:
            effect = program.send(result)
        except StopIteration:
            return


def test_without_a_gate_nobody_waits_and_with_one_the_reply_does():
    pushes = [Arrival(number, 0, (number,), number) for number in range(9)]
    ungated, gated = protocols.parse("psplus").server_rule((0, 1)), protocols.parse("psplus(staleness=1)")
    assert all(Release(push.push_id) in ungated.on_push(push) for push in pushes)
    rule = gated.server_rule((0, 1))
    assert [Release(push.push_id) in rule.on_push(push) for push in pushes[:3]] == [True, False, False]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("localsgd(steps=0)", "would never push"),
        ("localsgd(scale=-1)", "does not descend"),
        ("localsgd(scale=nan)", "finite factor"),
        ("diloco(outer_rate=nan)", "finite rate"),
        ("diloco(outer_rate=0)", "does not descend"),
        ("diloco(outer_momentum=1)", "does not descend"),
        ("psplus(staleness=-2)", "0 or more, or -1 for no gate"),
        ("psplus(modulation=loud)", "progress, staleness, schedule, none"),
    ],
)
def test_arguments_that_cannot_work_are_refused(spec, named):
    with pytest.raises(ConfigError, match=named):
        protocols.parse(spec).server_rule((0, 1))


def test_the_rates_of_updates_and_of_own_steps():
    assert [protocols.parse(name).lr_factor(1, 4) for name in ("psplus", "localsgd", "diloco")] == [4.0, 4.0, 1.0]
    assert [protocols.parse(name).change(4) for name in ("psplus", "localsgd")] == ["add", "add"]
    assert [protocols.parse(name).change(1) for name in ("psplus", "localsgd")] == ["replace", "replace"]
    assert protocols.parse("diloco").change(4) == Outer("diloco", 0.7, 0.9)
    assert protocols.parse("psplus(staleness=2)").staleness_bound(4) == 3 * 7 + 2
    assert protocols.parse("psplus(staleness=2,overlap=false)").staleness_bound(4) == 3 * 5
    assert protocols.parse("psplus").staleness_bound(4) is None
