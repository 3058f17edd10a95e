"""The training state, the same in every mode: arrays only, free of any topology."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.core.counted import counted
from hybridsync.core.errors import HybridSyncError, TaskError, described
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.task import Task

_SHAPES: WeakKeyDictionary[Optimizer, dict[Any, tuple[Any, TrainState]]] = WeakKeyDictionary()
"""What `abstract_state` has returned, with the function `init`, whose number is then no other's."""


@flax.struct.dataclass
class TrainState:
    """Holds everything that training carries from one update to the next.

    Args:
      params: the model's parameters, as the task returns them.
      opt_state: the optax state, with the injected hyperparameters.
      model_state: non-parameters (BatchNorm statistics, counters); {} when there are none.
      protocol_state: further state of one protocol; {} is always legal.
      counters: {"units": int32 units applied, "updates": int32 optimizer updates applied}.
    """

    params: Any
    opt_state: Any
    model_state: Any
    protocol_state: Any
    counters: dict[str, Any]

    def __repr__(self) -> str:
        parts = ("params", "opt_state", "model_state", "protocol_state")
        sizes = (f"{name}={_size_of(getattr(self, name))}" for name in parts)
        counters = ", ".join(f"{name}={value}" for name, value in self.counters.items())
        return f"TrainState({', '.join(sizes)}, {counters})"


def _size_of(tree: Any) -> str:
    leaves = jax.tree.leaves(tree)
    return f"<{counted(len(leaves), 'array')}, {counted(sum(np.size(leaf) for leaf in leaves), 'number')}>"


def initial_state(task: Task, optimizer: Optimizer, seed: int, kept: tuple[str, ...] = ()) -> TrainState:
    """Return the state before the first unit; a pure function of the arguments.

    Args:
      task: task that is trained.
      optimizer: optimizer of the training.
      seed: random seed of the run.
      kept: names of the protocols that keep an outer momentum; it is 0 at the start.

    Raises:
      TaskError: the task's init raises, or does not return (params, model_state), or a parameter cannot be trained.
      OptimizerError: the optimizer is one that cannot be trained with.
    """
    try:
        made = task.init(jax.random.key(seed))
    except HybridSyncError:
        raise
    except Exception as error:  # the task is its author's: whatever it raises becomes one clear message
        line, *_ = described(error).splitlines()
        raise TaskError(f"task.init raised {line}; correct the model or its values") from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise TaskError(f"task.init returned a {type(made).__name__}; it must return (params, model_state)")
    params, model_state = (jax.tree_util.tree_map_with_path(_array, tree) for tree in made)
    _check_parameters(params)
    counters = {"units": jnp.int32(0), "updates": jnp.int32(0)}
    momenta = {name: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params) for name in kept}
    return TrainState(params, optimizer.init(params), model_state, momenta, counters)


def _array(path: Any, leaf: Any) -> jax.Array:
    """Return a leaf of what init returns as a compiled program takes it: of float64 it takes float32, of 0 an int32."""
    try:
        return jnp.asarray(leaf, jnp.result_type(leaf))
    except TypeError:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        raise TaskError(f"task.init returns {name} as a {type(leaf).__name__}, not an array; leave it out") from None


def _check_parameters(params: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if dtype in (jnp.float32, jnp.bfloat16, jnp.float64):
            continue
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if dtype == jnp.float16:
            raise TaskError(
                f"parameter {name} is float16, whose gradients overflow above 65,504 and vanish below 6e-8, and losses "
                "are not scaled here; use bfloat16 or float32 (in Flax, param_dtype=jnp.bfloat16)"
            )
        raise TaskError(
            f"parameter {name} is {dtype}, which cannot be trained; use float32 or bfloat16, and put what is not "
            "learned into the model state"
        )


def abstract_state(task: Task, optimizer: Optimizer, kept: tuple[str, ...] = ()) -> TrainState:
    """Return the shapes and dtypes of the state without computing it (see `initial_state`).

    A process traces them once for each `init`, optimizer and `kept`, however many of its parts ask for them.
    """
    init = getattr(task.init, "inside", task.init)  # of one that is tried, which gives the same shapes
    known, key = _SHAPES.setdefault(optimizer, {}), (id(init), kept)
    if key not in known:
        known[key] = init, jax.eval_shape(lambda: initial_state(task, optimizer, 0, kept))
    return known[key][1]
