"""The commands RESERVE and ANNOUNCE: a phase is reserved, and the next phase is entered from the captured state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync import protocols
from hybridsync.chief.run_control import RunControl
from hybridsync.collectives.device_choice import Mesh
from hybridsync.config import RunConfig
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import PhaseIds, ServerPort
from hybridsync.phases import state_machine
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.enter_servers import ServerEntry
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.member_waits import MemberWaits
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import Reach
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.schedule import Segment
from hybridsync.protocols.modes import SyncMode
from hybridsync.telemetry.switch_costs import SWITCHED, StageTimer, commits_switch


class EntryStage:
    """Composes the next phase, has its servers enter it, and announces it.

    Args:
      state: the captured state; takes the phase.
      config: the run's configuration.
      start_phase: number of the phase that the run begins above.
      control: ledger and announcements.
      servers: returns the servers by address; called when a phase needs them.
      phase_ids: reserves phase numbers.
      policy_driver: decides which protocol is entered, and with which members.
      arrivals: waits for the roles that the phase needs.
      process_groups: meshes of lock-step and group phases.
      entering: has the servers enter.
      pace: counts from the announcement on.
      reporter: writes the record.
      timer: measures the stages.
      upkeep: knows the lost workers.
    """

    def __init__(
        self,
        state: ControllerState,
        config: RunConfig,
        start_phase: int,
        control: RunControl,
        servers: Callable[[], Mapping[str, ServerPort]],
        phase_ids: PhaseIds,
        *,
        policy_driver: PolicyDriver,
        arrivals: MemberWaits,
        process_groups: ProcessGroups,
        entering: ServerEntry,
        pace: ProgressWatchdog,
        reporter: Reporter,
        timer: StageTimer,
        upkeep: Housekeeping,
    ) -> None:
        self._state, self._config, self._start_phase = state, config, start_phase
        self._control, self._servers, self._phase_ids = control, servers, phase_ids
        self._policy_driver, self._arrivals, self._process_groups, self._entering = (
            policy_driver,
            arrivals,
            process_groups,
            entering,
        )
        self._pace, self._reporter, self._timer, self._upkeep = pace, reporter, timer, upkeep

    def reserve(self) -> state_machine.Event:
        """Reserve the next phase: its number is durable before anybody hears of it."""
        started = self._timer.start()
        phase_id = self._state.phase_id = self._phase_ids.reserve(above=self._start_phase)
        self._timer.record("reserve", started)
        return state_machine.Reserved(phase_id.number)

    def announce(self) -> state_machine.Event:
        """Enter the next phase from the captured state, and announce it.

        Raises:
          PhaseBroken: a role was lost on the way into the phase.
          Preempted: the run was asked to stop while roles were waited for.
          WaitTimeout: a role did not come.
        """
        state = self._state
        assert state.phase_id is not None, "a phase is reserved before a phase is entered"
        started = self._timer.start()
        units = state.snapshot.held.units
        segment = self._policy_driver.next_segment(units)
        mode = protocols.parse(segment.spec).mode
        self._arrivals.await_needed(mode)
        self._reporter.tick()
        phase = self._next_phase(segment, mode, state.phase_id)
        before, state.phase = state.phase, phase
        if mode.is_served:
            with Reach(self._control, f"a server could not enter phase {phase.id}"):
                self._entering.enter(phase, self._servers(), state.snapshot.num_bytes)
        self._control.announce(phase, self._policy_driver.left_out(phase))
        self._pace.begin()
        self._reporter.entered(phase, units, state.broken_by, segment.stage + 1)
        state.broken_by = ""
        self._timer.record("enter", started)
        if before is not None and phase.reason in SWITCHED:
            self._report_switch(before, phase)
        return state_machine.Entered()

    def _next_phase(self, segment: Segment, mode: SyncMode, phase_id: PhaseId) -> Phase:
        members, device_choice = tuple(range(self._config.workers)), 0
        if not mode.is_served:
            members, device_choice = self._mesh(mode)
        snapshot = self._state.snapshot  # read here: a new process group comes with a new snapshot
        return Phase(
            id=phase_id,
            spec=segment.spec,
            members=members,
            device_choice=device_choice,
            end_units=segment.end_units,
            applied=snapshot.applied,
            dropped=self._control.ledger.all_dropped(snapshot.applied, snapshot.dropped),
            sequence=snapshot.held.sequence,
            source=self._state.source,
            snapshot_id=snapshot.snapshot_id,
            fingerprint=snapshot.held.fingerprint,
            servers=tuple(self._servers()) if mode.is_served else (),
            reason=self._state.reason,
            shares=self._policy_driver.shares(members) if mode.moves_together else (),
            order=segment.order,
            evaluate_units=self._config.telemetry.evaluate_units,
        )

    def _mesh(self, mode: SyncMode) -> Mesh:
        """Return a mesh of the workers that are there; where there is none, all start again in a new process group.

        They do so once more where one has come meanwhile that has no place in it: its host was away just before.
        """
        state = self._state
        while (mesh := self._process_groups.mesh(self._policy_driver.members(), mode)) is None:
            workers = self._control.members.live_workers()
            state.snapshot, state.source = self._process_groups.renew(state.snapshot, state.source)
            self._upkeep.take_fenced()
            self._arrivals.await_again(workers)
        return mesh

    def _report_switch(self, before: Phase, phase: Phase) -> None:
        usual = self._policy_driver.step_secs(phase) if phase.reason == "policy" else 0.0
        unit_secs = self._state.unit_secs / before.assignment.num_rounds  # of those of a step, one is waited for
        unit_secs = usual if usual and phase.shares else min(unit_secs, usual or unit_secs)
        commits = commits_switch(before.spec, phase.spec, phase.reason)
        self._reporter.switching(before, phase, self._state.snapshot, self._timer.times, unit_secs, commits)
