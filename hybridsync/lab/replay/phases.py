"""One phase computed again: on one device, or as one member of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hybridsync.collectives.backend import Communicator
from hybridsync.core.step_assignment import contribution_of
from hybridsync.lab.replay.group_replay import in_groups
from hybridsync.lab.replay.local_workers import Retracer
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.protocols import base
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import TrainState

Note = Callable[[int], None]
"""Called with the sequence of each update that has been computed."""


def on_one_device(programs: Programs, state: TrainState, phase: LoggedPhase, note: Note) -> TrainState:
    """Return the state after `phase`: a served one, or another one whose workers were threads of one process.

    Every gradient is computed on the version of the parameters that the log names; versions are kept until their last
    use. A lock-step step sums its members' contributions in their order, as `collectives.threads` does.

    Args:
      programs: may not donate the parameters.
      state: the phase's starting state, on the device; parts of it are donated.
      phase: phase to compute.
      note: called for each update.
    """
    if phase.mode.has_group_rounds:
        return in_groups(programs, state, phase, note)
    if phase.protocol.local_updates:
        return _stepped(programs, state, phase, note)
    last_use = {version: entry.sequence for entry in phase.entries for version in entry.versions}
    versions = {phase.first: Parameters(state.params, state.model_state)}
    lockstep, how, squares = phase.mode.moves_together, phase.protocol.compensated, None
    assignment = phase.assignment
    for entry in phase.entries:
        if lockstep:
            divided = assignment.divide(entry.by_slot().items())
            contributions = [contribution_of(programs, versions[entry.base], units) for units in divided]
            total = contributions[0] if len(contributions) == 1 else programs.total(tuple(contributions))
        else:
            total, squares = _pushed(
                programs, state, versions, entry=entry, how=how, squares=squares, wire=phase.protocol.wire_dtype
            )
        state = programs.update(state, total, units=len(entry.units), factor=entry.rate, blend=entry.blend)
        for version in entry.versions:
            if last_use[version] == entry.sequence:
                del versions[version]
        if entry.sequence in last_use:
            versions[entry.sequence] = Parameters(state.params, state.model_state)
        note(entry.sequence)
    return state


def _stepped(programs: Programs, state: TrainState, phase: LoggedPhase, note: Note) -> TrainState:
    """Return the state after a phase whose workers made local updates (see `on_one_device`)."""
    last_use = {version: entry.sequence for entry in phase.entries for version in entry.versions}
    versions = {phase.first: Parameters(state.params, state.model_state)}
    start, num_workers = int(state.counters["units"]), len(phase.members)
    protocol = phase.protocol
    change = protocol.change(num_workers)
    retracer = Retracer(
        protocol,
        programs,
        programs.gradient,
        state.opt_state,
        num_workers=num_workers,
        start=start,
        first=phase.first,
        entries=phase.entries,
    )
    for entry in phase.entries:
        contributions = retracer.contributions(entry, versions)
        total = programs.sum(contributions)
        state = programs.update(
            state, total, units=len(entry.units), factor=entry.rate, blend=entry.blend, change=change
        )
        versions = {at: kept for at, kept in versions.items() if last_use.get(at, 0) > entry.sequence}
        versions[entry.sequence] = Parameters(state.params, state.model_state)
        note(entry.sequence)
    if not phase.left:
        return state
    left = dataclasses.replace(state, opt_state=programs.mean_state(retracer.opt_states_left(phase.left)))
    return left if phase.after in ("", fingerprint(left)) else state


def _pushed(
    programs: Programs,
    state: TrainState,
    versions: Mapping[int, Parameters],
    entry: Entry,
    how: base.Compensation | None,
    squares: Any,
    wire: str,
) -> tuple[Any, Any]:
    """Return the sum of an update's pushes, each of one unit, as the server has made it, and the squares after it."""
    now, gradients = Parameters(state.params, state.model_state), []
    for part in entry.pushes:
        for unit in part.units:
            gradient = programs.gradient(versions[part.base], unit, wire)
            if how is not None:
                gradient, squares = programs.compensate(gradient, versions[part.base], now, how, squares)
            gradients.append(gradient)
    weights = [part.weight for part in entry.pushes for _ in part.units]
    return programs.sum(gradients, () if set(weights) == {1.0} else weights), squares


def as_member(
    programs: Programs, state: TrainState, phase: LoggedPhase, worker: int, communicator: Communicator, note: Note
) -> TrainState:
    """Return the state after a lock-step phase, of which this process is the member `worker`.

    Args:
      programs: may donate the parameters.
      state: the phase's starting state, on the device; donated.
      phase: phase to compute.
      worker: id of this member.
      communicator: communicator of all members.
      note: called for each update.
    """
    index, assignment = phase.members.index(worker), phase.assignment
    for entry in phase.entries:
        units, parameters = (
            assignment.divide(entry.by_slot().items())[index],
            Parameters(state.params, state.model_state),
        )
        contribution = jax.block_until_ready(contribution_of(programs, parameters, units))
        if not units:  # else the gradient on its parameters has shown that the last update has read its total
            jax.block_until_ready(state)
        total = communicator.sum(index, contribution)
        state = programs.update(state, total, units=len(entry.units), factor=entry.rate, blend=entry.blend)
        note(entry.sequence)
    return state
