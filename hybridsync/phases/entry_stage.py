"""The commands RESERVE and ANNOUNCE: an epoch is reserved, and the next phase is entered from the captured state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync import protocols
from hybridsync.chief.run_control import RunControl
from hybridsync.collectives.device_choice import Mesh
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Epochs, ServerPort
from hybridsync.phases import machine
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.housekeeping import Upkeep
from hybridsync.phases.member_waits import Arrivals
from hybridsync.phases.policy_driver import Steering
from hybridsync.phases.process_groups import Worlds
from hybridsync.phases.progress_watchdog import Pace
from hybridsync.phases.recovery import Reach
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.schedule import Leg
from hybridsync.phases.server_entry import Entering
from hybridsync.phases.stage_timer import StageTimer
from hybridsync.protocols.modes import SyncMode
from hybridsync.telemetry.switch_costs import SWITCHED, commits_switch


class EntryStage:
    """Composes the next phase, has its servers enter it, and announces it.

    Args:
      state: the captured state; takes the phase.
      num_workers: of the run.
      start_epoch: number of the epoch that the run begins above.
      board: ledger and announcements.
      servers: address -> server, called when a phase needs them.
      epochs: reserves epoch numbers.
      steering: what is entered, and by whom.
      arrivals: waits for the roles that the phase needs.
      worlds: meshes of lock-step and group phases.
      entering: has the servers enter.
      pace: counts from the announcement on.
      reporter: writes the record.
      timer: measures the stages.
      upkeep: knows who was lost.
    """

    def __init__(
        self,
        state: ControllerState,
        num_workers: int,
        start_epoch: int,
        board: RunControl,
        servers: Callable[[], Mapping[str, ServerPort]],
        epochs: Epochs,
        *,
        steering: Steering,
        arrivals: Arrivals,
        worlds: Worlds,
        entering: Entering,
        pace: Pace,
        reporter: Reporter,
        timer: StageTimer,
        upkeep: Upkeep,
    ) -> None:
        self._state, self._num_workers, self._start_epoch = state, num_workers, start_epoch
        self._board, self._servers, self._epochs = board, servers, epochs
        self._steering, self._arrivals, self._worlds, self._entering = steering, arrivals, worlds, entering
        self._pace, self._reporter, self._timer, self._upkeep = pace, reporter, timer, upkeep

    def reserve(self) -> machine.Event:
        """Reserve the next epoch: its number is durable before anybody hears of it."""
        started = self._timer.start()
        epoch = self._state.epoch = self._epochs.reserve(above=self._start_epoch)
        self._timer.note("reserve", started)
        return machine.Reserved(epoch.number)

    def announce(self) -> machine.Event:
        """Enter the next phase from the captured state, and announce it.

        Raises:
          PhaseBroken: somebody was lost on the way into it.
          Preempted: the run was asked to stop while roles were waited for.
          WaitTimeout: a role did not come.
        """
        state = self._state
        assert state.epoch is not None, "an epoch is reserved before a phase is entered"
        started = self._timer.start()
        units = state.capture.held.units
        leg = self._steering.settle(units)
        mode = protocols.parse(leg.spec).mode
        self._arrivals.await_needed(mode)
        self._reporter.tick()
        phase = self._next_phase(leg, mode, state.epoch)
        before, state.phase = state.phase, phase
        if mode.is_served:
            with Reach(self._board, f"a server could not enter epoch {phase.epoch}"):
                self._entering.enter(phase, self._servers(), state.capture.num_bytes)
        self._board.announce(phase, self._steering.left_out(phase))
        self._pace.begin()
        self._reporter.entered(phase, units, state.broken_by)
        state.broken_by = ""
        self._timer.note("enter", started)
        if before is not None and phase.reason in SWITCHED:
            self._report_switch(before, phase)
        return machine.Entered()

    def _next_phase(self, leg: Leg, mode: SyncMode, epoch: Epoch) -> Phase:
        members, lane = tuple(range(self._num_workers)), 0
        if not mode.is_served:
            members, lane = self._worlds.mesh(self._steering.members(), mode) or self._renew_world(mode)
        capture = self._state.capture  # read here: a new world has another one
        return Phase(
            epoch=epoch,
            spec=leg.spec,
            members=members,
            lane=lane,
            end_units=leg.end_units,
            applied=capture.applied,
            dropped=self._board.ledger.all_dropped(capture.applied, capture.dropped),
            sequence=capture.held.sequence,
            source=self._state.source,
            capture_id=capture.capture_id,
            fingerprint=capture.held.fingerprint,
            servers=tuple(self._servers()) if mode.is_served else (),
            reason=self._state.reason,
            shares=self._steering.shares(members) if mode.moves_together else (),
        )

    def _renew_world(self, mode: SyncMode) -> Mesh:
        """Have every worker start again in a new world, and return a mesh of it."""
        state = self._state
        state.capture, state.source = self._worlds.renew(state.capture, state.source)
        self._upkeep.take_fenced()
        self._arrivals.await_all()
        mesh = self._worlds.mesh(self._steering.members(), mode)
        assert mesh is not None, "a new world has meshes"
        return mesh

    def _report_switch(self, before: Phase, phase: Phase) -> None:
        usual = self._steering.step_secs(phase) if phase.reason == "policy" else 0.0
        unit_secs = self._state.unit_secs / before.deal.num_rounds  # of those of a step, one is waited for
        unit_secs = usual if usual and phase.shares else min(unit_secs, usual or unit_secs)
        commits = commits_switch(before.spec, phase.spec, phase.reason)
        self._reporter.switching(before, phase, self._state.capture, self._timer.times, unit_secs, commits)
