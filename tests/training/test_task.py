from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from hybridsync.core.errors import TaskError
from hybridsync.data import ArraySource, TallySource
from hybridsync.losses import cross_entropy, language_model
from hybridsync.models import MLP, DecoderLM, resnet
from hybridsync.training.model_state import check_model_state
from hybridsync.training.task import Task

pytestmark = pytest.mark.usefixtures("quickly_compiled")

KEY = jax.random.key(0)


def images(shape=(4, 4, 1), num_examples=16, num_classes=3):
    rng = np.random.RandomState(0)
    image = rng.randn(num_examples, *shape).astype(np.float32)
    return ArraySource("images", {"image": image, "label": np.arange(num_examples, dtype=np.int32) % num_classes})


def first_unit(source, unit_size=8):
    raw = source.batch(0, unit_size=unit_size, seed=0)
    return source.prepare({name: jnp.asarray(array) for name, array in raw.items()})


def all_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


class NnxNet(nnx.Module):
    """Every kind of variable a model may hold."""

    def __init__(self, rngs, dropout=0.5):
        self.layers = nnx.List([nnx.Linear(16, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.table = nnx.Param(jnp.arange(3))

    def __call__(self, x):
        self.calls[...] += 1
        x = self.dropout(self.norm(self.layers[0](x.reshape(x.shape[0], -1))))
        return self.layers[1](x)[:, self.table[...]]


class LinenNet(linen.Module):
    """The same in linen, with its way of telling training from inference."""

    dropout: float = 0.5

    @linen.compact
    def __call__(self, x, train: bool = False):
        calls = self.variable("counts", "calls", lambda: jnp.zeros((), jnp.int32))
        if train:
            calls.value += 1
        x = linen.Dense(8)(x.reshape(x.shape[0], -1))
        x = linen.BatchNorm(use_running_average=not train)(x)
        x = linen.Dropout(self.dropout, deterministic=not train)(x)
        return linen.Dense(3)(x)


def make(kind, **kwargs):
    if kind == "nnx":
        return Task.from_nnx(lambda rngs: NnxNet(rngs, **kwargs), images())
    return Task.from_linen(LinenNet(**kwargs), images())


both = pytest.mark.parametrize("kind", ["nnx", "linen"])


@both
def test_loss_and_gradient_are_finite_and_of_the_parameters_shapes(kind):
    task = make(kind)
    params, state = task.init(KEY)
    gradient = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (value, (metrics, _)), grads = gradient(params, state, first_unit(task.source), KEY)
    assert value.shape == ()
    assert all_finite((value, grads))
    assert 0 <= float(metrics["accuracy"]) <= 1
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, params)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads)) > 1e-3


@both
def test_training_updates_statistics_and_counters_but_keeps_the_states_shape(kind):
    task = make(kind)
    params, state = task.init(KEY)
    _, (_, after) = jax.jit(task.loss)(params, state, first_unit(task.source), KEY)
    before = jax.tree.leaves_with_path(state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert {str(leaf.dtype) for _, leaf in before} >= {"float32", "int32"}
    for (path, old), new in zip(before, jax.tree.leaves(after), strict=True):
        assert new.dtype == old.dtype
        if "table" not in jax.tree_util.keystr(path):
            assert not np.array_equal(old, new), path


@both
def test_what_dropout_drops_is_a_function_of_the_key(kind):
    task = make(kind)
    params, state = task.init(KEY)
    batch = first_unit(task.source)
    loss = jax.jit(lambda key: task.loss(params, state, batch, key)[0])
    assert loss(jax.random.key(1)) == loss(jax.random.key(1))
    assert len({float(loss(jax.random.key(k))) for k in range(4)}) == 4


@both
def test_without_dropout_the_key_changes_nothing(kind):
    task = make(kind, dropout=0.0)
    params, state = task.init(KEY)
    batch = first_unit(task.source)
    loss = jax.jit(lambda key: task.loss(params, state, batch, key)[0])
    assert loss(jax.random.key(1)) == loss(jax.random.key(2))


@both
def test_evaluation_sums_and_uses_the_running_statistics(kind):
    task = make(kind)
    params, state = task.init(KEY)
    batch = first_unit(task.source)
    assert task.evaluate is not None
    evaluate = jax.jit(task.evaluate)
    whole = evaluate(params, state, batch)
    halves = [evaluate(params, state, {n: x[part] for n, x in batch.items()}) for part in (slice(5), slice(5, 8))]
    assert float(whole["count"]) == 8
    for name in whole:
        assert float(whole[name]) == pytest.approx(sum(float(half[name]) for half in halves), rel=1e-5)


@both
def test_init_is_a_function_of_the_key_and_can_be_traced(kind):
    task = make(kind)
    one, again, other = (task.init(jax.random.key(k)) for k in (0, 0, 1))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, again))
    assert not jax.tree.all(jax.tree.map(np.array_equal, one, other))
    shapes = jax.eval_shape(task.init, KEY)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, one)


@both
def test_trees_are_dictionaries_with_text_keys(kind):
    for tree in make(kind).init(KEY):
        for path, leaf in jax.tree.leaves_with_path(tree):
            assert all(isinstance(entry, jax.tree_util.DictKey) and isinstance(entry.key, str) for entry in path)
            assert isinstance(leaf, jax.Array)


def test_only_float_params_of_nnx_are_learned_and_no_rng_is_stored():
    params, state = make("nnx").init(KEY)
    assert sorted(params) == ["layers", "norm"]
    assert sorted(state) == ["calls", "norm", "table"]


def test_eleven_layers_keep_their_order():
    task = Task.from_nnx(lambda rngs: MLP([16] * 11 + [3], rngs=rngs), images())
    params, state = task.init(KEY)
    x = first_unit(task.source)
    direct = MLP([16] * 11 + [3], rngs=nnx.Rngs(KEY))
    value, _ = task.loss(params, state, x, KEY)
    sums = cross_entropy(direct, x)
    assert float(value) == pytest.approx(float(sums["loss"] / sums["count"]), rel=1e-6)


def test_two_dropouts_of_one_model_drop_differently():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.scale = nnx.Param(jnp.ones(()))
            self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.scale * (self.first(x) - self.second(x))

    def difference(predict, batch):
        return {"count": 1, "loss": jnp.abs(predict(jnp.ones((64,)))).sum()}

    task = Task.from_nnx(Net, images(), difference)
    assert float(task.loss(*task.init(KEY), first_unit(task.source), KEY)[0]) > 0


def test_a_resnet_learns_its_batch_statistics():
    task = Task.from_nnx(lambda rngs: resnet(8, 3, rngs=rngs), images((8, 8, 3)))
    params, state = jax.jit(task.init)(KEY)
    value, (_, after) = jax.jit(task.loss)(params, state, first_unit(task.source), KEY)
    assert all_finite((value, after))
    assert float(jnp.abs(after["norm"]["mean"] - state["norm"]["mean"]).max()) > 0


def test_a_language_model_counts_tokens():
    tokens = np.random.RandomState(0).randint(0, 11, (6, 9)).astype(np.int32)
    source = ArraySource("tokens", {"tokens": tokens})
    task = Task.from_nnx(
        lambda rngs: DecoderLM(11, dim=8, num_layers=1, num_heads=2, max_length=8, rngs=rngs),
        source,
        language_model,
    )
    params, state = task.init(KEY)
    batch = {"tokens": jnp.asarray(tokens)}
    assert task.evaluate is not None
    sums = jax.jit(task.evaluate)(params, state, batch)
    assert float(sums["count"]) == 48
    assert float(sums["loss"] / 48) == pytest.approx(np.log(11), rel=0.1)
    assert all_finite(jax.jit(jax.grad(task.loss, has_aux=True))(params, state, batch, KEY)[0])


def test_linen_initializes_with_the_sources_tokens():
    source = ArraySource("tokens", {"tokens": np.zeros((4, 5), np.int32)})
    task = Task.from_linen(linen.Embed(7, 7), source, language_model)
    assert task.init(KEY)[0]["embedding"].shape == (7, 7)


def test_an_own_objective_may_mask_and_report_more():
    def masked(predict, batch):
        mask = batch["label"] == 0
        scores = predict(batch["image"])
        return {"count": mask.sum(), "loss": (scores.sum(-1) * mask).sum(), "extra": 2 * mask.sum()}

    task = Task.from_nnx(lambda rngs: MLP((16, 3), rngs=rngs), images(), masked)
    params, state = task.init(KEY)
    batch = first_unit(task.source)
    value, (metrics, _) = task.loss(params, state, batch, KEY)
    scores = batch["image"].reshape(8, -1) @ params["layers"]["0"]["kernel"]
    assert float(value) == pytest.approx(float(scores.sum(-1)[batch["label"] == 0].mean()), rel=1e-4)
    assert {name: float(x) for name, x in metrics.items()} == {"extra": 2.0}


class TwoInputs(linen.Module):
    """Takes an image and a weight for each example."""

    @linen.compact
    def __call__(self, image, weight, *, offset=None):
        scores = linen.Dense(3)(image.reshape(image.shape[0], -1)) * weight[:, None]
        return scores if offset is None else scores + offset


class TwoInputsNnx(nnx.Module):
    def __init__(self, rngs):
        self.scores = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, image, weight, *, offset=None):
        scores = self.scores(image.reshape(image.shape[0], -1)) * weight[:, None]
        return scores if offset is None else scores + offset


def weighted(predict, batch):
    weight = jnp.ones(len(batch["label"]))
    scores = predict(batch["image"], weight, offset=jnp.float32(0.5))
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"])
    return {"count": losses.size, "loss": losses.sum()}


@pytest.mark.parametrize(
    "task",
    [
        Task.from_linen(TwoInputs(), images(), weighted),
        Task.from_linen(TwoInputs(), images(), weighted, example=(jnp.ones((1, 4, 4, 1)), jnp.ones(1))),
        Task.from_nnx(TwoInputsNnx, images(), weighted),
    ],
    ids=["linen", "linen with examples", "nnx"],
)
def test_a_model_may_take_several_inputs(task):
    params, state = task.init(KEY)
    (value, _), grads = jax.value_and_grad(task.loss, has_aux=True)(params, state, first_unit(task.source), KEY)
    assert all_finite((value, grads))
    assert float(task.evaluate(params, state, first_unit(task.source))["count"]) == 8


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda predict, batch: {"count": 1, "loss": predict(batch["imag"])}, "the loss raised KeyError: 'imag'"),
        (lambda predict, batch: {"count": 1, "loss": jnp.zeros(())}, "does not call the model: pass .*example="),
        (
            lambda predict, batch: {"count": 1, "loss": jax.vmap(predict)(batch["image"]).sum()},
            "inside a JAX transformation: pass .*example=",
        ),
    ],
)
def test_a_loss_that_does_not_show_the_models_input_is_refused_with_what_to_pass(loss, message):
    with pytest.raises(TaskError, match=message):
        Task.from_linen(LinenNet(), images(), loss)


NO_FUNCTION, NO_INIT = cast(Any, len), cast(Any, None)
"""Of types that pyright refuses, as Task does."""


class NotASource:
    num_examples = 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Task.from_nnx(cast(Any, MLP((16, 3), rngs=nnx.Rngs(0))), images()), "from_nnx got a ready MLP"),
        (lambda: Task.from_nnx(cast(Any, lambda rngs: 3), images()), "returned a int, not an nnx.Module"),
        (lambda: Task.from_linen(cast(Any, LinenNet), images()), "not a linen module: pass an instance"),
        (lambda: Task.from_linen(LinenNet(), TallySource(4)), r"'image', the source's batches have \['unit'\]"),
        (lambda: Task(NO_INIT, NO_FUNCTION, images()), "Task.init must be a function, got NoneType"),
        (lambda: Task(NO_FUNCTION, NO_FUNCTION, cast(Any, NotASource())), "NotASource without describe, batch"),
    ],
)
def test_what_is_no_task_is_refused_with_what_to_pass(build, message):
    with pytest.raises(TaskError, match=message):
        build()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            lambda predict, batch: predict(batch["image"]).sum(0),
            r"an array of float32 and shape \(3,\): return",
        ),
        (lambda predict, batch: predict(batch["image"]).argmax(), r"an array of int32 and shape \(\): return"),
        (lambda predict, batch: (predict(batch["image"]).mean(), {}), "returned tuple: return its mean"),
        (lambda predict, batch: {"loss": 0.0}, r"returned a dict of \['loss'\]: return"),
        (language_model, r"needs the field 'tokens', the source's batches have \['image', 'label'\]"),
    ],
)
def test_an_objective_that_returns_no_sums_or_misses_a_field_is_refused(objective, message):
    task = Task.from_nnx(lambda rngs: MLP((16, 3), rngs=rngs), images(), objective)
    with pytest.raises(TaskError, match=message):
        task.loss(*task.init(KEY), first_unit(task.source), KEY)


def test_scalar_loss_is_the_mean_over_the_examples():
    def mean(predict, batch):
        return optax.softmax_cross_entropy_with_integer_labels(predict(batch["image"]), batch["label"]).mean()

    by_mean, by_sums = (
        Task.from_nnx(lambda rngs: MLP((16, 3), rngs=rngs), images(), objective) for objective in (mean, cross_entropy)
    )
    params, model_state = by_mean.init(KEY)
    batch = first_unit(by_mean.source)
    ours, theirs = (
        jax.value_and_grad(task.loss, has_aux=True)(params, model_state, batch, KEY) for task in (by_mean, by_sums)
    )
    np.testing.assert_allclose(ours[0][0], theirs[0][0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), ours[1], theirs[1])
    assert by_mean.evaluate is not None and by_sums.evaluate is not None
    found = by_mean.evaluate(params, model_state, batch)
    assert sorted(found) == ["count", "loss"] and found["count"] == len(batch["label"])
    np.testing.assert_allclose(found["loss"], by_sums.evaluate(params, model_state, batch)["loss"], rtol=1e-6)


def test_model_that_returns_more_than_scores_needs_a_loss_of_its_own():
    class Both(nnx.Module):
        def __init__(self, rngs):
            self.scores = nnx.Linear(1, 3, rngs=rngs)

        def __call__(self, image):
            return self.scores(image), {}

    task = Task.from_nnx(Both, images())
    with pytest.raises(TaskError, match="the model returned tuple, not an array of scores: pass a loss="):
        task.loss(*task.init(KEY), first_unit(task.source), KEY)


def test_scores_that_do_not_match_the_labels_are_refused_with_both_shapes():
    task = Task.from_nnx(lambda rngs: nnx.Linear(1, 3, rngs=rngs), images())
    with pytest.raises(TaskError, match=r"\(8, 4, 4, 3\), the labels \(8,\)"):
        task.loss(*task.init(KEY), first_unit(task.source), KEY)


class OfUsers(nnx.Variable):
    """A type of a user's own."""


class EveryKind(nnx.Module):
    """What Flax lets a module have besides layers."""

    def __init__(self, rngs):
        self.scores = nnx.Linear(16, 3, rngs=rngs)
        self.positions = jnp.arange(16.0) / 16
        self.random = jax.random.normal(rngs.params(), (2,))
        self.table = np.arange(3)
        self.mask = jnp.where(jnp.tril(jnp.ones((2, 2), bool)), 0.0, -jnp.inf)
        self.turns = jnp.exp(1j * jnp.arange(3.0))
        self.key, self.held_key = rngs.params(), nnx.Variable(jax.random.key(5, impl="rbg"))
        self.own, self.number = OfUsers(jnp.int32(0)), nnx.Variable(3)
        self.pair = nnx.Variable((jnp.ones(2), {"b": jnp.zeros(1)}))
        self.list = nnx.List([jnp.ones(2), nnx.Linear(2, 2, rngs=rngs)])
        self.dict, self.data = nnx.Dict(a=jnp.ones(1)), nnx.data([jnp.ones(1)])
        self.calls = jnp.zeros((), jnp.int32)
        self.probe = nnx.Intermediate(jnp.zeros(3))

    def __call__(self, x):
        self.own[...] += 1
        self.calls = self.calls + 1
        first, rest = self.pair.get_value()
        self.pair.set_value((first * 0.5, rest))
        self.probe.set_value(jnp.ones(3))
        self.sow(nnx.Intermediate, "activity", x.mean())
        noise = jax.random.normal(self.key, ()) + jax.random.normal(self.held_key[...], ())
        return self.scores(x.reshape(-1, 16) + self.positions) + noise


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_an_nnx_model_keeps_what_flax_lets_it_have():
    task = Task.from_nnx(EveryKind, images())
    made, traced = task.init(KEY), jax.eval_shape(task.init, KEY)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, traced), "also where init is traced"
    params, state = made
    assert sorted(params) == ["list", "scores"]
    assert not {"probe", "activity"} & state.keys()
    _, (_, after) = jax.jit(task.loss)(params, state, first_unit(task.source), KEY)
    check_model_state(task, task.source.batch(0, unit_size=4, seed=0))
    changed = {path for path in state if not jax.tree.all(jax.tree.map(np.array_equal, state[path], after[path]))}
    assert changed == {"own", "calls", "pair"}
    assert task.model is not None
    model, direct = task.model(params, state), EveryKind(nnx.Rngs(KEY))
    direct.eval()
    x = first_unit(task.source)["image"]
    assert np.array_equal(model(x), direct(x))


class Normed(nnx.Module):
    def __init__(self, rngs):
        self.scores = nnx.WeightNorm(nnx.Linear(16, 3, rngs=rngs), rngs=rngs)

    def __call__(self, x):
        return self.scores(x.reshape(-1, 16))


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(16, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)
        self.second.kernel, self.again = self.first.kernel, self.first
        self.scores = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.scores(self.again(self.second(self.first(x.reshape(-1, 16)))))


@pytest.mark.parametrize(("model", "num_leaves"), [(Normed, 2), (Tied, 5)])
def test_nnx_models_with_scales_or_shared_parameters_have_flaxs_gradient(model, num_leaves):
    task = Task.from_nnx(model, images())
    params, state = task.init(KEY)
    assert len(jax.tree.leaves(params)) == num_leaves
    batch, direct = first_unit(task.source), model(nnx.Rngs(KEY))

    def mean(module):
        sums = cross_entropy(module, batch)
        return sums["loss"] / sums["count"]

    expected = jax.tree.leaves(nnx.grad(mean)(direct))
    found = jax.tree.leaves(jax.grad(lambda p: task.loss(p, state, batch, KEY)[0])(params))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda self: setattr(self, "late", nnx.BatchStat(jnp.zeros(3))),
        lambda self: self.sow(OfUsers, "late", jnp.ones(())),
    ],
)
def test_a_variable_that_an_nnx_call_makes_is_refused_by_name(change):
    class Late(Normed):
        def __call__(self, x):
            change(self)
            return super().__call__(x)

    with pytest.raises(TaskError, match=r"the model's call makes late, a .* make it in __init__, or sow it"):
        check_model_state(Task.from_nnx(Late, images()), images().batch(0, unit_size=4, seed=0))


class Sows(linen.Module):
    """Sows into collections of every kind, beside its BatchNorm."""

    sows: bool

    @linen.compact
    def __call__(self, x, train: bool = False):
        x = x.reshape(x.shape[0], -1)
        if self.sows:
            self.sow("intermediates", "input", x)
            self.sow("losses", "tuple", (x**2).mean())
            self.sow("sums", "sum", x.sum(), init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b)
            x = self.perturb("hidden", x)
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
        return linen.Dense(3)(x)


def test_what_a_linen_module_sows_is_not_kept():
    tasks = [Task.from_linen(Sows(sows), images()) for sows in (False, True)]
    plain, sown = ((task.init(KEY), task) for task in tasks)
    assert jax.tree.structure(plain[0]) == jax.tree.structure(sown[0])
    (_, (_, one)), (_, (_, other)) = (task.loss(*made, first_unit(task.source), KEY) for made, task in (plain, sown))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_what_is_sown_among_variables_is_refused_by_name():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train: bool = False):
            self.sow("batch_stats", "activity", x.mean())
            return linen.Dense(3)(linen.BatchNorm(use_running_average=not train)(x.reshape(x.shape[0], -1)))

    with pytest.raises(TaskError, match="leaf batch_stats/activity/1 as float32"):
        check_model_state(Task.from_linen(Net(), images()), images().batch(0, unit_size=4, seed=0))
