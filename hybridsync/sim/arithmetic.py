"""What a simulation computes with: nothing but time, or values that remember every update. Pure.

`gradients.py` computes real ones. A state is a value that no update changes; handles are opaque to everybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from hybridsync.messages import GroupReply

State = Any
NO_LOSS: Any = None


@dataclass(frozen=True)
class Sizes:
    """Bytes of a contribution, of the parameters, and of the whole state."""

    gradient: int
    parameters: int
    state: int


class Arithmetic(Protocol):
    """The three programs of a step on values of one kind; deterministic."""

    sizes: Sizes
    zero: Any

    def start(self) -> State:
        """Return the state before the first unit."""
        ...

    def parameters(self, state: State) -> Any:
        """Return what a gradient is computed on."""
        ...

    def gradient(self, parameters: Any, unit: int) -> Any:
        """Return the contribution of one unit."""
        ...

    def loss(self, gradient: Any) -> Any:
        """Return a contribution's loss, None where there is none."""
        ...

    def non_finite(self, contribution: Any) -> str:
        """Name the first entry of a contribution that is no finite number; "" where all are."""
        ...

    def update(self, state: State, contributions: Sequence[Any], *, units: int, factor: float, blend: float) -> State:
        """Return the state after one update with the ordered sum of contributions, in which `units` units are."""
        ...

    def step(self, state: State, contribution: Any, factor: float) -> State:
        """Return a replica of a group phase after its own update by one unit."""
        ...

    def mixed(self, states: list[State], reply: GroupReply) -> list[State]:
        """Return the replicas of a group's members after their average, in their order."""
        ...

    def fingerprint(self, state: State) -> str:
        """Return what tells one state from another."""
        ...


class Weightless:
    """Computes nothing: a state is how many updates it has had.

    Args:
      sizes: of the model whose time is simulated.
    """

    zero = None

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def start(self) -> State:
        return 0

    def parameters(self, state: State) -> Any:
        return None

    def gradient(self, parameters: Any, unit: int) -> Any:
        return None

    def loss(self, gradient: Any) -> Any:
        return NO_LOSS

    def non_finite(self, contribution: Any) -> str:
        return ""

    def update(self, state: State, contributions: Sequence[Any], *, units: int, factor: float, blend: float) -> State:
        return state + 1

    def step(self, state: State, contribution: Any, factor: float) -> State:
        return state + 1

    def mixed(self, states: list[State], reply: GroupReply) -> list[State]:
        return [reply.sequence] * len(states)

    def fingerprint(self, state: State) -> str:
        return str(state)


@dataclass(frozen=True)
class Counts:
    """A state of `Counting`: how often each unit was applied, and a digest of what was applied to what, in order.

    A replica of a group phase counts each of its own units n times, so that the mean of all n has it once.
    """

    digest: int
    counts: dict[int, int | Fraction]


class Counting:
    """Remembers what was applied to what: the tally, and a digest in which the order and every base version count.

    Args:
      sizes: of the messages.
      unfit: units whose contribution is no finite number.
    """

    zero = (0, ())

    def __init__(self, sizes: Sizes, unfit: frozenset[int] = frozenset()) -> None:
        self.sizes, self._unfit = sizes, unfit

    def start(self) -> Counts:
        return Counts(1, {})

    def parameters(self, state: Counts) -> int:
        return state.digest

    def gradient(self, parameters: int, unit: int) -> tuple[int, tuple[int, ...]]:
        return _mix(parameters, unit), (unit,)

    def loss(self, gradient: Any) -> Any:
        return NO_LOSS

    def non_finite(self, contribution: Any) -> str:
        return next((f"unit {unit}" for unit in contribution[1] if unit in self._unfit), "")

    def update(self, state: Counts, contributions: Sequence[Any], *, units: int, factor: float, blend: float) -> Counts:
        digest, counts, summed = state.digest, dict(state.counts), 0
        for value, applied in contributions:
            digest = _mix(digest, value) if applied else digest  # an idle member's nothing
            for unit in applied:
                counts[unit] = counts.get(unit, 0) + 1
                summed += 1
        assert summed == units, f"an update says it holds {units} units, its contributions hold {summed}"
        return Counts(_mix(digest, round(1000 * factor)), counts)

    def step(self, state: Counts, contribution: Any, factor: float) -> Counts:
        value, (unit,) = contribution
        counts = {**state.counts, unit: state.counts.get(unit, 0) + round(factor)}
        return Counts(_mix(_mix(state.digest, value), round(1000 * factor)), counts)

    def mixed(self, states: list[Counts], reply: GroupReply) -> list[Counts]:
        digest, units = reply.sequence, {unit for state in states for unit in state.counts}
        for state in states:
            digest = _mix(digest, state.digest)
        counts: dict[int, int | Fraction] = {}
        for unit in sorted(units):
            count = sum((Fraction(state.counts.get(unit, 0)) for state in states), Fraction(0)) / len(states)
            counts[unit] = int(count) if count.denominator == 1 else count
        if reply.optimizer:
            return [Counts(digest, counts)] * len(states)
        return [Counts(_mix(digest, state.digest), counts) for state in states]

    def fingerprint(self, state: Counts) -> str:
        return f"{state.digest:016x}"


_PRIME = (1 << 61) - 1


def _mix(digest: int, value: int) -> int:
    """Return a digest that depends on both, and on which is which."""
    return (digest * 1_000_003 + value * 8_191 + 12_345) % _PRIME
