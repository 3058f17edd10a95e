"""What a user's own code may follow of a run: `Callback`, and the run that it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridsync.config import RunConfig
from hybridsync.core.errors import ConfigError

Values = Mapping[str, Any]
"""A line of the record as JSON holds it: `t` in seconds from the first unit, a number that is not finite as None."""


@dataclass(frozen=True)
class CallbackRun:
    """The run that a callback follows.

    Args:
      config: resolved configuration.
      workdir: folder for everything that the run writes; None for a run that leaves nothing.
      stop: `stop(reason)` has the run save and end, with `exit` "stopped": the same command does not train on.
      say: `say(text)` shows one line where the run shows its own.
      optimizer: `name` of the optimizer that trains, and its hyperparameters: numbers, texts, booleans.
    """

    config: RunConfig
    workdir: Path | None
    stop: Callable[[str], object]
    say: Callable[[str], object]
    optimizer: Mapping[str, Any]


class Callback:
    """Follows a run: override what is of interest. Each callback is called in a thread of its own, in order.

    A callback is a guest: training does not wait for it, and what it raises or returns ends nothing. It is made and
    called where the chief is. A chief that takes the place of a lost one makes new callbacks, and calls `on_start`.

    A class with `needs_workdir = True` is refused in a run without a workdir, one with `needs_evaluations = True` in a
    run whose evaluations have no figures.
    """

    needs_workdir = False
    needs_evaluations = False

    def on_start(self, run: CallbackRun) -> None:
        """The run starts, or a session of it that resumes."""

    def on_metrics(self, run: CallbackRun, metrics: Values) -> None:
        """A line of `metrics.jsonl` was written."""

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        """A state was measured: the event `evaluation`, with a value for each figure.

        It is the state at `units`, which the run had at `state_t`; it is measured by `t`, and measuring took `secs`.
        """

    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        """A phase begins: the event `phase_entered`."""

    def on_checkpoint(self, run: CallbackRun, checkpoint: Values) -> None:
        """A state is durable: the event `checkpoint`. With a workdir it can be read from there."""

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        """The session has ended: the content of `summary.json`."""


def checked_callbacks(callbacks: Sequence[Callback], where: str) -> tuple[Callback, ...]:
    """Return callbacks that are some.

    Args:
      callbacks: as the user gave them.
      where: names them in an error.

    Raises:
      ConfigError: they are not a list, or one of them is not a `Callback`.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"{where} is of type {type(callbacks).__name__}, not a list of callbacks; put it into a list")
    for index, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
            raise ConfigError(
                f"{where}[{index}] is {what}, not an object of a class that inherits hybridsync.Callback; correct it"
            )
    return tuple(callbacks)
