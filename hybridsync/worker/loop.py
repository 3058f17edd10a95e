"""The worker loop, the same in a thread and in a process: take the next phase, have it run, until none follows."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hybridsync.core.activity import follow
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import PhaseRevoked, RoleLost, StalePhase, WaitTimeout, described, printable
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import MOST_REASON_CHARS, PhaseRequest, RoleState
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import WorkPort
from hybridsync.interfaces.reports import WAITING
from hybridsync.protocols.modes import SyncMode
from hybridsync.worker.phase_runner import PhaseRunner
from hybridsync.worker.replica import Replica
from hybridsync.worker.self_probe import Measuring
from hybridsync.worker.server_runner import ServerRunner
from hybridsync.worker.stats import WorkerRecorder


class WorkerLoop:
    """One worker from its registration to the end of the run.

    Args:
      worker: id of the worker.
      chief: the chief, which announces phases.
      runners: sync mode -> runner of its phases.
      replica: state that this worker holds at the end of a lock-step phase.
      recorder: carries the incarnation and the current phase.
      measuring: measures the worker while it is left out of lock-step.
    """

    def __init__(
        self,
        worker: int,
        chief: WorkPort,
        runners: Mapping[SyncMode, PhaseRunner | ServerRunner],
        replica: Replica,
        recorder: WorkerRecorder,
        clock: Clock,
        measuring: Measuring,
    ) -> None:
        self._worker, self._chief, self._runners = worker, chief, runners
        self._replica, self._recorder, self._clock, self._measuring = replica, recorder, clock, measuring
        self._lock = threading.Lock()
        self._phase: Phase | None = None
        self._inside = False

    def run(self) -> None:
        """Work until the chief says that the run is over.

        Raises:
          StaleIncarnation: another process has taken this worker's place.
          WaitTimeout: the chief announced no phase in time.
        """
        follow(self._recorder)
        phase_id, failure = NO_PHASE, ""
        while (phase := self._next_phase(phase_id, failure)) is not None:
            self._recorder.enter(phase.id, not phase.protocol.awaits_workers)
            with self._lock:
                self._phase, self._inside = phase, True
            failure = self._take_part(phase)
            with self._lock:
                self._inside = False
            phase_id = phase.id

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        """Call the worker back from the phase `phase_id`, if it is in it; from the thread that hears of it."""
        with self._lock:
            phase = self._phase
        if phase is not None and self.is_inside(phase_id):
            self._runners[phase.mode].revoke(phase_id, reason)

    def is_inside(self, phase_id: PhaseId) -> bool:
        """Return whether the worker takes part in `phase_id` now: others may hear of its end before this one leaves."""
        with self._lock:
            return self._inside and self._phase is not None and self._phase.id == phase_id

    def role_state(self) -> RoleState | None:
        """Return where the worker is, for a chief that has not heard of it."""
        with self._lock:
            phase, inside = self._phase, self._inside
        if phase is None:
            return None
        stream = self._runners[phase.mode].stream
        # A chief takes up what was leased against servers alone; elsewhere it begins another phase.
        if (
            not (inside and phase.mode.is_served) or stream is None or stream.phase_id != phase.id
        ):  # or has not begun with it
            return RoleState(phase, inside)
        return RoleState(phase, inside, stream.ranges, self._recorder.completed)

    def _take_part(self, phase: Phase) -> str:
        """Run the phase to its end; returns why it ended early, "" if it did not.

        What others did, or did not do, is for the chief to judge: it hears of it with the request for the next phase.
        """
        try:
            self._runners[phase.mode].run(phase)
        except (PhaseRevoked, RoleLost, StalePhase, WaitTimeout) as failure:
            return printable(described(failure))[:MOST_REASON_CHARS]
        return ""

    def _next_phase(self, after: PhaseId, failure: str) -> Phase | None:
        held = self._replica.held()
        deadline = self._recorder.turn_to(WAITING) + MEMBERS_SECS
        while self._clock.monotonic() < deadline:
            who = self._worker, self._recorder.incarnation
            rest_secs = self._measuring.rest_secs
            self._recorder.watchdog.progress()
            reply = self._chief.next_phase(PhaseRequest(*who, after, held, failure, rest_secs))
            if reply.done:
                return None
            if reply.phase is not None:
                self._measuring.begin()
                return reply.phase
            if reply.probe >= 0:
                self._measuring.measure(reply.probe)
                deadline = self._clock.monotonic() + MEMBERS_SECS  # the run continues without this worker
        raise WaitTimeout(
            f"worker {self._worker} waited {MEMBERS_SECS:g} s for the phase after phase {after}; the chief "
            "answers but announces none"
        )
