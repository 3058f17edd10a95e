"""The replicas of a group phase from one group round of the apply log to the next, whatever computes them. Pure.

A member applies to its own replica the updates that it reports at a group round; then the group averages. The gradient
of a unit was computed after the group round that the entry names as its base: on what the replica is now, where that
was the member's last one, else on what it was when it met next, before it averaged. It may have met several times
since.
"""

from __future__ import annotations

from typing import Any, Protocol

from hybridsync.interfaces.messages import GroupReply
from hybridsync.storage.apply_log_entries import Entry

State = Any


class Steps(Protocol):
    """Computes a replica's steps."""

    def parameters(self, state: State) -> Any:
        """Return what a gradient is computed on."""
        ...

    def gradient(self, parameters: Any, unit: int) -> Any:
        """Return the contribution of one unit."""
        ...

    def step(self, state: State, contribution: Any, factor: float) -> State:
        """Return a replica after its own update by one unit."""
        ...

    def averaged(self, states: list[State], reply: GroupReply) -> list[State]:
        """Return the members' replicas after their average."""
        ...


class GroupHistory:
    """Follows the replicas of one phase.

    Args:
      steps: computes gradients, steps and means.
      state: state that all replicas begin with; never donated.
      first: sequence of that state.
      units: units applied in that state.
      own: the one place in the phase whose replica is followed, where others follow the rest; None follows all.
    """

    def __init__(self, steps: Steps, state: State, first: int, units: int, own: int | None = None) -> None:
        self._steps, self._start, self._first, self._units, self._own = steps, state, first, units, own
        self._states: dict[int, State] = {}
        self._last: dict[int, int] = {}
        self._before: dict[int, dict[int, Any]] = {}  # slot -> group round -> what it computed on after it

    def average_round(self, entry: Entry) -> State:
        """Carry out what an entry says; returns what the first of its members that is followed holds then."""
        steps, states = self._steps, self._states
        group = [slot for slot in entry.group if self._own in (None, slot)]
        for slot, base, unit in zip(entry.slots, entry.bases, entry.units, strict=True):
            if slot not in group:
                continue
            state = states.get(slot, self._start)
            now = base == self._last.get(slot, self._first)
            parameters = steps.parameters(state) if now else self._before[slot][base]
            states[slot] = steps.step(state, steps.gradient(parameters, unit), entry.rate)
            self._before.pop(slot, None)  # the next unit's gradient was computed after this one's update
        self._units += len(entry.units)
        reply = GroupReply(entry.group, (), entry.sequence, self._units, entry.optimizer)
        before = [states.get(slot, self._start) for slot in group]
        for slot, state, after in zip(group, before, steps.averaged(before, reply) if group else before, strict=True):
            last = self._last.get(slot, self._first)
            self._before.setdefault(slot, {})[last] = steps.parameters(state)
            self._last[slot], states[slot] = entry.sequence, after
        return states[group[0]] if group else self._start
