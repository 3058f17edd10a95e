"""Defines what is trained: parameters, a loss, a source of units; as plain functions or made from a Flax model.

A model becomes a task in one line, with its class scores compared to `label`:

    task = Task.from_nnx(lambda rngs: MLP((64, 128, 10), rngs=rngs), DigitsSource())
    task = Task.from_linen(Net(), DigitsSource())

Another loss is an *objective*: a function of the model and a batch. It returns the mean over the batch, a scalar, or
sums over it, from which training takes the mean and which evaluation adds up:

    def squared_error(predict, batch):
        error = predict(batch["image"]) - batch["target"]
        return {"count": error.shape[0], "loss": (error**2).sum()}
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
from absl import logging
from flax import linen, nnx
from flax.errors import InvalidRngError, ModifyScopeVariableError
from jax.core import Tracer

from hybridsync.core.errors import TaskError, described
from hybridsync.data.source import DeviceBatch, UnitSource
from hybridsync.devices.rules import ends
from hybridsync.losses import Sums, cross_entropy
from hybridsync.training.call_flags import IN_TRAINING, Activity, CallFlags, find_flags, takes_flags
from hybridsync.training.forwarding import changed
from hybridsync.training.frozen import Path, frozen_leaves, joined, parted

if TYPE_CHECKING:
    from hybridsync.core.units import UnitSet

Tree = Any
"""Nested dictionaries with arrays as leaves."""

Objective = Callable[[Callable[..., jax.Array], DeviceBatch], Sums | jax.Array]
"""(predict, batch) -> sums, or the mean over the batch; `predict` applies the model to its inputs."""


@dataclass(frozen=True)
class Task:
    """A model, its loss and its data, all pure functions over pytrees of arrays.

    Args:
      init: key -> (params, model_state). The state holds what is not learned by gradient, {} if nothing is: float
        statistics (BatchNorm), which are averaged over workers, integers, of which the maximum is taken, and constants.
        `hybridsync.training.model_state` has the rule of each type.
      loss: (params, model_state, batch, key) -> (scalar, (metrics, model_state)); `batch` has been through
        `source.augment`. It is the gradient's definition for one unit, on that unit alone. The model state that it
        returns has the leaves that it got, of their types and shapes.
      source: source of the units.
      frozen: key -> leaves of the model that are not trained, nested dictionaries as the parameters are, without a leaf
        in common; None: all are trained. Each process makes them itself, from the run's seed or from a file: they are
        in no state, message or checkpoint. All other functions get them among `params`; `init` does not return them.
      sums: (params, model_state, batch, key) -> (sums over the batch, model state), of which `loss` is the mean: what
        parts of a unit add up to (`DeviceConfig.micro_steps`). None: the mean of the parts' losses is taken.
      evaluate: (params, model_state, batch) -> sums over the batch, {"count", "loss", "correct"?, ...};
        `batch` has been through `source.prepare`. None: the run reports no evaluation.
      summarize: (params, model_state, units applied) -> what the summary reports at the end instead of an
        evaluation; None: the evaluation.
      model: (params, model_state) -> the model with these values, ready to evaluate: what `FitResult.model()`
        returns. From `from_nnx` a module of the model's class; from `from_linen` the variables for `module.apply`.
        None: the parameters as they are.
      axes: () -> what the model calls the dimensions of its annotated leaves, by their paths, for `DeviceConfig.rules`;
        None where nothing is annotated.

    Raises:
      TaskError: a part is not callable, or the source lacks a method.
    """

    init: Callable[[jax.Array], tuple[Tree, Tree]]
    loss: Callable[[Tree, Tree, DeviceBatch, jax.Array], tuple[jax.Array, tuple[dict[str, jax.Array], Tree]]]
    source: UnitSource
    evaluate: Callable[[Tree, Tree, DeviceBatch], Sums] | None = None
    summarize: Callable[[Tree, Tree, UnitSet], dict[str, Any]] | None = None
    model: Callable[[Tree, Tree], Any] | None = None
    axes: Callable[[], dict[str, tuple[Any, ...]]] | None = None
    frozen: Callable[[jax.Array], Tree] | None = None
    sums: Callable[[Tree, Tree, DeviceBatch, jax.Array], tuple[Sums, Tree]] | None = None

    def __post_init__(self) -> None:
        for name in ("init", "loss", "evaluate", "summarize", "model", "axes", "frozen", "sums"):
            part = getattr(self, name)
            if not callable(part) and not (part is None and name not in ("init", "loss")):
                raise TaskError(f"Task.{name} must be a function, got {type(part).__name__}: pass one.")
        wanted = ("num_examples", "describe", "batch", "augment", "prepare", "test_batches")
        missing = [name for name in wanted if not hasattr(self.source, name)]
        if missing:
            raise TaskError(
                f"Task.source is a {type(self.source).__name__} without {', '.join(missing)}: "
                "pass a unit source, such as hybridsync.data.ArraySource(name, {'image': ..., 'label': ...})."
            )

    @functools.cached_property
    def abstract_frozen(self) -> Tree | None:
        """The shapes and types of the frozen leaves; None where all are trained."""
        if self.frozen is None:
            return None
        return jax.eval_shape(self.frozen, jax.eval_shape(lambda: jax.random.key(0)))

    def whole(self, params: Tree, seed: int) -> Tree:
        """Return a run's parameters with the frozen leaves among them.

        Args:
          params: parameters of a run's state.
          seed: seed of the run.
        """
        return joined(params, frozen_leaves(self, seed))

    @staticmethod
    def from_nnx(
        model: Callable[[nnx.Rngs], nnx.Module],
        source: UnitSource,
        loss: Objective = cross_entropy,
        *,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        trainable: nnx.filterlib.Filter = None,
    ) -> Task:
        """Return the task of training a Flax nnx model.

        Float `nnx.Param`s are the parameters; every other variable (BatchNorm statistics, counters), and every array
        that is an attribute, is model state. Rng variables and what is sown (`nnx.Intermediate`) are neither stored nor
        sent: each unit gets random numbers of its own from its key, so what dropout drops is a function of (seed,
        unit). Training runs under `model.train()`, evaluation under `model.eval()`; flags of `__call__` are found as in
        `from_linen`.

        Args:
          model: makes the module, for instance `lambda rngs: MLP((64, 128, 10), rngs=rngs)`.
          source: source of the units.
          loss: the objective.
          training: what `__call__` is told in training, for a module where that is not found.
          evaluation: what it is told in evaluation; of what is True or False in `training`, the opposite if left out.
          trainable: filter of the float variables that are trained, such as `nnx.LoRAParam` or a function of (path,
            variable); the other `nnx.Param`s are frozen (see `Task.frozen`). None trains all float `nnx.Param`s.

        Raises:
          TaskError: `model` is a module and not a function, or does not return a module; `trainable` is no filter, or
            fits no variable.
        """
        if isinstance(model, nnx.Module):
            name = type(model).__name__
            raise TaskError(f"from_nnx got a ready {name}: pass a function, lambda rngs: {name}(..., rngs=rngs).")
        return _from_apply(_NnxModel(model, CallFlags.given(training, evaluation), trainable), source, loss)

    @staticmethod
    def from_linen(
        module: linen.Module,
        source: UnitSource,
        loss: Objective = cross_entropy,
        example: jax.Array | tuple[jax.Array, ...] | None = None,
        *,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        trainable: Callable[[tuple[str, ...], Any], bool] | str | Sequence[str] | None = None,
    ) -> Task:
        """Return the task of training a Flax linen module.

        The collection `params` is the parameters, all others are model state, except what is sown. If `__call__` takes
        one of `train`, `training`, `is_training`, `deterministic` or `use_running_average`, it is told whether it
        trains; of any other argument that may be True or False, the value is taken in training with which dropout and
        batch statistics are on. Every random stream (`dropout`) is seeded by the unit's key.

        Args:
          module: the module, not its class.
          source: source of the units.
          loss: the objective.
          example: an input to initialize with, or a tuple of several; None takes what the loss passes to the model
            for the source's first example.
          training: what `__call__` is told in training, for a module where that is not found; a layer may then be off.
          evaluation: what it is told in evaluation; of what is True or False in `training`, the opposite if left out.
          trainable: what of the parameters is trained, the others are frozen (see `Task.frozen`): a function of (path,
            leaf), or the ends of paths as in `DeviceConfig.paths`, such as "lora_a/kernel". None trains all.

        Raises:
          TaskError: `module` is not a linen module, the loss raises on the first example, or `example` or `training`
            is needed; `trainable` fits no parameter. So does a loss in training where dropout or batch statistics are
            off.
        """
        if not isinstance(module, linen.Module):
            raise TaskError(f"from_linen got {module!r}, not a linen module: pass an instance, such as Net().")
        if example is None:
            inputs, named = _inputs(loss, source)
        else:
            inputs, named = (example if isinstance(example, tuple) else (example,)), {}
        model = _LinenModel(module, inputs, named, CallFlags.given(training, evaluation), trainable)
        return _from_apply(model, source, loss)


def _from_apply(adapter: _NnxModel | _LinenModel, source: UnitSource, objective: Objective) -> Task:
    apply = adapter.apply

    def sums(params: Tree, model_state: Tree, batch: DeviceBatch, key: jax.Array) -> tuple[Sums, Tree]:
        predict, state_after = apply(params, model_state, key)
        return _checked(objective(predict, batch), batch), state_after()

    def loss(params: Tree, model_state: Tree, batch: DeviceBatch, key: jax.Array) -> tuple[jax.Array, Any]:
        found, after = sums(params, model_state, batch, key)
        metrics = {_MEAN_NAMES.get(name, name): found[name] / found["count"] for name in found if name != "count"}
        return metrics.pop("loss"), (metrics, after)

    def evaluate(params: Tree, model_state: Tree, batch: DeviceBatch) -> Sums:
        predict, _ = apply(params, model_state, None)
        return _checked(objective(predict, batch), batch)

    task = Task(adapter.init, loss, source, evaluate, model=adapter.model, axes=adapter.axes, sums=sums)
    if adapter.trained is None:
        return task
    trained = adapter.trained

    def init(key: jax.Array) -> tuple[Tree, Tree]:
        params, model_state = adapter.init(key)
        return parted(params, trained)[0], model_state

    return dataclasses.replace(task, init=init, frozen=lambda key: parted(adapter.init(key)[0], trained)[1])


def _trained_paths(leaves: dict[Path, Any], is_trained: Callable[[Path], bool], filter_: Any) -> frozenset[Path] | None:
    """Return the paths of what is trained; None where that is everything.

    Raises:
      TaskError: it is nothing.
    """
    trained = frozenset(filter(is_trained, leaves))
    if not trained:
        known = [*map("/".join, leaves)]
        more = f" and {len(known) - 8} more" if len(known) > 8 else ""
        raise TaskError(
            f"trainable={filter_!r} fits none of the model's parameters, which are {', '.join(known[:8])}{more}; "
            "correct it, or leave it out to train all"
        )
    return None if len(trained) == len(leaves) else trained


_MEAN_NAMES = {"correct": "accuracy"}


def _checked(found: Any, batch: DeviceBatch) -> Sums:
    """Return what a loss has found, as sums: a scalar is a mean over the batch's examples."""
    if isinstance(found, dict) and {"count", "loss"} <= found.keys():
        return found
    if isinstance(found, jax.Array) and found.shape == () and jnp.issubdtype(found.dtype, jnp.floating):
        count = jnp.float32(next((len(field) for field in batch.values() if field.ndim), 1))
        return {"count": count, "loss": found.astype(jnp.float32) * count}
    if isinstance(found, jax.Array):
        what = f"an array of {found.dtype} and shape {found.shape}"
    else:
        what = f"a dict of {sorted(found)}" if isinstance(found, dict) else type(found).__name__
    raise TaskError(
        f"the loss returned {what}: return its mean over the batch, a scalar array of floats, or a dict of sums over "
        "the batch with at least 'count' and 'loss', such as {'count': errors.size, 'loss': errors.sum()}."
    )


class _NnxModel:
    """A module as pure functions; built abstractly, so a process that never calls `init` can apply it."""

    def __init__(self, model: Callable[[nnx.Rngs], nnx.Module], flags: CallFlags | None, trainable: Any) -> None:
        self._model, self._flags = model, flags
        self._checks_dropout = flags is None
        is_trained = _is_float_param if trainable is None else _chosen(trainable)
        is_param = is_trained if trainable is None else nnx.Any(is_trained, nnx.Param)
        self._filters = (nnx.RngState, nnx.Intermediate, is_param, ...)
        graphs: list[Any] = []

        def split() -> Any:
            module = self._build(jax.random.key(0))
            for set_mode in (module.eval, module.train):
                set_mode()
                graph, *states = nnx.split(module, *self._filters)
                graphs.append(graph)
            return states

        # Not `nnx.eval_shape`: of the arrays in its result, those in plain containers would be static.
        states = jax.eval_shape(split)
        self._eval_graph, self._train_graph = graphs
        self._rngs, self._sown, self._params, self._rest = (nnx.to_flat_state(state) for state in states)
        self.trained: frozenset[Path] | None = None
        if trainable is not None:
            leaves = {tuple(map(_name, path)): (path, leaf) for path, leaf in self._params}
            self.trained = _trained_paths(leaves, lambda path: is_trained(*leaves[path]), trainable)

    def init(self, key: jax.Array) -> tuple[Tree, Tree]:
        *_, params, rest = nnx.split(self._build(key), *self._filters)
        return _to_tree(nnx.to_flat_state(params)), _to_tree(nnx.to_flat_state(rest))

    def apply(
        self, params: Tree, model_state: Tree, key: jax.Array | None
    ) -> tuple[Callable[..., jax.Array], Callable[[], Tree]]:
        """Return what predicts, and a function that returns the model state after it; `key` None: evaluation."""
        module, rngs, before = self._module(params, model_state, key)
        predict: Callable[..., Any] = module
        takes = self._flags is not None or (callable(module) and takes_flags(type(module).__call__))
        if takes:
            predict = functools.partial(self._tell, module, params, model_state, key)

        def after() -> Tree:
            if key is not None and self._checks_dropout:
                self._warn_of_unused_dropout(module, rngs)
            return self._state_after(module, before, model_state)

        return predict, after

    def _warn_of_unused_dropout(self, module: Any, rngs: FlatState) -> None:
        """Log, once, that a loss in training has drawn no random number although the model has dropout.

        A layer may also draw from a stream that it is passed, so the draws of all streams count.
        """
        self._checks_dropout = False
        after = dict(nnx.to_flat_state(nnx.state(module, nnx.RngState)))
        drew = any(not _is_same(_value(after[path]), _value(leaf)) for path, leaf in rngs)
        if drew or (self._flags is not None and self._flags.keys):
            return
        for path, node in nnx.iter_graph(module):
            if isinstance(node, nnx.Module) and hasattr(node, "deterministic") and _drops(vars(node)):
                logging.warning(
                    "Nothing is dropped in training: the layer %s, a %s, has a rate of dropout, but the loss has drawn "
                    "no random number. train() sets deterministic=False of every layer; if the model's call takes "
                    "what switches dropout off, pass training={...} and evaluation={...}, the arguments of the call "
                    "that change it.",
                    "/".join(map(_name, path)) or "itself",
                    type(node).__name__,
                )
                return

    def _state_after(self, module: Any, before: FlatState, model_state: Tree) -> Tree:
        """Return the model state that calls have left in a module.

        Args:
          module: module that was called.
          before: what it was made with.
          model_state: the same as a tree; keys whose values are as before are those of this one.

        Raises:
          TaskError: the module has a variable that it did not have before.
        """
        known = dict(before)
        flat: list[tuple[Any, Any]] = []
        for path, leaf in nnx.to_flat_state(nnx.state(module, *self._filters)[-1]):
            if path not in known:
                raise TaskError(
                    f"the model's call makes {'/'.join(map(_name, path))}, a {type(leaf).__name__} that it does not "
                    "have when it is made: make it in __init__, or sow it as an nnx.Intermediate, which is not kept"
                )
            flat.append((path, _at(model_state, path) if _is_same(_value(leaf), _value(known[path])) else leaf))
        return _to_tree(flat)

    def _module(self, params: Tree, model_state: Tree, key: jax.Array | None) -> tuple[Any, FlatState, FlatState]:
        """Return the module with these values, its Rng variables, and those of the values that are model state."""
        graph = self._eval_graph if key is None else self._train_graph
        rngs = self._fill_rngs(jax.random.key(0) if key is None else key)
        sown = [(path, _with_value(leaf, _zeros(_value(leaf)))) for path, leaf in self._sown]
        rest = _fill(self._rest, model_state)
        states = (nnx.from_flat_state(flat) for flat in (rngs, sown, _fill(self._params, params), rest))
        return nnx.merge(graph, *states, copy=True), rngs, rest

    def _tell(
        self, module: Any, params: Tree, model_state: Tree, key: jax.Array | None, *inputs: Any, **named: Any
    ) -> jax.Array:
        """Call the module, and tell it whether it trains."""

        def activity(flags: CallFlags) -> Activity | None:
            graph, state = nnx.split(self._module(params, model_state, jax.random.key(0))[0])
            flat = list(nnx.to_flat_state(state))

            def call(values: list[Tree]) -> list[Tree]:
                leaves = [(path, _with_value(leaf, value)) for (path, leaf), value in zip(flat, values, strict=True)]
                tried = nnx.merge(graph, nnx.from_flat_state(leaves), copy=True)
                tried(*inputs, **{**flags.at(jax.random.key(0)), **named})
                after = dict(nnx.to_flat_state(nnx.state(tried)))
                return [_value(after.get(path)) for path, _ in flat]

            before = [_value(leaf) for _, leaf in flat]
            try:
                program, after = jax.make_jaxpr(call, return_shape=True)(before)
            except Exception:  # noqa: BLE001 - the module is its author's, and it is tried with what it may not take
                return None
            moved = [
                leaf for (_, leaf), moves in zip(flat, changed(program.jaxpr, before, after), strict=True) if moves
            ]
            # What draws random numbers counts them.
            training = sum(isinstance(leaf, (nnx.RngState, nnx.BatchStat)) for leaf in moved)
            ignored = sum(isinstance(leaf, (nnx.Intermediate, nnx.Cache)) for leaf in moved)
            return Activity(training, len(moved) - training - ignored)

        self._flags = self._flags or find_flags(type(module).__call__, len(inputs), named, activity)
        return module(*inputs, **{**self._flags.at(key), **named})

    def model(self, params: Tree, model_state: Tree) -> nnx.Module:
        """Return the module with these values, under `eval()`; its Rng variables begin anew."""
        params, model_state = jax.tree.map(jnp.asarray, (params, model_state))
        module, *_ = self._module(params, model_state, None)
        return module

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return what the annotations of variables call their dimensions."""
        named = {
            "/".join(map(_name, path)): leaf.get_metadata().get("out_sharding")
            for path, leaf in (*self._params, *self._rest)
            if isinstance(leaf, nnx.Variable)
        }
        return {path: tuple(names) for path, names in named.items() if names}

    def _build(self, key: jax.Array) -> nnx.Module:
        with nnx.use_eager_sharding(False):  # chief and servers have no mesh, and a worker places leaves itself
            module = self._model(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TaskError(
                f"from_nnx got a function that returned a {type(module).__name__}, not an nnx.Module: "
                "pass lambda rngs: Net(..., rngs=rngs)."
            )
        _hold_arrays(module)
        return module

    def _fill_rngs(self, key: jax.Array) -> FlatState:
        """Give every Rng variable a key of its own, derived from `key`, and its counter zero."""
        filled = []
        for position, (path, variable) in enumerate(self._rngs):
            shape, dtype = variable.get_value().shape, variable.get_value().dtype
            if _is_key(dtype):
                value = jax.random.fold_in(key, position)
                value = jax.random.split(value, shape) if shape else value
            else:
                value = jnp.zeros(shape, dtype)
            filled.append((path, variable.replace(value)))
        return filled


def _hold_arrays(module: nnx.Module) -> None:
    """Have Flax take plain arrays among a module's attributes for its state also where it was made under a trace.

    Flax knows an array by its class, which a tracer's is not, and would keep it as a static attribute.
    """
    for _, node in list(nnx.iter_graph(module)):
        if isinstance(node, nnx.Pytree):
            for name, value in list(vars(node).items()):
                if isinstance(value, jax.Array):
                    setattr(node, name, nnx.data(value))


def _is_float_param(path: tuple[Any, ...], leaf: Any) -> bool:
    del path
    return isinstance(leaf, nnx.Param) and _is_float(leaf)


def _is_float(leaf: Any) -> bool:
    numbers = jax.tree.leaves(_value(leaf))
    return bool(numbers) and all(jnp.issubdtype(number.dtype, jnp.inexact) for number in numbers)


def _chosen(trainable: Any) -> Callable[[tuple[Any, ...], Any], bool]:
    """Return whether a variable is one of floats that a user's filter chooses.

    Raises:
      TaskError: it is no filter.
    """
    try:
        chooses = nnx.filterlib.to_predicate(trainable)
    except (TypeError, ValueError):  # Flax's own message has a mistake in its format
        raise TaskError(
            f"from_nnx got trainable={trainable!r}, which is no filter of nnx: pass a type such as nnx.LoRAParam, or a "
            "function of (path, variable)"
        ) from None
    return lambda path, leaf: _is_float(leaf) and bool(chooses(path, leaf))


FlatState = Iterable[tuple[tuple[Any, ...], Any]]
"""Paths with variables, or with the plain arrays that a module has as attributes."""


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _with_value(leaf: Any, value: Any) -> Any:
    return leaf.replace(value) if isinstance(leaf, nnx.Variable) else value


def _zeros(value: Any) -> Any:
    return jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype), value)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _name(part: Any) -> str:
    """Return a step of a path as text; that of `nnx.WeightNorm`'s scales is a path itself."""
    return ".".join(map(str, part)) if isinstance(part, tuple) else str(part)


def _to_tree(flat_state: FlatState) -> Tree:
    """Return the variables' values as nested dictionaries with text keys, as checkpoint formats have them.

    Of keys it has the words.
    """
    tree: dict[str, Any] = {}
    for path, leaf in flat_state:
        *parents, last = map(_name, path)
        branch = tree
        for part in parents:
            branch = branch.setdefault(part, {})
        branch[last] = jax.tree.map(_stored, _value(leaf))
    return tree


def _stored(value: Any) -> Any:
    if not isinstance(value, jax.Array):
        return jnp.asarray(value)
    return jax.random.key_data(value) if _is_key(value.dtype) else value


def _restored(abstract: Any, stored: Any) -> Any:
    """Return a value of the type of `abstract` from what `_stored` has made of it."""
    if not _is_key(abstract.dtype):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(jnp.empty((), abstract.dtype)))


def _at(tree: Tree, path: tuple[Any, ...]) -> Any:
    for part in path:
        tree = tree[_name(part)]
    return tree


def _fill(flat_state: FlatState, tree: Tree) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the flat state whose variables have the values in `tree`; the reverse of `_to_tree`."""
    return [
        (path, _with_value(leaf, jax.tree.map(_restored, _value(leaf), _at(tree, path)))) for path, leaf in flat_state
    ]


def _is_same(new: Any, old: Any) -> bool:
    """Return whether two trees have the same arrays, not only equal ones."""
    (first, first_structure), (second, second_structure) = map(jax.tree.flatten, (new, old))
    return first_structure == second_structure and all(a is b for a, b in zip(first, second, strict=True))


class _LinenModel:
    """A linen module as pure functions; what its call is told in training is read off its signature."""

    def __init__(
        self,
        module: linen.Module,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        flags: CallFlags | None,
        trainable: Any = None,
    ) -> None:
        self._module = module
        self._inputs, self._named = inputs, named
        self._checks_layers = flags is None
        self._flags = flags or find_flags(type(module).__call__, len(inputs), named, self._activity)
        self.trained = None if trainable is None else self._trained_paths(trainable)

    def init(self, key: jax.Array) -> tuple[Tree, Tree]:
        params, state = self._variables(key, self._flags)
        return params, {name: tree for name, tree in state.items() if not self._is_sown(name, params, state)}

    def apply(
        self, params: Tree, model_state: Tree, key: jax.Array | None
    ) -> tuple[Callable[..., jax.Array], Callable[[], Tree]]:
        """Return what predicts, and a function that returns the model state after it; `key` None: evaluation."""
        flags = self._flags.at(key)
        after = dict(model_state)

        def predict(*inputs: Any, **named: Any) -> jax.Array:
            named = {**flags, **named}
            if key is None:
                try:
                    return cast(jax.Array, self._module.apply({"params": params, **after}, *inputs, **named))
                except (InvalidRngError, ModifyScopeVariableError) as error:
                    raise TaskError(
                        f"{type(self._module).__name__} trains in evaluation, too ({described(error)}): say what its "
                        "call is given, for example from_linen(..., training={'mode': 'train'}, "
                        "evaluation={'mode': 'eval'})"
                    ) from error
            with linen.intercept_methods(_refuse_inactive) if self._checks_layers else contextlib.nullcontext():
                outputs, changed = self._call(params, after, key, inputs, named)
            after.update(changed)
            return outputs

        return predict, lambda: after

    def model(self, params: Tree, model_state: Tree) -> dict[str, Tree]:
        """Return the variables for `module.apply`."""
        return jax.tree.map(jnp.asarray, {"params": params, **model_state})

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return what the boxes of variables (`linen.with_partitioning`, ...) call their dimensions."""
        boxed = jax.eval_shape(lambda: self._boxed(jax.random.key(0), self._flags))
        leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda x: isinstance(x, linen.meta.AxisMetadata))
        named = {jax.tree_util.keystr(keys, simple=True, separator="/"): getattr(x, "names", ()) for keys, x in leaves}
        return {path.removeprefix("params/"): tuple(names) for path, names in named.items() if names}

    def _trained_paths(self, trainable: Any) -> frozenset[Path] | None:
        params, _ = jax.eval_shape(lambda: self._variables(jax.random.key(0), self._flags))
        found = jax.tree_util.tree_leaves_with_path(params)
        leaves = {tuple(str(entry.key) for entry in path): leaf for path, leaf in found}
        if callable(trainable):
            return _trained_paths(leaves, lambda path: bool(trainable(path, leaves[path])), trainable)
        paths: set[Path] = set()
        for ending in (trainable,) if isinstance(trainable, str) else trainable:
            paths.update(_trained_paths(leaves, lambda path: ends("/".join(path), ending), ending) or leaves)  # noqa: B023
        return _trained_paths(leaves, paths.__contains__, trainable)

    def _boxed(self, key: jax.Array, flags: CallFlags) -> dict[str, Any]:
        kept = linen.DenyList(("intermediates", "perturbations"))
        return dict(self._module.init(key, *self._inputs, mutable=kept, **{**flags.at(None), **self._named}))

    def _variables(self, key: jax.Array, flags: CallFlags) -> tuple[Tree, dict[str, Tree]]:
        """Return fresh parameters and the other collections, without those that Flax keeps for what is sown."""
        variables = linen.meta.unbox(self._boxed(key, flags))
        return variables.get("params", {}), {name: tree for name, tree in variables.items() if name != "params"}

    def _call(self, params: Tree, state: dict[str, Tree], key: jax.Array, inputs: Any, named: Any) -> tuple[Any, Any]:
        """Return the outputs in training, and the collections of `state` after it."""
        # A stream that is not given (dropout) falls back to `params`.
        rngs = {"params": key}
        return self._module.apply({"params": params, **state}, *inputs, rngs=rngs, mutable=list(state), **named)

    def _traced(self, flags: CallFlags, params: Tree, state: dict[str, Tree]) -> tuple[int, dict[str, bool]] | None:
        """Trace a call in training; returns how often it draws from its key, and which collections it changes.

        None: it raises.
        """

        def call(collections: list[Tree], params: Tree, key: jax.Array) -> Any:
            state = dict(zip(names, collections, strict=True))
            outputs, after = self._call(params, state, key, self._inputs, {**flags.at(key), **self._named})
            return [after[name] for name in names], outputs

        names, before = list(state), list(state.values())
        key = jax.eval_shape(lambda: jax.random.key(0))
        try:
            traced, (after, _) = jax.make_jaxpr(call, return_shape=True)(before, params, key)
        except Exception:  # noqa: BLE001 - the module is its author's, and it is tried with what it may not take
            return None
        key = traced.jaxpr.invars[-1]
        draws = sum(key in equation.invars for equation in traced.jaxpr.eqns)
        return draws, dict(zip(names, changed(traced.jaxpr, before, after), strict=True))

    def _activity(self, flags: CallFlags) -> Activity | None:
        try:
            shapes = jax.eval_shape(lambda: self._variables(jax.random.key(0), flags))
        except Exception:  # noqa: BLE001 - as in `_traced`
            return None
        traced = self._traced(flags, *shapes)
        if traced is None:
            return None
        draws, moved = traced
        others = sum(moves for name, moves in moved.items() if name not in ("batch_stats", "intermediates", "cache"))
        return Activity(draws + moved.get("batch_stats", False), others)

    def _is_sown(self, name: str, params: Tree, state: dict[str, Tree]) -> bool:
        """Return whether a collection is only written to: the call changes it, and does as well without it."""
        shapes = jax.eval_shape(lambda: (params, state))
        without = {other: tree for other, tree in shapes[1].items() if other != name}
        if self._traced(self._flags, shapes[0], without) is None:
            return False
        whole = self._traced(self._flags, *shapes)
        return whole is None or whole[1][name]


def _refuse_inactive(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Refuse a layer that training leaves in the state of evaluation, as an interceptor of linen's calls.

    Raises:
      TaskError: dropout is off, or batch statistics are not computed.
    """
    module = context.module
    if context.method_name == "__call__" and _differs_in_training(module):
        given = inspect.signature(type(module).__call__).bind_partial(module, *args, **kwargs)
        given.apply_defaults()
        for name, wanted in IN_TRAINING.items():
            value = given.arguments.get(name)
            value = getattr(module, name, None) if value is None else value
            if isinstance(value, bool) and value is not wanted:
                raise TaskError(
                    f"the layer {'/'.join(module.path) or 'itself'}, a {type(module).__name__}, has {name}={value} in "
                    "training, and no argument of the model's call was found that changes it: have the call take "
                    "it, as train: bool, or pass training={...} and evaluation={...}, the arguments of the call that "
                    "change it; or training={} if it is meant"
                )
    return call(*args, **kwargs)


def _differs_in_training(module: linen.Module) -> bool:
    """Return whether a module draws random numbers in training, or computes statistics."""
    if isinstance(module, linen.BatchNorm):
        return True
    return _drops({each.name: getattr(module, each.name, None) for each in dataclasses.fields(module)})


def _drops(attributes: Mapping[str, Any]) -> bool:
    """Return whether a layer's attributes have a rate of dropout."""
    rates = (value for name, value in attributes.items() if _RATE.search(name))
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)


_RATE = re.compile("rate|drop")


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
