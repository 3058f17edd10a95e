"""Finds the arguments by which a model's call is told whether it trains.

`train`, `training` and `is_training` are True in training, `deterministic` and `use_running_average` False. Any other
argument that may be True or False is tried: in training it has the value with which the call draws more random numbers
or computes more batch statistics. If neither does, an argument keeps its default: what else a call may change (a cache,
what it sows, averages of its weights) is no sign of training. One without default has the value that changes more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from absl import logging

from hybridsync.core.errors import TaskError

IN_TRAINING = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
"""Arguments that are known by their names, and their values in training."""
_KEYS = ("rng", "rng_key", "prng_key", "dropout_key")


class Activity(NamedTuple):
    """Counts what a call does in training; caches and what is sown do not count. The larger one trains."""

    training: int
    """Random numbers that it draws, and batch statistics that it changes."""
    others: int
    """Changes of other state."""


@dataclass(frozen=True)
class CallFlags:
    """Holds what a model's call is told besides its inputs.

    Args:
      training: arguments in training.
      evaluation: arguments in evaluation, and where the model is made.
      keys: arguments that get a random key in training, and None otherwise.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    @staticmethod
    def given(training: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None) -> CallFlags | None:
        """Return the flags that a user has passed, None where none are: what trains is not what evaluates."""
        if training is None and evaluation is None:
            return None
        training = training or {}
        opposite = {name: not value for name, value in training.items() if isinstance(value, bool)}
        return CallFlags(training, {**opposite, **(evaluation or {})})

    def at(self, key: jax.Array | None) -> dict[str, Any]:
        """Return the arguments of a call in training with this key; None: in evaluation."""
        if key is None:
            return {**self.evaluation, **dict.fromkeys(self.keys)}
        return {**self.training, **{name: jax.random.fold_in(key, n) for n, name in enumerate(self.keys)}}


def find_flags(
    call: Callable[..., Any],
    num_inputs: int,
    named: Collection[str],
    activity: Callable[[CallFlags], Activity | None],
) -> CallFlags:
    """Read what a model's call is told off its signature.

    Args:
      call: the call of the model's class.
      num_inputs: positional arguments that the loss passes.
      named: arguments that the loss passes by their names.
      activity: what a call with these flags does in training; None where it raises.

    Raises:
      TaskError: an argument has no default, the loss does not pass it, and nothing shows what it should be.
    """
    _, *parameters = inspect.signature(call).parameters.values()
    parameters = [parameter for parameter in parameters if parameter.kind not in _VARIADIC][num_inputs:]
    training: dict[str, Any] = {}
    keys: list[str] = []
    tried: list[inspect.Parameter] = []
    for parameter in parameters:
        name = parameter.name
        if name in named:
            continue
        if name in IN_TRAINING:
            training[name] = IN_TRAINING[name]
        elif parameter.default in (None, _NONE) and (name in _KEYS or name.endswith("_rng")):
            keys.append(name)
        elif _may_be_bool(parameter):
            tried.append(parameter)

    def flags() -> CallFlags:
        return CallFlags(training, {name: not value for name, value in training.items()}, tuple(keys))

    required = [parameter.name for parameter in tried if parameter.default is _NONE]
    training |= dict.fromkeys(required, False)  # so that the others can be tried
    for parameter in tried:
        before = dict(training)
        active: dict[bool, Activity | None] = {}
        for value in (False, True):
            training[parameter.name] = value
            active[value] = activity(flags())
        off, on = active[False], active[True]
        asked = parameter.default is _NONE
        if off is not None and on is not None and (off.training != on.training or (asked and off != on)):
            training[parameter.name] = on > off
            logging.info("By trying, the model's call gets %s=%s in training.", parameter.name, on > off)
        elif asked:
            raise TaskError(
                f"the model's call takes {parameter.name!r}, which has no default, the loss does not pass it, and True "
                f"and False make no difference to what the call draws and changes (the names {', '.join(IN_TRAINING)} "
                f"are understood): pass training={{{parameter.name!r}: ...}} and evaluation={{...}} with the model"
            )
        else:
            training = before
    return flags()


_NONE = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def takes_flags(call: Callable[..., Any]) -> bool:
    """Return whether a call may have to be told whether it trains."""
    _, *parameters = inspect.signature(call).parameters.values()
    return any(
        each.name in IN_TRAINING or ((each.default, each.annotation) != (_NONE, _NONE) and _may_be_bool(each))
        for each in parameters
        if each.kind not in _VARIADIC
    )


def _may_be_bool(parameter: inspect.Parameter) -> bool:
    if parameter.annotation is _NONE:
        return parameter.default is _NONE or isinstance(parameter.default, bool)
    return "bool" in str(parameter.annotation) or parameter.default is _NONE
