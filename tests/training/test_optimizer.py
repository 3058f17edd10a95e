"""Optimizers: what is accepted, what is refused by name, and how the rate moves."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync.config import OptimizerConfig, ScheduleConfig
from hybridsync.core.errors import OptimizerError
from hybridsync.training.optimizer import Optimizer, from_config, schedule

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
GRADS = {"w": jnp.full((3, 2), 0.5), "b": jnp.ones(2)}


def with_extra_argument(learning_rate):
    def update(updates, state, params, value):
        return updates, state

    return optax.GradientTransformationExtraArgs(optax.sgd(learning_rate).init, cast(Any, update))


# What is refused here is what pyright refuses, too: each time the argument is of another type.
REFUSED = [
    # how it is made, what the message names
    (lambda: Optimizer(cast(Any, optax.sgd(0.1)), learning_rate=0.1), "a ready GradientTransformation"),
    (lambda: Optimizer(cast(Any, optax.MultiSteps(optax.sgd(0.1), 2)), learning_rate=0.1), "a MultiSteps"),
    (lambda: Optimizer(cast(Any, "sgd"), learning_rate=0.1), "a str"),
    (lambda: Optimizer(lambda rate: optax.sgd(rate), learning_rate=0.1), "no learning_rate"),
    (
        lambda: Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=0.1, momentum=0.9),
        "'momentum'",
    ),
    (lambda: Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=0.1, clip=0.0), "0.0"),
    (
        lambda: Optimizer(optax.sgd, learning_rate=0.1, per="steps"),  # pyright: ignore[reportArgumentType]
        "per is 'steps'; a rate counts per 'examples' or 'units'",
    ),
]

REFUSED_AT_INIT = [
    # factory, what the message names
    (
        lambda learning_rate: optax.MultiSteps(optax.sgd(learning_rate), 2).gradient_transformation(),
        "MultiStepsState",
    ),
    (
        lambda learning_rate: optax.contrib.schedule_free(optax.sgd(learning_rate), learning_rate),
        "ScheduleFreeState",
    ),
    (lambda learning_rate: optax.lookahead(optax.sgd(learning_rate), 5, 0.5), "Lookahead"),
    (with_extra_argument, "extra arguments"),
    (
        lambda learning_rate: optax.sgd(optax.cosine_decay_schedule(0.1, 100)),
        "ScaleByScheduleState: it counts update steps",
    ),
    (
        lambda learning_rate: optax.chain(
            optax.scale_by_adam(), optax.scale_by_schedule(lambda at: -learning_rate / at)
        ),
        "ScaleByScheduleState",
    ),
    (
        lambda learning_rate: optax.adamw(learning_rate, weight_decay=optax.linear_schedule(0.1, 0.0, 100)),
        "WeightDecaySchedule",
    ),
    (
        lambda learning_rate: optax.multi_transform(
            {"all": optax.inject_hyperparams(optax.sgd)(lambda at: learning_rate / (at + 1))}, {"w": "all", "b": "all"}
        ),
        "WrappedScheduleState",
    ),
    (lambda learning_rate: optax.sgd(learning_rate, 1 / 0), "test_optimizer.py, line"),
]


@pytest.mark.parametrize(("make", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_is_no_factory_is_refused_with_what_to_pass(make, named):
    with pytest.raises(OptimizerError) as refusal:
        make()
    assert named in str(refusal.value)


@pytest.mark.parametrize(("factory", "named"), REFUSED_AT_INIT, ids=[named for _, named in REFUSED_AT_INIT])
def test_what_cannot_be_trained_with_is_refused_by_name(factory, named):
    with pytest.raises(OptimizerError) as refusal:
        Optimizer(factory, learning_rate=0.1).init(PARAMS)
    assert named in str(refusal.value)


SCHEDULES_REFUSED = [
    # schedule, what the message names
    (lambda progress: 0.1 if progress < 10 else 0.01, "needs the value of its argument in Python"),
    (lambda progress: 0.1 / np.sqrt(progress + 1), "needs the value of its argument in Python"),
    (lambda progress: 0.1 * float(progress), "needs the value of its argument in Python"),
    (lambda progress: [0.1, 0.01][progress], "needs the value of its argument in Python"),
    (lambda progress: None, "returns None; return one number"),
    (lambda progress: "0.1", "raised"),
    (lambda progress: (0.1, 0.2), "returns (ShapeDtypeStruct"),
    (lambda progress: jnp.array([0.1]), "returns float32[1]; return one number"),
    (lambda progress: progress > 0, "returns bool[]; return one number"),
    (lambda progress: {}["rate"], "test_optimizer.py, line"),
    (lambda progress: jnp.nan * progress, "is nan; give a finite number"),
    (lambda: 0.1, "raised"),
    (None, "learning_rate is None"),
    ("0.1", "learning_rate is '0.1'"),
    (np.ones(2), "learning_rate is array"),
    (float("nan"), "learning_rate is nan"),
    (float("inf"), "learning_rate is inf"),
]


@pytest.mark.parametrize(("learning_rate", "named"), SCHEDULES_REFUSED)
def test_a_rate_that_no_step_can_read_is_refused_where_the_optimizer_is_made(learning_rate, named):
    with pytest.raises(OptimizerError) as refusal:
        Optimizer(optax.sgd, learning_rate=learning_rate)
    assert named in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(("per", "place"), [("examples", "at 400 of 800 examples"), ("units", "at 50 of 100 units")])
def test_a_rate_that_is_not_finite_later_in_the_run_is_refused_with_the_place(per, place):
    middle = 50 if per == "units" else 400
    optimizer = Optimizer(optax.sgd, learning_rate=lambda at: jnp.where(at < middle, 0.1, jnp.nan), per=per)
    with pytest.raises(OptimizerError, match=f"gives nan {place}"):
        optimizer.sampled_rates(unit_size=8, workload=100)
    assert optimizer.sampled_rates(unit_size=8, workload=20) == [np.float32(0.1)] * 32


def matrices(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def test_a_function_among_the_hyperparameters_reaches_the_factory_as_a_function():
    masked = Optimizer(optax.adamw, learning_rate=0.01, weight_decay=0.5, mask=matrices, nesterov=True)
    plain = optax.adamw(0.01, weight_decay=0.5, mask=matrices, nesterov=True)
    updates, state = jax.jit(masked.update)(GRADS, masked.init(PARAMS), PARAMS, jnp.float32(0.01))
    expected, _ = jax.jit(plain.update)(GRADS, plain.init(PARAMS), PARAMS)
    jax.tree.map(lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-5), updates, expected)
    assert set(state.hyperparams) >= {"learning_rate", "weight_decay"} and "mask" not in state.hyperparams
    assert masked.stated_values()["mask"].endswith(".matrices")


@pytest.mark.parametrize(
    ("factory", "values", "named"),
    [
        (optax.adamw, {"weight_decay": optax.linear_schedule(0.1, 0.0, 100)}, "WeightDecaySchedule"),
        (optax.sgd, {"momentum": lambda at: 0.9}, "momentum as a function"),
        (optax.adamw, {"mask": lambda params: {}[0]}, "mask as a function"),
    ],
)
def test_a_function_that_the_factory_has_no_use_for_is_refused_by_name(factory, values, named):
    with pytest.raises(OptimizerError) as refusal:
        Optimizer(factory, learning_rate=0.1, **values).init(PARAMS)
    assert named in str(refusal.value) and "\n" not in str(refusal.value)


def nested(learning_rate, momentum, decay=0.0):
    decayed = optax.inject_hyperparams(optax.add_decayed_weights)(weight_decay=decay)
    return optax.chain(decayed, optax.sgd(learning_rate, momentum))


@pytest.mark.parametrize(
    ("factory", "saved", "asked"),
    [
        (optax.sgd, {"momentum": 0.9, "nesterov": False}, {"momentum": 0.0, "nesterov": True}),
        (
            optax.adam,
            {"b1": 0.9, "b2": 0.99, "eps": 1e-3},
            {"b1": 0.5, "b2": np.float32(0.9), "eps": jnp.float32(1e-8)},
        ),
        (optax.adamw, {"weight_decay": 1, "mask": None}, {"weight_decay": 0, "mask": None}),
        (nested, {"momentum": 0.9, "decay": 0.1}, {"momentum": 0.5, "decay": 0.0}),
    ],
)
def test_a_saved_optax_state_trains_with_the_values_asked_for_and_keeps_the_rest(factory, saved, asked):
    before, now = (Optimizer(factory, learning_rate=0.1, **values) for values in (saved, asked))
    _, state = before.update(GRADS, before.init(PARAMS), PARAMS, jnp.float32(0.02))
    found = now.with_own_values(jax.device_get(state), PARAMS)
    fresh = now.init(PARAMS)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert found.hyperparams == {**fresh.hyperparams, "learning_rate": np.float32(0.02)}
    if factory is nested:
        assert float(found.inner_state[0].hyperparams["weight_decay"]) == 0.0
        found, state = (kept._replace(inner_state=kept.inner_state[1]) for kept in (found, state))
    jax.tree.map(np.testing.assert_array_equal, found.inner_state, state.inner_state)


def test_the_message_about_a_ready_transformation_shows_working_code():
    with pytest.raises(OptimizerError) as refusal:
        Optimizer(cast(Any, optax.adam(0.1)), learning_rate=0.1)
    assert "for example Optimizer(optax.adamw, learning_rate=1e-3)" in str(refusal.value)
    Optimizer(optax.adamw, learning_rate=1e-3)


IGNORING = {
    "a constant": lambda learning_rate, momentum: optax.sgd(1e-9),
    "a constant beside momentum": lambda learning_rate, momentum: optax.sgd(0.1, momentum),
    "no step at all": lambda learning_rate, momentum: optax.set_to_zero(),
}


@pytest.mark.parametrize("name", IGNORING)
def test_a_factory_that_ignores_the_learning_rate_is_refused_with_what_to_write(name):
    optimizer = Optimizer(IGNORING[name], learning_rate=2.0, momentum=0.9)
    for params in (PARAMS, jax.eval_shape(lambda: PARAMS)):
        with pytest.raises(OptimizerError, match="takes learning_rate and does not use it") as refusal:
            optimizer.check_rate(params)
    assert "lambda learning_rate: optax.sgd(learning_rate)" in str(refusal.value)


FROZEN_IN_PART = {"w": "trained", "b": "frozen"}


@pytest.mark.parametrize(
    "factory",
    [
        optax.adam,
        lambda learning_rate: optax.chain(optax.clip_by_global_norm(1.0), optax.add_noise(learning_rate, 0.5, 0)),
        lambda learning_rate: optax.multi_transform(
            {"trained": optax.sgd(learning_rate), "frozen": optax.set_to_zero()}, FROZEN_IN_PART
        ),
        lambda learning_rate: optax.GradientTransformation(
            optax.sgd(learning_rate).init, jax.jit(optax.sgd(learning_rate).update)
        ),
    ],
)
def test_a_factory_whose_updates_follow_the_rate_somewhere_is_accepted(factory):
    Optimizer(factory, learning_rate=0.1).check_rate(PARAMS)


@pytest.mark.parametrize(
    "factory",
    [
        lambda learning_rate: optax.sgd(float(learning_rate)),
        lambda learning_rate: optax.sgd(learning_rate if learning_rate > 0 else 0.1),
        lambda learning_rate: optax.sgd(np.asarray(learning_rate).item()),
    ],
)
def test_a_factory_that_needs_the_rates_value_in_python_is_told_so(factory):
    with pytest.raises(OptimizerError, match="needs the value of a hyperparameter in Python"):
        Optimizer(factory, learning_rate=0.1).init(PARAMS)


FACTORIES = {
    "sgd": (lambda learning_rate, momentum: optax.sgd(learning_rate, momentum), {"momentum": 0.9}),
    "sgd_itself": (optax.sgd, {"momentum": 0.9}),
    "adamw": (
        lambda learning_rate, weight_decay: optax.adamw(learning_rate, weight_decay=weight_decay),
        {"weight_decay": 0.01},
    ),
    "lion": (lambda learning_rate: optax.lion(learning_rate), {}),
    "chain": (lambda learning_rate: optax.chain(optax.clip(0.1), optax.rmsprop(learning_rate)), {}),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_updates_equal_those_of_the_plain_transformation_at_any_rate(name):
    factory, hyperparameters = FACTORIES[name]
    optimizer = Optimizer(factory, learning_rate=0.3, **hyperparameters)
    plain = factory(learning_rate=jnp.float32(0.07), **hyperparameters)
    state, wanted = optimizer.init(PARAMS), plain.init(PARAMS)
    for _ in range(3):
        updates, state = jax.jit(optimizer.update)(GRADS, state, PARAMS, jnp.float32(0.07))
        expected, wanted = jax.jit(plain.update)(GRADS, wanted, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
    assert float(state.hyperparams["learning_rate"]) == np.float32(0.07)


@pytest.mark.parametrize("name", [*FACTORIES, "adam_itself"])
def test_the_state_of_bfloat16_parameters_keeps_its_types(name):
    factory, hyperparameters = {**FACTORIES, "adam_itself": (optax.adam, {})}[name]
    optimizer = Optimizer(factory, learning_rate=0.3, **hyperparameters)
    params, grads = (jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree) for tree in (PARAMS, GRADS))
    before = optimizer.init(params)
    shares = [None, jnp.float32(0.5)] if "momentum" in hyperparameters else [None]
    for share in shares:
        _, after = jax.eval_shape(optimizer.update, grads, before, params, jnp.float32(0.1), share)
        assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, before)


SCHEDULES = [
    # schedule, share of the workload, factor
    (ScheduleConfig(), 0.9, 1.0),
    (ScheduleConfig("piecewise", (0.5, 0.75), (0.1, 0.01)), 0.4999, 1.0),
    (ScheduleConfig("piecewise", (0.5, 0.75), (0.1, 0.01)), 0.5, 0.1),
    (ScheduleConfig("piecewise", (0.5, 0.75), (0.1, 0.01)), 0.9, 0.01),
    (ScheduleConfig("cosine"), 0.0, 1.0),
    (ScheduleConfig("cosine"), 0.5, 0.5),
    (ScheduleConfig("cosine"), 1.0, 0.0),
    (ScheduleConfig(warmup=0.1), 0.0, 0.0),
    (ScheduleConfig(warmup=0.1), 0.05, 0.5),
    (ScheduleConfig(warmup=0.1), 0.5, 1.0),
    (ScheduleConfig("cosine", warmup=0.5), 0.25, 0.5 * 0.5 * (1 + np.cos(np.pi / 4))),
]


@pytest.mark.parametrize(("config", "share", "factor"), SCHEDULES)
def test_a_schedule_reads_examples_applied(config, share, factor):
    total = 100_000
    optimizer = Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=schedule(config, 0.2, total))
    for kind in (jnp.int32, jnp.float32):
        rate = jax.jit(optimizer.learning_rate_at)(kind(round(share * total)))
        assert rate.dtype == jnp.float32
        assert float(rate) == pytest.approx(0.2 * factor, abs=1e-6)


def test_a_rate_function_counts_examples_unless_it_is_told_to_count_units():
    seen = {}
    for per in ("examples", "units"):
        optimizer = Optimizer(optax.sgd, learning_rate=lambda progress: progress, per=per)
        seen[per] = float(optimizer.learning_rate_after(jnp.int32(30), unit_size=8, workload=100))
    assert seen == {"examples": 240.0, "units": 30.0}


@pytest.mark.parametrize(("workload", "dtype"), [(2**20, jnp.int32), (2**27, jnp.float32)])
def test_examples_beyond_what_an_int32_counts_are_counted_in_float32(workload, dtype):
    seen = []

    def rate(progress):
        seen.append(progress.dtype)
        return progress * 1e-9

    optimizer = Optimizer(optax.sgd, learning_rate=rate)
    end = optimizer.learning_rate_after(jnp.int32(workload), unit_size=64, workload=workload)
    assert seen[-1] == dtype
    assert float(end) == pytest.approx(workload * 64e-9, rel=1e-6)


def test_an_optax_schedule_over_units_reaches_its_end_with_the_workload():
    schedule_of_units = optax.linear_schedule(0.2, 0.0, transition_steps=100)
    optimizer = Optimizer(optax.sgd, learning_rate=schedule_of_units, per="units")
    rates = [
        float(optimizer.learning_rate_after(jnp.int32(units), unit_size=32, workload=100)) for units in (0, 50, 100)
    ]
    assert rates == pytest.approx([0.2, 0.1, 0.0])


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lion"])
def test_a_configuration_names_its_optimizer(name):
    optimizer = from_config(OptimizerConfig(name=name, learning_rate=0.1, clip=2.0), 100, 8)
    assert optimizer.clip == 2.0
    updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS, jnp.float32(0.1))
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, PARAMS)


def test_weight_decay_of_sgd_pulls_towards_zero():
    config = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.0, weight_decay=0.5)
    optimizer = from_config(config, 100, 8)
    updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS, jnp.float32(0.1))
    np.testing.assert_allclose(updates["w"], -0.1 * (0.5 + 0.5 * 1.0), rtol=1e-6)


def test_a_weight_decay_that_adam_would_not_read_is_refused():
    with pytest.raises(OptimizerError, match=r"weight_decay is 0\.1, but optimizer\.name is 'adam'.*choose adamw"):
        from_config(OptimizerConfig(name="adam", weight_decay=0.1), 100, 8)


def test_an_unknown_optimizer_is_refused_with_the_known_ones():
    with pytest.raises(OptimizerError, match=r"'sdg'.*adam, adamw, lion, sgd"):
        from_config(OptimizerConfig(name="sdg"), 100, 8)
