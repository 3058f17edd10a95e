"""Computes in a simulation: nothing but time, or values that remember every update. Pure.

`gradients.py` computes real ones. A state is a value that no update changes; handles are opaque to all other modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from hybridsync.interfaces.messages import GroupReply
from hybridsync.protocols.base import FLOAT32, Change, Compensation

State = Any
Units = tuple[int, ...]
NO_LOSS: Any = None


class Unreplayable(BaseException):
    """Ends a simulation whose schedule is not the one that its numbers would have led to; no role may survive it."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a contribution, of the parameters, and of the whole state; and of the first two with a narrow wire."""

    gradient: int
    parameters: int
    state: int
    narrow: tuple[int, int] | None = None

    def on_wire(self, wire: str) -> tuple[int, int]:
        """Return the bytes of a contribution, and of the parameters, as they travel."""
        return (self.gradient, self.parameters) if wire == FLOAT32 or self.narrow is None else self.narrow


class Arithmetic(Protocol):
    """The three programs of a step on values of one kind; deterministic."""

    sizes: Sizes
    zero: Any

    def start(self) -> State:
        """Return the state before the first unit."""
        ...

    def entered(self, state: State) -> State:
        """Return what a phase that begins with `state` trains on (see `Programs.entered`)."""
        ...

    def parameters(self, state: State) -> Any:
        """Return what a gradient is computed on."""
        ...

    def gradient(self, parameters: Any, unit: int, wire: str = FLOAT32) -> Any:
        """Return the contribution of one unit, both rounded as a protocol's wire has it."""
        ...

    def loss(self, gradient: Any) -> Any:
        """Return a contribution's loss, None where there is none."""
        ...

    def non_finite(self, contribution: Any) -> str:
        """Name the first entry of a contribution that is no finite number; "" where all are."""
        ...

    def sum(self, contributions: Sequence[Any]) -> Any:
        """Return the ordered sum of one member's contributions to a step, at least one."""
        ...

    def update(
        self,
        state: State,
        contributions: Sequence[Any],
        *,
        units: int,
        factor: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> State:
        """Return the state after one update with the weighted, ordered sum of contributions, of `units` units."""
        ...

    def compensate(self, contribution: Any, base: Any, now: Any, how: Compensation, squares: Any) -> tuple[Any, Any]:
        """Return a contribution made up for its staleness, and the squares after it (see `Programs.compensate`)."""
        ...

    def opt_state(self, state: State) -> Any:
        """Return the optimizer state, for a worker that makes local updates."""
        ...

    def local_step(
        self, parameters: Any, opt_state: Any, moved: Any, gradient: Any, *, at: int, factor: float, replaces: bool
    ) -> tuple[Any, Any, Any]:
        """Return parameters, optimizer state and `moved` after a worker's own update (see `Programs.local_step`)."""
        ...

    def difference(self, contribution: Any, moved: Any) -> Any:
        """Return the contribution that says what own steps, the last one on `contribution`, have taken off."""
        ...

    def combine(self, parameters: Any, contribution: Any, blend: float, replaces: bool) -> Any:
        """Return parameters less a difference, or in its place."""
        ...

    def with_mean_opt_state(self, state: State, opt_states: Sequence[Any]) -> State:
        """Return a state with the mean of what workers left behind; with none of it, as it is."""
        ...

    def step(self, state: State, contribution: Any, factor: float) -> State:
        """Return a replica of a group phase after its own update by one unit."""
        ...

    def averaged(self, states: list[State], reply: GroupReply) -> list[State]:
        """Return the replicas of a group's members after their average, in their order."""
        ...

    def fingerprint(self, state: State) -> str:
        """Return what tells one state from another."""
        ...

    def computed(self, state: State) -> State:
        """Return the values of a state, which may have been recorded alone until now.

        Raises:
          Unreplayable: they show that the schedule cannot be.
        """
        ...


class Weightless:
    """Computes nothing: a state is how many updates it has had.

    Args:
      sizes: sizes of the model whose time is simulated.
    """

    zero = None

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def start(self) -> State:
        return 0

    def entered(self, state: State) -> State:
        return state

    def parameters(self, state: State) -> Any:
        return None

    def gradient(self, parameters: Any, unit: int, wire: str = FLOAT32) -> Any:
        return None

    def loss(self, gradient: Any) -> Any:
        return NO_LOSS

    def non_finite(self, contribution: Any) -> str:
        return ""

    def sum(self, contributions: Sequence[Any]) -> Any:
        return None

    def update(
        self,
        state: State,
        contributions: Sequence[Any],
        *,
        units: int,
        factor: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> State:
        return state + 1

    def compensate(self, contribution: Any, base: Any, now: Any, how: Compensation, squares: Any) -> tuple[Any, Any]:
        return contribution, squares

    def opt_state(self, state: State) -> Any:
        return None

    def local_step(
        self, parameters: Any, opt_state: Any, moved: Any, gradient: Any, *, at: int, factor: float, replaces: bool
    ) -> tuple[Any, Any, Any]:
        return None, None, None

    def difference(self, contribution: Any, moved: Any) -> Any:
        return None

    def combine(self, parameters: Any, contribution: Any, blend: float, replaces: bool) -> Any:
        return None

    def with_mean_opt_state(self, state: State, opt_states: Sequence[Any]) -> State:
        return state

    def step(self, state: State, contribution: Any, factor: float) -> State:
        return state + 1

    def averaged(self, states: list[State], reply: GroupReply) -> list[State]:
        return [reply.sequence] * len(states)

    def fingerprint(self, state: State) -> str:
        return str(state)

    def computed(self, state: State) -> State:
        return state


@dataclass(frozen=True)
class Counts:
    """A state of `Counting`: how often each unit was applied, and a digest of what was applied to what, in order.

    A replica of a group phase counts each of its own units n times, so that the mean of all n has it once. `opt_state`
    is the digest as of the last update that the run's optimizer made, with the states that workers uploaded.
    """

    digest: int
    counts: dict[int, int | Fraction]
    opt_state: int = 1


class Counting:
    """Remembers what was applied to what: the tally, and a digest in which the order and every base version count.

    Args:
      sizes: sizes of the messages.
      unfit: units whose contribution is not finite.
    """

    zero = (0, ())

    def __init__(self, sizes: Sizes, unfit: frozenset[int] = frozenset()) -> None:
        self.sizes, self._unfit = sizes, unfit

    def start(self) -> Counts:
        return Counts(1, {})

    def entered(self, state: Counts) -> Counts:
        return state

    def parameters(self, state: Counts) -> int:
        return state.digest

    def gradient(self, parameters: int, unit: int, wire: str = FLOAT32) -> tuple[int, tuple[int, ...]]:
        return _mix(parameters, unit), (unit,)

    def loss(self, gradient: Any) -> Any:
        return NO_LOSS

    def non_finite(self, contribution: Any) -> str:
        return next((f"unit {unit}" for unit in contribution[1] if unit in self._unfit), "")

    def sum(self, contributions: Sequence[Any]) -> tuple[int, Units]:
        value, units = contributions[0]
        for other, more in contributions[1:]:
            value, units = _mix(value, other), units + more
        return value, units

    def update(
        self,
        state: Counts,
        contributions: Sequence[Any],
        *,
        units: int,
        factor: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> Counts:
        digest, counts, summed = state.digest, dict(state.counts), 0
        for value, applied in contributions:
            digest = _mix(digest, value) if applied else digest  # an idle member's nothing
            for unit in applied:
                counts[unit] = counts.get(unit, 0) + 1
                summed += 1
        assert summed == units, f"an update says it holds {units} units, its contributions hold {summed}"
        for scale in (factor, *weights):
            digest = _mix(digest, round(1000 * scale))
        return Counts(digest, counts, digest if change == "optimizer" else state.opt_state)

    def opt_state(self, state: Counts) -> int:
        return state.opt_state

    def local_step(
        self, parameters: int, opt_state: int, moved: Any, gradient: Any, *, at: int, factor: float, replaces: bool
    ) -> tuple[int, int, tuple[int, Units]]:
        value, units = gradient
        taken, before = moved or (0, ())
        stepped = _mix(_mix(_mix(opt_state, value), at), round(1000 * factor))
        return _mix(parameters, stepped), stepped, (_mix(taken, stepped), before + units)

    def difference(self, contribution: Any, moved: Any) -> tuple[int, Units]:
        return moved

    def combine(self, parameters: int, contribution: tuple[int, Units], blend: float, replaces: bool) -> int:
        return _mix(parameters, contribution[0])

    def with_mean_opt_state(self, state: Counts, opt_states: Sequence[int]) -> Counts:
        averaged = state.opt_state
        for opt_state in opt_states:
            averaged = _mix(averaged, opt_state)
        return Counts(state.digest, state.counts, averaged)

    def compensate(self, contribution: Any, base: Any, now: Any, how: Compensation, squares: Any) -> tuple[Any, Any]:
        value, units = contribution
        return (_mix(_mix(value, base), now), units), squares

    def step(self, state: Counts, contribution: Any, factor: float) -> Counts:
        value, (unit,) = contribution
        counts = {**state.counts, unit: state.counts.get(unit, 0) + round(factor)}
        stepped = _mix(_mix(state.opt_state, value), round(1000 * factor))
        return Counts(_mix(state.digest, stepped), counts, stepped)

    def averaged(self, states: list[Counts], reply: GroupReply) -> list[Counts]:
        digest = opt_state = _mix(reply.sequence, reply.units)  # the learning rate follows the units
        units = {unit for state in states for unit in state.counts}
        for state in states:
            digest, opt_state = _mix(digest, state.digest), _mix(opt_state, state.opt_state)
        counts: dict[int, int | Fraction] = {}
        for unit in sorted(units):
            count = sum((Fraction(state.counts.get(unit, 0)) for state in states), Fraction(0)) / len(states)
            counts[unit] = int(count) if count.denominator == 1 else count
        if reply.optimizer:
            return [Counts(digest, counts, opt_state)] * len(states)
        return [Counts(digest, counts, state.opt_state) for state in states]

    def fingerprint(self, state: Counts) -> str:
        return f"{_mix(state.digest, state.opt_state):016x}"

    def computed(self, state: Counts) -> Counts:
        return state


_PRIME = (1 << 61) - 1


def _mix(digest: int, value: int) -> int:
    """Return a digest that depends on both, and on which is which."""
    return (digest * 1_000_003 + value * 8_191 + 12_345) % _PRIME
