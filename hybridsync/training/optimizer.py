"""The optimizer as a factory that names its hyperparameters, so that one optax state serves every protocol.

    >>> import optax
    >>> optimizer = Optimizer(optax.adamw, learning_rate=1e-3)
    >>> optimizer = Optimizer(optax.sgd, learning_rate=0.05, momentum=0.9)

The rate of an update is `learning_rate x the protocol's factor`, set in the optax state inside the jitted step;
everything else in the optax state means what it means in a plain optax loop. A rate that changes is a function of the
examples applied so far, or of the units with `per="units"`:

    >>> decaying = Optimizer(optax.sgd, learning_rate=optax.cosine_decay_schedule(0.05, decay_steps=2000), per="units")
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr
from jax.extend.core import Literal as Constant

from hybridsync.config import OptimizerConfig, ScheduleConfig, flattened, to_json
from hybridsync.core.errors import OptimizerError
from hybridsync.core.user_code import explain
from hybridsync.policies.momentum import MomentumHandling
from hybridsync.training.wire import rounded

Rate = Callable[[jax.Array], Any]
"""Progress -> learning rate. Progress is examples applied so far (see `examples_at`); with `per="units"` it is units
applied so far (int32)."""

Per = Literal["examples", "units"]

MAX_INT32 = 2**31 - 1

NUM_RATES = 32
"""Places of a run at which a schedule is looked at."""

SCHEDULE = "the schedule of the learning rate"
_RATE_PATH = (jax.tree_util.GetAttrKey("hyperparams"), jax.tree_util.DictKey("learning_rate"))

SLOTS = ("trace", "mu")
"""Fields of optax states that hold a momentum."""

_HOW = (
    "pass a function that names its hyperparameters and their values, for example "
    "Optimizer(optax.adamw, learning_rate=1e-3), or one of your own for a chain"
)
_BY_UNITS = (
    "it counts update steps, and how many units an update applies depends on the protocol; pass the learning rate's "
    "schedule as Optimizer(..., learning_rate=schedule), a function of examples or units, and constants for the rest"
)
_REFUSED_STATES = {
    "ScaleByScheduleState": _BY_UNITS,
    "WeightDecaySchedule": _BY_UNITS,
    "WrappedScheduleState": _BY_UNITS,
    "MultiStepsState": "it counts optimizer steps; batches change by units per update here",
    "ScheduleFreeState": "its parameters are not those to evaluate",
    "LookaheadState": "its parameters are not those to evaluate",
}

_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""JAX raises these where Python asks for the value of a traced array."""


class Optimizer:
    """An optax transformation to be built from named hyperparameters.

    Args:
      factory: returns an `optax.GradientTransformation`; its parameters are the hyperparameters' names and include
        `learning_rate`.
      learning_rate: eta for one worker's unit: a float, or a function of progress (see `per`).
      per: what a `learning_rate` function is given: the "examples" applied so far, or the "units". A resume that
        converts units to another size changes what a unit is, but not an example.
      clip: global norm to which each unit's gradient is clipped on its worker; None leaves it.
      master: whether parameters of bfloat16 are updated as float32, of which the optimizer's state keeps what bfloat16
        cannot hold.
      **hyperparameters: the factory's other arguments.

    Raises:
      OptimizerError: a ready transformation was passed, `learning_rate` is not a parameter of the factory, a
        hyperparameter is unknown to it, `per` is neither, or the transformation is one that cannot be trained with
        here.
    """

    def __init__(
        self,
        factory: Callable[..., optax.GradientTransformation],
        *,
        learning_rate: float | Rate,
        per: Per = "examples",
        clip: float | None = None,
        master: bool = False,
        **hyperparameters: Any,
    ) -> None:
        if isinstance(factory, tuple) or not callable(factory):
            raise no_optimizer(factory)
        names = set(inspect.signature(factory).parameters)
        if "learning_rate" not in names:
            raise OptimizerError(f"the factory's parameters are {sorted(names)}, no learning_rate: {_HOW}")
        unknown = sorted(set(hyperparameters) - names)
        if unknown:
            raise OptimizerError(f"the factory has no parameter {unknown[0]!r}, only {sorted(names)}; {_HOW}")
        if clip is not None and not clip > 0:
            raise OptimizerError(f"clip is {clip}; it must be above 0, or None for no clipping")
        if per not in get_args(Per):
            raise OptimizerError(f"per is {per!r}; a rate counts per {' or '.join(map(repr, get_args(Per)))}")
        self.factory = factory
        self.learning_rate = learning_rate
        self.per: Per = per
        self.clip = clip
        self.master = master
        self.configured: OptimizerConfig | None = None  # set where `from_config` builds it
        # NumPy's scalars are numbers to optax only where they are arrays.
        self.hyperparameters = hyperparameters = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in hyperparameters.items()
        }
        # optax takes a function among the values for a schedule of update steps; here it is the factory's own to call.
        functions = [name for name, value in hyperparameters.items() if callable(value)]
        made_by = _with_master(factory) if master else factory
        injected = optax.inject_hyperparams(made_by, static_args=functions, hyperparam_dtype=jnp.dtype(jnp.float32))
        self._tried: set[Any] = set()
        self.transformation = injected(learning_rate=jnp.float32(_first_rate(learning_rate)), **hyperparameters)

    def learning_rate_at(self, progress: jax.Array) -> jax.Array:
        """Return eta at `progress`, which counts what `per` says, float32 scalar."""
        value = self.learning_rate(progress) if callable(self.learning_rate) else self.learning_rate
        return jnp.asarray(value, jnp.float32)

    def learning_rate_after(self, units: jax.Array, unit_size: int, workload: int) -> jax.Array:
        """Return eta after `units` (int32) applied units; traceable.

        Args:
          units: units applied so far.
          unit_size: examples of a unit.
          workload: units of the whole run.
        """
        if self.per == "units":
            return self.learning_rate_at(units)
        return self.learning_rate_at(examples_at(units, unit_size, workload))

    def sampled_rates(self, unit_size: int, workload: int) -> list[float]:
        """Return eta at NUM_RATES places of a run, evenly spaced from its start.

        Args:
          unit_size: examples of a unit.
          workload: units of the whole run.

        Raises:
          OptimizerError: the schedule raises, or a rate is not a finite number; the message names the place.
        """
        if not callable(self.learning_rate):
            return [float(np.float32(self.learning_rate))] * NUM_RATES
        total = workload * (1 if self.per == "units" else unit_size)
        number = jnp.float32 if self.per == "examples" and reads_floats(total) else jnp.int32
        rates = []
        for place in (at * total // NUM_RATES for at in range(NUM_RATES)):
            try:
                rates.append(float(self.learning_rate_at(number(place))))
            except Exception as error:  # the schedule is its author's
                raise OptimizerError(
                    f"{SCHEDULE} raised at {place:,} {self.per}: {explain(error)}; correct it"
                ) from error
            if not math.isfinite(rates[-1]):
                raise OptimizerError(
                    f"{SCHEDULE} gives {rates[-1]} at {place:,} of {total:,} {self.per}; return a finite number at "
                    "every place of the run"
                )
        return rates

    def stated_values(self) -> dict[str, str]:
        """Return the hyperparameters besides the learning rate as text, the same in every process."""
        return {name: _stated(value) for name, value in sorted(self.hyperparameters.items())}

    def recorded_values(self, unit_size: int, workload: int) -> dict[str, Any]:
        """Return the optimizer's name and hyperparameters as JSON holds them, for people to compare runs by.

        One that a configuration names stands as there. Of another, a lambda is named by its parameters, a schedule by
        its first and last rate and its mean over the run, and what is no number or text by what it says of itself.

        >>> Optimizer(optax.sgd, learning_rate=0.05, momentum=0.9).recorded_values(32, workload=100)
        {'name': 'sgd', 'learning_rate': 0.05, 'momentum': 0.9}

        Args:
          unit_size: examples of a unit.
          workload: units of the whole run.

        Raises:
          OptimizerError: as `sampled_rates`.
        """
        if self.configured is not None:
            return to_json(self.configured)
        name = getattr(self.factory, "__name__", type(self.factory).__name__)
        if not name.isidentifier():
            name = f"custom({', '.join(inspect.signature(self.factory).parameters)})"
        rate: Any = self.learning_rate
        if callable(rate):
            rates = self.sampled_rates(unit_size, workload)
            rate = f"a schedule: {rates[0]:.4g} first, {rates[-1]:.4g} last, mean {math.fsum(rates) / NUM_RATES:.4g}"
        known = {"name": name, "learning_rate": rate if isinstance(rate, str) else float(rate)}
        known |= {} if self.clip is None else {"clip": self.clip}
        known |= {"master": True} if self.master else {}
        return known | {
            name: value if isinstance(value, bool | int | float | str) else _stated(value)
            for name, value in self.hyperparameters.items()
        }

    def shown_values(self, unit_size: int, workload: int) -> dict[str, Any]:
        """Return what `recorded_values` does, by dotted keys and without what is None."""
        found = flattened(self.recorded_values(unit_size, workload))
        return {name: value for name, value in found.items() if value is not None}

    def with_own_values(self, state: Any, params: Any) -> Any:
        """Return a saved optax state with this optimizer's hyperparameters in place of the saved ones.

        The learning rate stays: each update sets it.

        Args:
          state: an optax state of the same structure.
          params: the model's parameters, or their shapes.
        """

        def values() -> list[jax.Array]:
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
            fresh = jax.tree_util.tree_leaves_with_path(self.init(zeros))
            return [leaf for path, leaf in fresh if _is_hyperparameter(path)]

        # Compiled, the rest of the state is never computed: the chief has no room for a second one.
        own = iter(jax.device_get(jax.jit(values)()))
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: next(own) if _is_hyperparameter(path) else leaf, state
        )

    def init(self, params: Any) -> Any:
        """Return the optax state for `params`.

        Raises:
          OptimizerError: the transformation raises, needs extra arguments, counts update steps for a schedule, or keeps
            other parameters than the model's.
        """
        try:
            state: Any = self.transformation.init(params)
            for kind, why in _REFUSED_STATES.items():
                if _contains(state.inner_state, kind):
                    raise OptimizerError(f"the optimizer keeps a {kind}: {why}; use the transformation inside it")
            self._try_update(params, state)
        except OptimizerError:
            raise
        except _NEEDS_VALUES as error:
            line, *_ = str(error).splitlines()
            raise OptimizerError(
                f"the optimizer's factory needs the value of a hyperparameter in Python ({line}), but hyperparameters "
                "are traced, because the rate changes while the run goes on: leave out float(), int() and `if` on "
                "them, and write a schedule as learning_rate=schedule of the Optimizer, not inside the factory"
            ) from None
        except Exception as error:  # the factory is its author's: whatever it raises becomes one clear message
            raise OptimizerError(self._why_unusable(error)) from error
        return state

    def _try_update(self, params: Any, state: Any) -> None:
        """Trace an update, unless one of parameters of this structure and these types was traced before."""
        key = jax.tree.structure(params), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params))
        if key not in self._tried:
            jax.eval_shape(self.transformation.update, params, state, params)
            self._tried.add(key)

    def _why_unusable(self, error: Exception) -> str:
        functions = [name for name, value in self.hyperparameters.items() if callable(value)]
        if functions:
            return (
                f"the optimizer raised {explain(error)}; its factory is given {', '.join(functions)} as a function: "
                "only learning_rate can be a schedule, and a mask returns booleans for the parameters"
            )
        if isinstance(error, TypeError) and "argument" in str(error):
            return (
                f"the optimizer needs more than gradients, state and parameters ({error}); transformations with extra "
                "arguments cannot be used"
            )
        return f"the optimizer raised {explain(error)}; correct its factory, or the hyperparameters"

    def update(
        self, grads: Any, state: Any, params: Any, rate: jax.Array, share: jax.Array | None = None
    ) -> tuple[Any, Any]:
        """Return (updates, state) at learning rate `rate`; traceable.

        Args:
          grads: gradients, a tree like `params`.
          state: the optax state.
          params: before the update.
          rate: learning rate of this update.
          share: share of the momentum's own coefficient, in this update alone; None for all of it.
        """
        state = state._replace(hyperparams={**state.hyperparams, "learning_rate": rate})
        if share is None:
            updates, newer = self.transformation.update(grads, state, params)
            return updates, _in_types_of(state, newer)
        own = state.hyperparams["momentum"]
        scaled = state._replace(hyperparams={**state.hyperparams, "momentum": own * share})
        after: Any
        updates, after = self.transformation.update(grads, scaled, params)
        after = after._replace(hyperparams={**after.hyperparams, "momentum": own})
        return updates, _in_types_of(state, after)

    def check_rate(self, params: Any, state: Any = None) -> ClosedJaxpr:
        """Check that the updates depend on the learning rate, which the run scales and reports.

        The check is on the traced program, not on numbers: it needs no memory, and knows no gradient by chance. Returns
        that program: (rate, gradients, optax state, parameters) -> (updates, optax state).

        Args:
          params: the model's parameters, or their shapes.
          state: shapes of the optax state; None finds them.

        Raises:
          OptimizerError: no update depends on it, for example in `lambda learning_rate: optax.sgd(0.1)`.
        """
        leaves = jax.tree.leaves(params)
        state = jax.eval_shape(self.init, params) if state is None else state
        program = jax.make_jaxpr(lambda rate, grads, state, params: self.update(grads, state, params, rate))(
            jax.ShapeDtypeStruct((), jnp.float32), params, state, params
        )
        jaxpr = program.jaxpr
        reached = {jaxpr.invars[0]}
        for equation in jaxpr.eqns:
            if any(not isinstance(variable, Constant) and variable in reached for variable in equation.invars):
                reached.update(equation.outvars)
        updates = [variable for variable in jaxpr.outvars[: len(leaves)] if not isinstance(variable, Constant)]
        if leaves and reached.isdisjoint(updates):
            raise OptimizerError(
                "the optimizer's factory takes learning_rate and does not use it: its updates are the same at every "
                "rate, so neither the rate that the run reports nor a protocol's scaling would have any effect. Hand "
                "the argument on, as in lambda learning_rate: optax.sgd(learning_rate); a schedule goes into "
                "Optimizer(..., learning_rate=schedule)"
            )
        return program

    def check_momentum(self, handling: MomentumHandling, state: Any) -> None:
        """Check that the momentum can be handled so.

        Args:
          handling: treatment of the momentum.
          state: an optax state, or its shapes.

        Raises:
          OptimizerError: there is no such coefficient, or there are no such slots.
        """
        name = f"policy.momentum={handling.variant}"
        if handling.variant == "zero":
            if not momentum_slots(state):
                raise OptimizerError(
                    f"{name} zeroes the momentum, but the optimizer keeps none: its state has no field "
                    f"{' or '.join(SLOTS)}; choose policy.momentum=keep, or an optimizer with momentum"
                )
        elif handling.variant != "keep" and "momentum" not in state.hyperparams:
            raise OptimizerError(
                f"{name} changes the coefficient, but the factory names {sorted(state.hyperparams)} and no momentum "
                f"that is a number; {_HOW}"
            )


class MasterState(NamedTuple):
    """State of an optimizer of float32 masters: `low` is what each master has more than its parameter."""

    inner: Any
    low: Any


def _with_master(factory: Callable[..., optax.GradientTransformation]) -> Callable[..., optax.GradientTransformation]:
    """Return a factory whose transformation updates a float32 master of each parameter.

    The state keeps the difference: whatever else moves the parameters, such as a mean over workers, moves the master.
    """

    @functools.wraps(factory)
    def made(*args: Any, **named: Any) -> optax.GradientTransformation:
        inner = factory(*args, **named)

        def init(params: Any) -> MasterState:
            masters = _float32(params)
            return MasterState(inner.init(masters), jax.tree.map(jnp.zeros_like, masters))

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            masters = jax.tree.map(jnp.add, _float32(params), state.low)
            steps, after = inner.update(_float32(updates), state.inner, masters)
            masters = jax.tree.map(jnp.add, masters, steps)
            updates = jax.tree.map(lambda m, p, s: s if p.dtype == m.dtype else m - p, masters, params, steps)
            # As the caller rounds it: what it adds up to is in no other type than the parameter's.
            kept = rounded(jax.tree.map(lambda p, u: p + u, params, updates))
            low = jax.tree.map(
                lambda m, p, k: jnp.zeros_like(m) if p.dtype == m.dtype else m - k, masters, params, kept
            )
            return updates, MasterState(after, low)

        return optax.GradientTransformation(init, update)

    return made


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def _first_rate(learning_rate: Any) -> Any:
    """Return eta at the start of a run, once it is known that a step can read the schedule.

    Raises:
      OptimizerError: it is no number, and no function that JAX can trace to one.
    """
    if not callable(learning_rate):
        if not isinstance(learning_rate, int | float | np.generic | np.ndarray | jax.Array) or np.shape(learning_rate):
            raise OptimizerError(f"learning_rate is {learning_rate!r}; give a number, or a function of progress")
        return _finite(learning_rate, "learning_rate")
    try:
        found = jax.eval_shape(learning_rate, jax.ShapeDtypeStruct((), jnp.int32))
    except _NEEDS_VALUES as error:
        raise OptimizerError(
            f"{SCHEDULE} needs the value of its argument in Python ({explain(error)}), but it is traced as a part of "
            "the step: use jnp.where for `if`, and jnp in place of float(), int() and NumPy"
        ) from None
    except Exception as error:  # the schedule is its author's: whatever it raises becomes one clear message
        raise OptimizerError(f"{SCHEDULE} raised {explain(error)}; correct it") from error
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape or not jnp.issubdtype(found.dtype, np.number):
        what = f"{found.dtype}{list(found.shape)}" if isinstance(found, jax.ShapeDtypeStruct) else repr(found)
        raise OptimizerError(f"{SCHEDULE} returns {what}; return one number, a scalar")
    return _finite(learning_rate(jnp.int32(0)), f"{SCHEDULE} at its start")


def _finite(rate: Any, what: str) -> Any:
    if not jnp.isfinite(rate):
        raise OptimizerError(f"{what} is {rate}; give a finite number")
    return rate


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of an object, in its text: another one in each process."""


def _stated(value: Any) -> str:
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{getattr(value, '__module__', '')}.{name}"
    with np.printoptions(threshold=sys.maxsize):  # else the middle of a long array is left out
        return _ADDRESS.sub("", repr(value))


def _is_hyperparameter(path: Any) -> bool:
    """Return whether a leaf of an optax state is a value that its user chose, as `inject_hyperparams` keeps them."""
    if path == _RATE_PATH:  # set by each update
        return False
    return any(isinstance(key, jax.tree_util.GetAttrKey) and key.name == "hyperparams" for key in path)


def _in_types_of(before: Any, after: Any) -> Any:
    """Return the state `after` with the dtypes of `before`.

    Hyperparameters are float32 arrays, so a bfloat16 momentum times its coefficient is float32. A state whose types
    changed with its first update would fit no checkpoint and no other role's.
    """
    return jax.tree.map(lambda old, new: new if new.dtype == old.dtype else new.astype(old.dtype), before, after)


def momentum_slots(state: Any) -> list[Any]:
    """Return the paths of an optax state's momentum."""
    return [path for name in SLOTS for path, _ in optax.tree.get_all_with_path(state, name, filtering=_is_field)]


def without_momentum(state: Any) -> Any:
    """Return an optax state whose momentum is zero; everything else in it stays."""
    for path in momentum_slots(state):
        (slot,) = (value for at, value in optax.tree.get_all_with_path(state, path[-1].name) if at == path)
        zeros = jax.tree.map(_zeros, slot)
        state = optax.tree.set(state, lambda at, _, wanted=path: at == wanted, **{path[-1].name: zeros})
    return state


def _is_field(path: Any, value: Any) -> bool:
    """Return whether a place in an optax state is a field of one of its tuples, and no parameter of that name."""
    return isinstance(path[-1], optax.tree_utils.NamedTupleKey)


def _zeros(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jnp.zeros_like(leaf, device=leaf.sharding)
    return np.zeros(leaf.shape, leaf.dtype)


def no_optimizer(value: Any) -> OptimizerError:
    """Return the error for a value that stands where an optimizer is expected; it says how to pass one."""
    kind = "a ready GradientTransformation" if isinstance(value, tuple) else f"a {type(value).__name__}"
    return OptimizerError(f"the optimizer is {kind}, whose learning rate can no longer be set; {_HOW}")


def _contains(tree: Any, kind: str) -> bool:
    """Tell whether any node of an optax state is of the class named `kind`."""
    if type(tree).__name__ == kind:
        return True
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return any(_contains(child, kind) for child in children)


def examples_at(units: jax.Array, unit_size: int, workload: int) -> jax.Array:
    """Return the examples in `units` units, as every schedule of a run reads them; traceable.

    Args:
      units: int32 scalar.
      unit_size: examples a unit.
      workload: units of the run.
    """
    return (units.astype(jnp.float32) if reads_floats(workload * unit_size) else units) * unit_size


def reads_floats(total_examples: int) -> bool:
    """Return whether a run's schedules read float32: twice its examples do not fit into int32."""
    return 2 * total_examples > MAX_INT32


def schedule(config: ScheduleConfig, learning_rate: float, total_examples: int) -> float | Rate:
    """Return the learning rate that a configuration describes, as a function of examples (Sync-Switch, ICDCS 2021).

    Args:
      config: kind, boundaries, factors, warm-up.
      learning_rate: eta at factor 1.
      total_examples: examples of the whole workload; the configuration speaks in shares of it.
    """
    if config.kind == "constant" and not config.warmup:
        return learning_rate

    def rate(examples: jax.Array) -> jax.Array:
        share = examples.astype(jnp.float32) / float(total_examples)
        factor = jnp.float32(1.0)
        if config.kind == "piecewise":
            for boundary, value in zip(config.boundaries, config.factors, strict=True):
                begin = jnp.asarray(round(boundary * total_examples), examples.dtype)
                factor = jnp.where(examples >= begin, jnp.float32(value), factor)
        elif config.kind == "cosine":
            factor = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(share, 0.0, 1.0)))
        if config.warmup:
            factor = factor * jnp.minimum(1.0, share / config.warmup)
        return learning_rate * factor

    return rate


def from_config(config: OptimizerConfig, workload: int, unit_size: int) -> Optimizer:
    """Return the optimizer that a configuration names: sgd, adam, adamw or lion.

    `momentum` is of sgd alone; the others' moments are optax's own. adam reads no `weight_decay`.

    Raises:
      OptimizerError: unknown name, or a weight decay for adam.
    """
    optimizer = _configured(config, schedule(config.schedule, config.learning_rate, workload * unit_size))
    optimizer.configured = config
    return optimizer


def _configured(config: OptimizerConfig, rate: float | Rate) -> Optimizer:
    if config.name == "sgd" and config.weight_decay:
        return Optimizer(
            lambda learning_rate, momentum, weight_decay: optax.chain(
                optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate, momentum)
            ),
            learning_rate=rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            clip=config.clip,
        )
    if config.name == "sgd" and config.momentum:
        return Optimizer(
            lambda learning_rate, momentum: optax.sgd(learning_rate, momentum),
            learning_rate=rate,
            momentum=config.momentum,
            clip=config.clip,
        )
    if config.name == "sgd":
        return Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=rate, clip=config.clip)
    if config.name == "adam":
        if config.weight_decay:
            raise OptimizerError(
                f"optimizer.weight_decay is {config.weight_decay}, but optimizer.name is 'adam', which has none; "
                "choose adamw, or optimizer.weight_decay=0"
            )
        return Optimizer(lambda learning_rate: optax.adam(learning_rate), learning_rate=rate, clip=config.clip)
    decayed = {"adamw": optax.adamw, "lion": optax.lion}
    if config.name not in decayed:
        raise OptimizerError(f"unknown optimizer {config.name!r}; known: adam, adamw, lion, sgd")
    make = decayed[config.name]
    return Optimizer(
        lambda learning_rate, weight_decay: make(learning_rate, weight_decay=weight_decay),
        learning_rate=rate,
        weight_decay=config.weight_decay,
        clip=config.clip,
    )
