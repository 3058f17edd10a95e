"""What a restarted chief does first: it takes up what the roles are in the middle of."""

from __future__ import annotations

from hybridsync.chief.run_control import RunControl
from hybridsync.core.errors import PhaseBroken
from hybridsync.interfaces.phase import Phase
from hybridsync.phases import machine
from hybridsync.phases.capture_stage import CaptureStage
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.gather_stage import GatherStage
from hybridsync.phases.machine import Command, Step, Switching
from hybridsync.phases.member_waits import Arrivals
from hybridsync.phases.policy_driver import Steering
from hybridsync.phases.process_groups import Worlds
from hybridsync.phases.reporter import Reporter


class Rejoining:
    """Finds the phase that an earlier chief left, and goes on with it.

    Args:
      state: takes the phase.
      board: what the roles say of themselves.
      arrivals: waits for the roles.
      steering: takes up a detour of which no commit tells.
      worlds: takes up the meshes that were chosen before.
      reporter: knows from the record who took part.
      capture: captures the state of a phase that goes on.
      gather: goes back to the last commit where nobody is left.
    """

    def __init__(
        self,
        state: ControllerState,
        board: RunControl,
        arrivals: Arrivals,
        steering: Steering,
        worlds: Worlds,
        reporter: Reporter,
        capture: CaptureStage,
        gather: GatherStage,
    ) -> None:
        self._state, self._board, self._arrivals = state, board, arrivals
        self._steering, self._worlds, self._reporter = steering, worlds, reporter
        self._capture, self._gather = capture, gather

    def take_up(self) -> tuple[Switching, tuple[Command, ...]] | None:
        """Return the machine of the phase that the roles are in, with its first commands; None where nobody is left.

        An asynchronous phase whose servers are in it goes on as it is. Any other is broken: its workers wait for
        units already, and the next epoch begins from the newest state they hold.

        Raises:
          HybridSyncError: the run cannot go on.
        """
        self._arrivals.await_settled(self._reporter.present)
        standings = self._board.standings()
        phase = max((standing.phase for standing in standings.values()), key=lambda p: p.epoch, default=None)
        if phase is None:
            self._board.adopt(None)
            why = "the chief was restarted, and nobody was left"
            self._gather.go_on_from(self._state.capture, why, rolled_back=True)
            return None
        served = [s for (role, _), s in standings.items() if role == "server" and s.phase.epoch == phase.epoch]
        is_whole = phase.mode.is_served and len(served) == len(phase.servers) and all(s.open for s in served)
        self._adopt(phase, is_whole=is_whole)
        state = Switching(Step.RUN, phase.epoch.number)
        if is_whole:
            try:
                self._board.record(self._capture.take(final=False), final=False)
                self._board.open_leases()
                return state, ()
            except PhaseBroken as broken:  # a server is lost as well
                self._state.broken_by = str(broken)
        return machine.advance(state, machine.Broken())

    def _adopt(self, phase: Phase, *, is_whole: bool) -> None:
        self._state.phase, self._state.epoch = phase, phase.epoch
        self._board.adopt(phase, "" if is_whole else "the chief was restarted")
        self._steering.adopt(phase)
        self._reporter.continues(phase)
        for members, lane in self._reporter.meshes_used():
            self._worlds.used(members, lane)
