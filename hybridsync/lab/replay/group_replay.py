"""A group phase computed again: every member's replica on one device, or one of them as a member of its groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hybridsync.collectives.backend import Communicator
from hybridsync.interfaces.messages import GroupReply
from hybridsync.lab.replay.group_history import GroupHistory
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.training.averaging import averaged, averaged_on_one_device, copied, part_of
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import TrainState


class _Steps:
    """A replica's steps by the run's programs, which may not donate the parameters (see `group_history.Steps`)."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def parameters(self, state: TrainState) -> Parameters:
        return Parameters(state.params, state.model_state)

    def gradient(self, parameters: Parameters, unit: int) -> Any:
        return self._programs.gradient(parameters, unit)

    def step(self, state: TrainState, contribution: Any, factor: float) -> TrainState:
        opt_state, counters = copied((state.opt_state, state.counters))  # which the update donates
        own = TrainState(state.params, opt_state, state.model_state, state.protocol_state, counters)
        return self._programs.update(own, contribution, units=1, factor=factor, blend=1.0)

    def averaged(self, states: list[TrainState], reply: GroupReply) -> list[TrainState]:
        return averaged_on_one_device(states, reply, self._programs.moving)


class _MemberSteps(_Steps):
    """The same for one member, whose averages are those of its groups."""

    def __init__(self, programs: Programs, communicator: Communicator, own: int) -> None:
        super().__init__(programs)
        self._communicator, self._own = communicator, own

    def averaged(self, states: list[TrainState], reply: GroupReply) -> list[TrainState]:
        (state,) = states
        part = part_of(self._programs.moving(state), optimizer=reply.optimizer)
        if len(reply.members) > 1:
            part = self._communicator.group_mean(reply, self._own, part)
        return [averaged(state, part, reply)]


def in_groups(
    programs: Programs,
    state: TrainState,
    phase: LoggedPhase,
    note: Callable[[int], None],
    member: tuple[Communicator, int] | None = None,
) -> TrainState:
    """Return the state after a group phase.

    Args:
      programs: may not donate the parameters.
      state: the phase's starting state, on the device; not donated.
      phase: phase to compute.
      note: called with the sequence of each group round.
      member: how the groups of this process average, and its place in the phase; None computes all replicas here.
    """
    steps = _Steps(programs) if member is None else _MemberSteps(programs, *member)
    own = None if member is None else member[1]
    group_history = GroupHistory(steps, state, phase.first, int(jax.device_get(state.counters["units"])), own)
    for entry in phase.entries:
        state = group_history.average_round(entry)
        note(entry.sequence)
    return state
