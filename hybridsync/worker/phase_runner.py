"""Runs the phases of one worker, in a thread, in which workers sum or average among themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hybridsync.collectives.backend import Communicator
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.phase import Phase
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.drive_threads import Beside, Carriers, drive
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import IO
from hybridsync.worker.revocation import Revocation

CommunicatorOf = Callable[[Phase], Communicator]
"""The phase -> its communicator."""


class PhaseEngine(Protocol):
    """Computes one phase without IO."""

    leases: LeaseQueue

    def run(self) -> IO:
        """Yield requests until the phase is over."""
        ...


class PhaseWork(NamedTuple):
    """Describes the work of one phase for one worker.

    Attributes:
      engine: yields requests.
      carriers: carry out the requests.
      beside: kind of a request -> executor that carries it out when it is begun.
      close: called at the end of the phase, also where an error ends it.
    """

    engine: PhaseEngine
    carriers: Carriers
    beside: Beside
    close: Callable[[], object] = lambda: None


class PhaseRunner:
    """Runs the phases of one mode for one worker.

    Args:
      context: context of this worker.
      replica: this worker's state (shared by all workers of one process).
      communicator_of: the phase -> its communicator.
      begin: (member, its runner) -> the work of the phase.
    """

    def __init__(
        self,
        context: WorkerContext,
        replica: Replica,
        communicator_of: CommunicatorOf,
        begin: Callable[[PhaseMember, PhaseRunner], PhaseWork],
    ) -> None:
        self._context, self._replica = context, replica
        self._communicator_of, self._begin = communicator_of, begin
        self.stream: LeaseQueue | None = None
        self._revocation = Revocation()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until its work is done.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          RoleLost, WaitTimeout: the holder of the starting state, or a member, did not answer.
        """
        self._revocation.begin(phase.id)
        member = PhaseMember(self._context.worker, phase, self._context.recorder)
        work = self._begin(member, self)
        self.stream = work.engine.leases
        try:
            drive(work.engine.run(), work.carriers, work.beside, member.now)
        finally:
            work.close()

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        """Make the current phase raise PhaseRevoked, if it is `phase_id`; called from another thread."""
        self._revocation.revoke(phase_id, reason)

    def enter(self, phase: Phase) -> Communicator:
        """Hold the phase's starting state; returns the phase's communicator, which a revocation breaks off from now on.

        Raises:
          PhaseRevoked: the phase was revoked.
          RoleLost, WaitTimeout: the holder of the starting state did not answer.
        """
        num_bytes, recorder = self._context.programs.state_layout.nbytes, self._context.recorder
        with recorder.watchdog.work(f"the state of phase {phase.id}", 2 * transfer_secs(num_bytes)):
            self._replica.enter(phase, self._context.worker)
        recorder.stamps = self._replica.stamps
        return self._revocation.attach(self._communicator_of(phase))

    def check(self) -> None:
        """Go on only while the phase is not revoked.

        Raises:
          PhaseRevoked: the phase is revoked.
        """
        self._revocation.check()
