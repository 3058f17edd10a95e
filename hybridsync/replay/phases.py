"""One phase computed again: on one device, or as one member of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hybridsync.paths.collective import Collective
from hybridsync.protocols import base
from hybridsync.replay.groups import in_groups
from hybridsync.replay.record import LoggedPhase
from hybridsync.state import TrainState
from hybridsync.step import Parameters, Programs

Note = Callable[[int], None]
"""Called with the sequence of each update that has been computed."""


def on_one_device(programs: Programs, state: TrainState, phase: LoggedPhase, note: Note) -> TrainState:
    """Return the state after `phase`: a served one, or another one whose workers were threads of one process.

    Every gradient is computed on the version of the parameters that the log names; versions are kept until their last
    use. A lock-step step sums its members' contributions in their order, as `paths.collective.Rendezvous` does.

    Args:
      programs: may not donate the parameters.
      state: the phase's starting state, on the device; parts of it are donated.
      phase: what to compute.
      note: told of each update.
    """
    if phase.path is base.Path.GROUP:
        return in_groups(programs, state, phase, note)
    last_use = {entry.base: entry.sequence for entry in phase.entries}
    versions = {phase.first: Parameters(state.params, state.model_state)}
    lockstep = phase.path is base.Path.SYNC
    for entry in phase.entries:
        contributions = [programs.zero] * (len(phase.members) if lockstep else len(entry.units))
        for slot, unit in entry.by_slot().items():
            contributions[slot] = programs.gradient(versions[entry.base], unit)
        total = contributions[0] if len(contributions) == 1 else programs.total(tuple(contributions))
        state = programs.update(state, total, units=len(entry.units), factor=entry.rate, blend=entry.blend)
        if last_use[entry.base] == entry.sequence:
            del versions[entry.base]
        if entry.sequence in last_use:
            versions[entry.sequence] = Parameters(state.params, state.model_state)
        note(entry.sequence)
    return state


def as_member(
    programs: Programs, state: TrainState, phase: LoggedPhase, worker: int, collective: Collective, note: Note
) -> TrainState:
    """Return the state after a lock-step phase, of which this process is the member `worker`.

    Args:
      programs: may donate the parameters.
      state: the phase's starting state, on the device; donated.
      phase: what to compute.
      worker: id of this member.
      collective: of all members.
      note: told of each update.
    """
    index = phase.members.index(worker)
    for entry in phase.entries:
        contribution: Any = programs.zero
        unit = entry.by_slot().get(index)
        if unit is not None:
            parameters = Parameters(state.params, state.model_state)
            contribution = jax.block_until_ready(programs.gradient(parameters, unit))
        total = collective.total(index, contribution)
        state = programs.update(state, total, units=len(entry.units), factor=entry.rate, blend=entry.blend)
        note(entry.sequence)
    return state
