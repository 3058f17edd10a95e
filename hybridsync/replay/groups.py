"""A group phase computed again on one device: every member's replica, from meeting to meeting."""

from __future__ import annotations

import jax

from hybridsync.applylog import Entry
from hybridsync.messages import GroupReply
from hybridsync.mixing import Part, copied, mean, mixed, part_of
from hybridsync.replay.record import LoggedPhase
from hybridsync.state import TrainState
from hybridsync.step import Parameters, Programs


class Replicas:
    """The replicas of a group phase's members.

    Args:
      programs: may not donate the parameters.
      state: the phase's starting state, on the device; it is not donated.
      phase: what is computed.
    """

    def __init__(self, programs: Programs, state: TrainState, phase: LoggedPhase) -> None:
        self._programs = programs
        self._units = int(jax.device_get(state.counters["units"]))
        slots = range(len(phase.members))
        self._states = [copied(state) for _ in slots]
        self._last = [phase.first for _ in slots]
        self._before = [Parameters(state.params, state.model_state) for _ in slots]

    def meet(self, entry: Entry) -> TrainState:
        """Carry out what a meeting's entry says; returns what one of its members holds then."""
        for slot, base, unit in zip(entry.slots, entry.bases, entry.units, strict=True):
            self._update(slot, base, unit, entry.rate)
        self._units += len(entry.units)
        reply = GroupReply(entry.group, (), entry.sequence, self._units, entry.optimizer)
        parts = [part_of(self._states[slot], optimizer=entry.optimizer) for slot in entry.group]
        average = mean(tuple(parts)) if len(parts) > 1 else parts[0]
        for slot in entry.group:
            state = self._states[slot]
            self._before[slot], self._last[slot] = Parameters(state.params, state.model_state), entry.sequence
            self._states[slot] = mixed(state, _own(average, entry), reply)
        return self._states[entry.group[0]]

    def _update(self, slot: int, base: int, unit: int, rate: float) -> None:
        """Apply a unit whose gradient is on what the replica was before it last met, or is now."""
        state = self._states[slot]
        now = base == self._last[slot]
        gradient = self._programs.gradient(
            Parameters(state.params, state.model_state) if now else self._before[slot], unit
        )
        self._states[slot] = self._programs.update(state, gradient, units=1, factor=rate, blend=1.0)


def _own(average: Part, entry: Entry) -> Part:
    """Return the average for one member, whose next update donates the optimizer's state."""
    return average._replace(opt_state=copied(average.opt_state)) if entry.optimizer else average
