"""Lets a restarted chief take up what the roles are in the middle of."""

from __future__ import annotations

from hybridsync.chief.run_control import RunControl
from hybridsync.core.errors import PhaseBroken
from hybridsync.interfaces.phase import Phase
from hybridsync.phases import state_machine
from hybridsync.phases.capture_stage import CaptureStage
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.member_waits import MemberWaits
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.recovery_stage import GatherStage
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.state_machine import Command, Step, Switching


class Rejoining:
    """Finds the phase that an earlier chief left, and goes on with it.

    Args:
      state: takes the phase.
      control: the states that the roles report.
      arrivals: waits for the roles.
      policy_driver: takes up a detour that no commit contains.
      process_groups: takes up the meshes that were chosen before.
      reporter: knows from the record which workers took part.
      capture_stage: captures the state of a phase that continues.
      gather: goes back to the last commit if no role is left.
    """

    def __init__(
        self,
        state: ControllerState,
        control: RunControl,
        arrivals: MemberWaits,
        policy_driver: PolicyDriver,
        process_groups: ProcessGroups,
        reporter: Reporter,
        capture_stage: CaptureStage,
        gather: GatherStage,
    ) -> None:
        self._state, self._control, self._arrivals = state, control, arrivals
        self._policy_driver, self._process_groups, self._reporter = policy_driver, process_groups, reporter
        self._capture_stage, self._gather = capture_stage, gather

    def rejoin_phase(self) -> tuple[Switching, tuple[Command, ...]] | None:
        """Return the machine of the phase that the roles are in, with its first commands; None where nobody is left.

        An asynchronous phase whose servers are in it continues as it is. Any other is broken: its workers wait for
        units already, and the next phase begins from the newest state they hold.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        self._arrivals.await_registrations(self._reporter.present)
        role_states = self._control.members.role_states()
        phase = max((role_state.phase for role_state in role_states.values()), key=lambda p: p.id, default=None)
        if phase is None:
            self._control.adopt(None)
            why = "the chief was restarted, and nobody was left"
            self._gather.go_on_from(self._state.snapshot, why, rolled_back=True)
            return None
        served = [s for (role, _), s in role_states.items() if role == "server" and s.phase.id == phase.id]
        is_whole = phase.mode.is_served and len(served) == len(phase.servers) and all(s.open for s in served)
        self._adopt(phase, is_whole=is_whole)
        state = Switching(Step.RUN, phase.id.number)
        if is_whole:
            try:
                self._control.record(self._capture_stage.take_snapshot(final=False), final=False)
                self._control.open_leases()
                return state, ()
            except PhaseBroken as broken:  # a server is lost as well
                self._state.broken_by = str(broken)
        return state_machine.advance(state, state_machine.Broken())

    def _adopt(self, phase: Phase, *, is_whole: bool) -> None:
        self._state.phase, self._state.phase_id = phase, phase.id
        self._control.adopt(phase, "" if is_whole else "the chief was restarted")
        self._policy_driver.adopt(phase)
        self._reporter.continues(phase)
        for members, device_choice in self._reporter.meshes_used():
            self._process_groups.used(members, device_choice)
