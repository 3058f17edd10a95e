"""Real gradients after the schedule: what a simulation computes is recorded, and computed in compiled blocks.

A schedule depends on no number, as long as every gradient is finite: it is the same without gradients. So the handles
here have no values, and `compiled_blocks` computes what was recorded when a block is full or a state is asked for: to
evaluate it, at a phase's start, at the end. A training loss is not reported.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax

from hybridsync.core.counted import counted
from hybridsync.core.errors import ConfigError
from hybridsync.lab.simulator.arithmetic import NO_LOSS, Unreplayable
from hybridsync.lab.simulator.compiled_blocks import Blocks, Record
from hybridsync.lab.simulator.gradients import sizes_of_programs
from hybridsync.protocols.base import FLOAT32, Change, Protocol
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState

INSTEAD = "simulate it with gradients=real"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Version:
    """Parameters that gradients are computed on; they stay in the ring while anybody holds this handle."""

    number: int


@dataclass(eq=False, slots=True, weakref_slot=True)
class State:
    """A state of the run.

    Args:
      number: of the state; no other has it.
      value: None while the updates that lead to it are recorded alone.
      version: returns its parameters' handle; None once nobody holds it any more.
      entered: what a phase that begins with it trains on, where that is another state, so that members share it.
    """

    number: int
    value: TrainState | None = None
    version: Any = None
    entered: State | None = None


Contribution = tuple[tuple[Version, int], ...]
"""Gradients in the order of their sum: the version and the unit of each."""


class _Pending(NamedTuple):
    """An update that is recorded alone; a version of it that nobody else holds is not kept after it."""

    gradients: tuple[tuple[Version, int], ...]
    weights: tuple[float, ...]
    made: Version
    state: weakref.ref[State]
    num_units: int
    factor: float
    blend: float

    def record(self) -> Record:
        """Return it without handles."""
        versions = tuple(version.number for version, _ in self.gradients)
        units = tuple(unit for _, unit in self.gradients)
        rates = {"num_units": self.num_units, "factor": self.factor, "blend": self.blend}
        return Record(versions, units, self.weights, self.made.number, **rates)


def check_plain(protocol: Protocol, num_workers: int) -> None:
    """Check that a protocol's updates are what compiled blocks compute: the optimizer's, of gradients alone.

    Raises:
      ConfigError: they are not; names the protocol and why.
    """
    why = ""
    if protocol.mode.has_group_rounds:
        why = "its workers average replicas of their own"
    elif protocol.local_updates:
        why = "its workers make updates of their own"
    elif protocol.compensated is not None:
        why = "its server corrects stale gradients"
    elif protocol.wire_dtype != FLOAT32:
        why = f"it rounds to {protocol.wire_dtype} on the wire"
    elif protocol.change(num_workers) != "optimizer":
        why = "its updates are not the optimizer's"
    if why:
        raise ConfigError(f"gradients=compiled cannot compute {protocol.name!r}: {why}; {INSTEAD}")


class DeferredArithmetic:
    """Records what is to be computed (see `hybridsync.lab.simulator.arithmetic.Arithmetic`).

    Args:
      run: task, optimizer and values.
      programs: compiled before, for a run that differs in its seed and plan alone; None compiles them.
      blocks: likewise, whose compiled loop is used again.

    Raises:
      ConfigError: the plan has a protocol that compiled blocks cannot compute, or the run's trigger follows the loss.
    """

    zero: Contribution = ()

    def __init__(self, run: Run, programs: Programs | None = None, blocks: Blocks | None = None) -> None:
        for protocol in run.stages:
            check_plain(protocol, run.config.workers)
        if run.config.policy.trigger != "off":
            trigger = run.config.policy.trigger
            raise ConfigError(f"gradients=compiled has no loss for policy.trigger={trigger!r} to follow; {INSTEAD}")
        self._run = run
        self._programs = programs or run.programs(donate_parameters=False, donate_rest=False)
        self._blocks = Blocks(self._programs, blocks, num_slots=run.config.workers + 4)
        self.sizes = sizes_of_programs(self._programs)
        self._numbers = itertools.count()
        self._versions: dict[int, weakref.ref[Version]] = {}
        self._pending: list[_Pending] = []
        self._num_pending = 0  # gradients
        self._newest = -1  # number of the state that the recorded updates lead to

    def of_seed(self, run: Run) -> Self:
        """Return the arithmetic of a run that differs in its seed and plan alone; nothing is compiled again."""
        return type(self)(run, self._programs.with_seed(run.config.seed), self._blocks)

    # --- what is recorded ---

    def start(self) -> State:
        return State(next(self._numbers), jax.device_put(self._run.initial_state()))

    def entered(self, state: State) -> State:
        if state.entered is None:
            value = self.computed(state)
            entered = self._programs.entered(value)
            if entered is value:
                return state
            state.entered = State(next(self._numbers), entered)
        return state.entered

    def parameters(self, state: State) -> Version:
        version = state.version() if state.version is not None else None
        if version is None:  # a state that was kept: nobody has computed on it since, or nobody ever has
            version = self._new_version(state)
            assert state.value is not None, f"version {state.number} left the ring before its state was computed"
            self._blocks.load(version.number, state.value)
        return version

    def gradient(self, parameters: Version, unit: int, wire: str = FLOAT32) -> Contribution:
        return self._refused() if wire != FLOAT32 else ((parameters, unit),)

    def loss(self, gradient: Any) -> Any:
        return NO_LOSS

    def non_finite(self, contribution: Any) -> str:
        return ""  # `Unreplayable` ends the simulation where that was wrong

    def sum(self, contributions: Sequence[Contribution]) -> Contribution:
        return tuple(itertools.chain.from_iterable(contributions))

    def update(
        self,
        state: State,
        contributions: Sequence[Contribution],
        *,
        units: int,
        factor: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> State:
        if change != "optimizer":
            self._refused()
        gradients = self.sum(contributions)
        if self._num_pending and self._num_pending + len(gradients) > self._blocks.most_units:
            self._compute()
        if state.number != self._newest:  # the first update, or one of an older state that was kept
            self._compute()
            self._blocks.continue_from(self.computed(state))
        made = State(next(self._numbers))
        each = weights or (1.0,) * len(contributions)
        spread = tuple(weight for weight, own in zip(each, contributions, strict=True) for _ in own)
        version = self._new_version(made)
        rates = {"num_units": units, "factor": factor, "blend": blend}
        self._pending.append(_Pending(gradients, spread, version, weakref.ref(made), **rates))
        self._num_pending += len(gradients)
        self._newest = made.number
        return made

    def with_mean_opt_state(self, state: State, opt_states: Sequence[Any]) -> State:
        return self._refused() if opt_states else state

    def fingerprint(self, state: State | TrainState) -> str:
        return fingerprint(state) if isinstance(state, TrainState) else f"{state.number:032x}"

    def _refused(self, *args: Any, **named: Any) -> Any:
        """Refuse what only a protocol asks for that `check_plain` refuses: one that a policy has chosen."""
        raise Unreplayable(f"the run came to a protocol whose updates gradients=compiled cannot compute; {INSTEAD}")

    compensate = opt_state = local_step = difference = combine = step = averaged = _refused

    # --- what is computed ---

    def computed(self, state: State) -> TrainState:
        if state.value is None:
            self._compute()
        if units := self._blocks.unfit():
            raise Unreplayable(
                f"the update by {counted(len(units), 'unit')} {', '.join(map(str, units))} is not finite: "
                f"gradients=compiled cannot drop what the schedule has applied; {INSTEAD}"
            )
        assert state.value is not None, f"state {state.number} was not held while the updates after it were computed"
        return state.value

    def _compute(self) -> None:
        """Compute what is recorded, and set the value of every state that somebody holds."""
        if not self._pending:
            return
        pending, self._pending, self._num_pending = self._pending, [], 0
        held = [(number, update.state()) for number, update in enumerate(pending, 1)]
        held = [(number, state) for number, state in held if state is not None]
        records = [update.record() for update in pending]
        pending.clear()  # and with it the handles of versions that nobody else holds
        self._versions = {number: version for number, version in self._versions.items() if version() is not None}
        values = self._blocks.run(records, [number for number, _ in held], self._versions)
        for (_, state), value in zip(held, values, strict=True):
            state.value = value

    def _new_version(self, state: State) -> Version:
        version = Version(state.number)
        state.version = self._versions[state.number] = weakref.ref(version)
        return version
