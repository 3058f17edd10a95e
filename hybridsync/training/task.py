"""Defines what is trained: parameters, a loss, a source of units; as plain functions or made from a Flax model.

A model becomes a task in one line, with its class scores compared to `label`:

    task = Task.from_nnx(lambda rngs: MLP((64, 128, 10), rngs=rngs), DigitsSource())
    task = Task.from_linen(Net(), DigitsSource())

Another loss is an *objective*: a function of the model and a batch that returns sums over the batch, from
which training takes the mean and evaluation adds up:

    def squared_error(predict, batch):
        error = predict(batch["image"]) - batch["target"]
        return {"count": error.shape[0], "loss": (error**2).sum()}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx
from jax.core import Tracer

from hybridsync.core.errors import TaskError, described
from hybridsync.data.source import DeviceBatch, UnitSource

if TYPE_CHECKING:
    from hybridsync.core.units import UnitSet

Tree = Any
"""Nested dictionaries with arrays as leaves."""

Sums = dict[str, jax.Array]
"""Sums over a batch: `count` (what the mean divides by), `loss`, and `correct` or others."""

Objective = Callable[[Callable[..., jax.Array], DeviceBatch], Sums]
"""(predict, batch) -> sums; `predict` applies the model to its inputs."""


def cross_entropy(predict: Callable[..., jax.Array], batch: DeviceBatch) -> Sums:
    """Sum the cross-entropy of class scores; the default objective.

    Args:
      predict: `image` -> scores, (examples, classes).
      batch: `image` and `label`, int (examples,).

    Raises:
      TaskError: the batch lacks a field, or the scores do not have one row for every label.
    """
    return _classify(predict(_field(batch, "image")), _field(batch, "label"))


def language_model(predict: Callable[..., jax.Array], batch: DeviceBatch) -> Sums:
    """Sum the cross-entropy of each next token given those before it; `count` is in tokens.

    Args:
      predict: tokens, int (examples, length) -> scores, (examples, length, vocabulary).
      batch: `tokens`, int (examples, length + 1).

    Raises:
      TaskError: the batch lacks the field, or the scores do not have one row for every token.
    """
    tokens = _field(batch, "tokens")
    return _classify(predict(tokens[:, :-1]), tokens[:, 1:])


def _field(batch: DeviceBatch, name: str) -> jax.Array:
    if name not in batch:
        raise TaskError(
            f"the loss needs the field {name!r}, the source's batches have {sorted(batch)}: "
            "rename the field, or pass a loss that reads these (see hybridsync/training/task.py)."
        )
    return batch[name]


def _classify(scores: jax.Array, labels: jax.Array) -> Sums:
    if scores.shape[:-1] != labels.shape:
        raise TaskError(
            f"the model's scores have the shape {scores.shape}, the labels {labels.shape}: "
            "scores need the labels' shape and one more axis, the classes."
        )
    scores = scores.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    correct = scores.argmax(-1) == labels
    return {
        "count": jnp.float32(labels.size),
        "loss": losses.sum(),
        "correct": correct.sum(dtype=jnp.float32),
    }


@dataclass(frozen=True)
class Task:
    """A model, its loss and its data, all pure functions over pytrees of arrays.

    Args:
      init: key -> (params, model_state). The state holds what is not learned by gradient: float statistics
        (BatchNorm), which are averaged over workers, and integers, of which the maximum is taken; {} if none.
      loss: (params, model_state, batch, key) -> (scalar, (metrics, model_state)); `batch` has been through
        `source.augment`. It is the gradient's definition for one unit, on that unit alone.
      source: source of the units.
      evaluate: (params, model_state, batch) -> sums over the batch, {"count", "loss", "correct"?, ...};
        `batch` has been through `source.prepare`. None: the run reports no evaluation.
      summarize: (params, model_state, units applied) -> what the summary reports at the end instead of an
        evaluation; None: the evaluation.
      model: (params, model_state) -> the model with these values, ready to evaluate: what `FitResult.model()`
        returns. From `from_nnx` a module of the model's class; from `from_linen` the variables for `module.apply`.
        None: the parameters as they are.

    Raises:
      TaskError: a part is not callable, or the source lacks a method.
    """

    init: Callable[[jax.Array], tuple[Tree, Tree]]
    loss: Callable[[Tree, Tree, DeviceBatch, jax.Array], tuple[jax.Array, tuple[dict[str, jax.Array], Tree]]]
    source: UnitSource
    evaluate: Callable[[Tree, Tree, DeviceBatch], Sums] | None = None
    summarize: Callable[[Tree, Tree, UnitSet], dict[str, Any]] | None = None
    model: Callable[[Tree, Tree], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("init", "loss", "evaluate", "summarize", "model"):
            part = getattr(self, name)
            if not callable(part) and not (part is None and name in ("evaluate", "summarize", "model")):
                raise TaskError(f"Task.{name} must be a function, got {type(part).__name__}: pass one.")
        wanted = ("num_examples", "describe", "batch", "augment", "prepare", "test_batches")
        missing = [name for name in wanted if not hasattr(self.source, name)]
        if missing:
            raise TaskError(
                f"Task.source is a {type(self.source).__name__} without {', '.join(missing)}: "
                "pass a unit source, such as hybridsync.data.ArraySource(name, {'image': ..., 'label': ...})."
            )

    @staticmethod
    def from_nnx(model: Callable[[nnx.Rngs], nnx.Module], source: UnitSource, loss: Objective = cross_entropy) -> Task:
        """Return the task of training a Flax nnx model.

        Float `nnx.Param`s are the parameters; every other variable (BatchNorm statistics, counters) is model
        state. Rng variables are neither stored nor sent: each unit gets its own from its key, so what dropout
        drops is a function of (seed, unit). Training runs under `model.train()`, evaluation under
        `model.eval()`.

        Args:
          model: makes the module, for instance `lambda rngs: MLP((64, 128, 10), rngs=rngs)`.
          source: source of the units.
          loss: the objective.

        Raises:
          TaskError: `model` is a module and not a function, or does not return a module.
        """
        if isinstance(model, nnx.Module):
            name = type(model).__name__
            raise TaskError(f"from_nnx got a ready {name}: pass a function, lambda rngs: {name}(..., rngs=rngs).")
        adapter = _NnxModel(model)
        return _from_apply(adapter, source, loss)

    @staticmethod
    def from_linen(
        module: linen.Module,
        source: UnitSource,
        loss: Objective = cross_entropy,
        example: jax.Array | tuple[jax.Array, ...] | None = None,
    ) -> Task:
        """Return the task of training a Flax linen module.

        The collection `params` is the parameters, all other collections are model state. If `__call__` takes one of
        `train`, `training`, `is_training`, `deterministic` or `use_running_average`, it is told whether it trains;
        every random stream (`dropout`) is seeded by the unit's key.

        Args:
          module: the module, not its class.
          source: source of the units.
          loss: the objective.
          example: an input to initialize with, or a tuple of several; None takes what the loss passes to the model
            for the source's first example.

        Raises:
          TaskError: `module` is not a linen module, the loss raises on the first example, or `example` is needed.
        """
        if not isinstance(module, linen.Module):
            raise TaskError(f"from_linen got {module!r}, not a linen module: pass an instance, such as Net().")
        if example is None:
            inputs, named = _inputs(loss, source)
        else:
            inputs, named = (example if isinstance(example, tuple) else (example,)), {}
        return _from_apply(_LinenModel(module, inputs, named), source, loss)


def _from_apply(adapter: _NnxModel | _LinenModel, source: UnitSource, objective: Objective) -> Task:
    apply = adapter.apply

    def loss(params: Tree, model_state: Tree, batch: DeviceBatch, key: jax.Array) -> tuple[jax.Array, Any]:
        predict, state_after = apply(params, model_state, key)
        sums = _checked(objective(predict, batch))
        metrics = {_MEAN_NAMES.get(name, name): sums[name] / sums["count"] for name in sums if name != "count"}
        return metrics.pop("loss"), (metrics, state_after())

    def evaluate(params: Tree, model_state: Tree, batch: DeviceBatch) -> Sums:
        predict, _ = apply(params, model_state, None)
        return _checked(objective(predict, batch))

    return Task(adapter.init, loss, source, evaluate, model=adapter.model)


_MEAN_NAMES = {"correct": "accuracy"}


def _checked(sums: Sums) -> Sums:
    if not isinstance(sums, dict) or not {"count", "loss"} <= sums.keys():
        found = sorted(sums) if isinstance(sums, dict) else type(sums).__name__
        raise TaskError(
            f"the loss returned {found}, not a dict with at least 'count' and 'loss': return sums over the "
            "batch, such as {'count': errors.size, 'loss': errors.sum()}."
        )
    return sums


class _NnxModel:
    """A module as pure functions; built abstractly, so a process that never calls `init` can apply it."""

    def __init__(self, model: Callable[[nnx.Rngs], nnx.Module]) -> None:
        self._model = model
        abstract = nnx.eval_shape(lambda: self._build(jax.random.key(0)))
        abstract.train()
        self._train_graph, *states = nnx.split(abstract, *_NNX_FILTERS)
        self._rngs, self._params, self._rest = (nnx.to_flat_state(state) for state in states)
        abstract.eval()
        self._eval_graph = nnx.graphdef(abstract)

    def init(self, key: jax.Array) -> tuple[Tree, Tree]:
        _, _, params, rest = nnx.split(self._build(key), *_NNX_FILTERS)
        return _to_tree(params), _to_tree(rest)

    def apply(
        self, params: Tree, model_state: Tree, key: jax.Array | None
    ) -> tuple[Callable[..., jax.Array], Callable[[], Tree]]:
        """Return what predicts, and a function that returns the model state after it; `key` None: evaluation."""
        graph = self._eval_graph if key is None else self._train_graph
        rngs = self._fill_rngs(jax.random.key(0) if key is None else key)
        module = nnx.merge(graph, rngs, _fill(self._params, params), _fill(self._rest, model_state), copy=True)
        return module, lambda: _to_tree(nnx.state(module, *_NNX_FILTERS)[2])

    def model(self, params: Tree, model_state: Tree) -> nnx.Module:
        """Return the module with these values, under `eval()`; its Rng variables begin anew."""
        params, model_state = jax.tree.map(jnp.asarray, (params, model_state))
        predict, _ = self.apply(params, model_state, None)
        return cast(nnx.Module, predict)

    def _build(self, key: jax.Array) -> nnx.Module:
        module = self._model(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TaskError(
                f"from_nnx got a function that returned a {type(module).__name__}, not an nnx.Module: "
                "pass lambda rngs: Net(..., rngs=rngs)."
            )
        return module

    def _fill_rngs(self, key: jax.Array) -> nnx.State:
        """Give every Rng variable a key of its own, derived from `key`, and its counter zero."""
        filled = []
        for position, (path, variable) in enumerate(self._rngs):
            shape, dtype = variable.get_value().shape, variable.get_value().dtype
            if jnp.issubdtype(dtype, jax.dtypes.prng_key):
                value = jax.random.fold_in(key, position)
                value = jax.random.split(value, shape) if shape else value
            else:
                value = jnp.zeros(shape, dtype)
            filled.append((path, variable.replace(value)))
        return nnx.from_flat_state(filled)


def _is_trainable(path: tuple[Any, ...], variable: nnx.Variable) -> bool:
    del path
    return isinstance(variable, nnx.Param) and jnp.issubdtype(variable.get_value().dtype, jnp.inexact)


_NNX_FILTERS = (nnx.RngState, _is_trainable, ...)


def _to_tree(state: nnx.State) -> Tree:
    """Return the variables' values as nested dictionaries with text keys, as checkpoint formats have them."""
    tree: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        *parents, leaf = (str(part) for part in path)
        branch = tree
        for part in parents:
            branch = branch.setdefault(part, {})
        branch[leaf] = variable.get_value()
    return tree


def _fill(flat_state: Any, tree: Tree) -> nnx.State:
    """Return the state whose variables have the values in `tree`; the reverse of `_to_tree`."""
    filled = []
    for path, variable in flat_state:
        value = tree
        for part in path:
            value = value[str(part)]
        filled.append((path, variable.replace(value)))
    return nnx.from_flat_state(filled)


class _LinenModel:
    """A linen module as pure functions; what it must be told in training is read off its signature."""

    _TRAINING_FLAGS = ("train", "training", "is_training")
    _INFERENCE_FLAGS = ("deterministic", "use_running_average")

    def __init__(self, module: linen.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._module = module
        self._inputs, self._named = inputs, named
        names = inspect.signature(type(module).__call__).parameters
        self._flags = {name: True for name in self._TRAINING_FLAGS if name in names}
        self._flags |= {name: False for name in self._INFERENCE_FLAGS if name in names}

    def init(self, key: jax.Array) -> tuple[Tree, Tree]:
        flags = self._flags_for(training=False)
        variables = linen.meta.unbox(self._module.init(key, *self._inputs, **{**flags, **self._named}))
        return variables.get("params", {}), {name: tree for name, tree in variables.items() if name != "params"}

    def apply(
        self, params: Tree, model_state: Tree, key: jax.Array | None
    ) -> tuple[Callable[..., jax.Array], Callable[[], Tree]]:
        """Return what predicts, and a function that returns the model state after it; `key` None: evaluation."""
        flags = self._flags_for(training=key is not None)
        after = dict(model_state)

        def predict(*inputs: Any, **named: Any) -> jax.Array:
            variables, named = {"params": params, **after}, {**flags, **named}
            if key is None:
                return cast(jax.Array, self._module.apply(variables, *inputs, **named))
            # A stream that is not given (dropout) falls back to `params`.
            rngs = {"params": key}
            outputs, changed = self._module.apply(variables, *inputs, rngs=rngs, mutable=list(after), **named)
            after.update(changed)
            return outputs

        return predict, lambda: after

    def model(self, params: Tree, model_state: Tree) -> dict[str, Tree]:
        """Return the variables for `module.apply`."""
        return jax.tree.map(jnp.asarray, {"params": params, **model_state})

    def _flags_for(self, *, training: bool) -> dict[str, Any]:
        return {name: value if training else not value for name, value in self._flags.items()}


class _Called(BaseException):
    """Ends a loss at the point where it calls the model. No `except Exception` of the loss's own may catch it."""

    def __init__(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.inputs, self.named = inputs, named


def _inputs(loss: Objective, source: UnitSource) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what `loss` passes to the model for the source's first example."""
    batch = source.prepare({name: jnp.asarray(x) for name, x in source.batch(0, unit_size=1, seed=0).items()})

    def call(*inputs: Any, **named: Any) -> Any:
        raise _Called(inputs, named)

    advice = "pass from_linen(example=...), an input of the model or a tuple of several."
    try:
        loss(call, batch)
    except _Called as called:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((called.inputs, called.named))):
            raise TaskError(f"the loss calls the model inside a JAX transformation: {advice}") from None
        return called.inputs, called.named
    except TaskError:
        raise
    except Exception as error:  # the loss is its author's: whatever it raises becomes one clear message
        raise TaskError(
            f"the loss raised {described(error)} on the source's first example, a batch of {sorted(batch)}; correct it"
        ) from error
    raise TaskError(f"the loss does not call the model: {advice}")
