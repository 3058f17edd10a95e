"""Runs the phases of one worker, in a thread, whose state servers hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np
from absl import logging

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.base import Protocol
from hybridsync.worker.context import ProgramNumerics, WorkerContext
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.link import ServerLink
from hybridsync.worker.local_engine import LocalEngine
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.requests import CallServer, ComputeUnit, LeaseUnits
from hybridsync.worker.server_engine import ServerEngine


class ServerRunner:
    """Runs asynchronous phases for one worker.

    Args:
      context: who it is.
      link_of: the phase -> the link to its server.
      ahead: runs lease renewals beside the training, so that units are in hand while the chief is away; None asks
        when there is nothing left.
    """

    def __init__(self, context: WorkerContext, link_of: Callable[[Phase], ServerLink], ahead: Executor | None) -> None:
        self._context, self._link_of, self._ahead = context, link_of, ahead
        self._numerics = ProgramNumerics(context.programs)
        self._lock = threading.Lock()
        self.stream: LeaseQueue | None = None
        self._phase_id = NO_PHASE
        self._link: ServerLink | None = None

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until the chief has no more units.

        Raises:
          PhaseRevoked: the phase has ended for everybody.
          RoleLost, WaitTimeout: the server did not answer, or the phase was revoked.
        """
        link = self._link_of(phase)
        with self._lock:
            self._phase_id, self._link = phase.id, link
        try:
            self._run(phase, link)
        finally:
            link.close()

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        """Make the phase under way raise RoleLost, if it is `phase_id`; called from another thread."""
        with self._lock:
            link = self._link if phase_id == self._phase_id else None
        if link is not None:
            link.close()

    def _run(self, phase: Phase, link: ServerLink) -> None:
        member = PhaseMember(self._context.worker, phase, self._context.recorder)
        kind = LocalEngine if member.protocol.local_updates else ServerEngine
        engine = kind(member, self._numerics, ahead=self._ahead is not None)
        self.stream = engine.leases
        beside: dict[type, Executor] = {}
        if self._ahead is not None:
            beside[LeaseUnits] = self._ahead
        with ExitStack() as stack:
            if member.protocol.local_updates:
                transfers = stack.enter_context(ThreadPoolExecutor(1, "transfer"))
                beside[CallServer] = transfers
            drive(engine.run(), carriers_of(self._context, link, member.protocol), beside, member.now)


def carriers_of(context: WorkerContext, link: ServerLink, protocol: Protocol) -> Carriers:
    """Return what carries out a worker's requests over a link, in a phase with this protocol.

    With local updates a step, or a unit in place of one that was dropped, may go on from what an earlier call brought.
    """
    keep = _owned if protocol.local_updates else lambda answer: answer
    return _Calls(context, link, protocol.wire_dtype, keep).carriers


class _Calls:
    """Carries out the requests of one phase."""

    def __init__(
        self, context: WorkerContext, link: ServerLink, wire: str, keep: Callable[[tuple[Any, Any]], tuple[Any, Any]]
    ) -> None:
        self._context, self._link, self._wire = context, link, wire
        # A push is staged, decided and answered in calls that follow one another, each with a deadline of its own.
        self._transfers_secs = 4 * transfer_secs(context.programs.contribution_layout.nbytes)
        self._verbs: dict[str, Callable[[Push, Any], Any]] = {
            "pull": lambda push, body: keep(self._watched("a pull", lambda: link.pull(push))),
            "push_pull": lambda push, body: keep(self._watched("a push", lambda: link.push_pull(push, body))),
            "ready": lambda push, body: (None, self._watched("a push", lambda: link.ready(push))),
            "idle": lambda push, body: (None, link.idle(push)),
            "download_opt_state": lambda push, body: (None, link.download_opt_state(push)),
            "upload_opt_state": self._upload_opt_state,
        }

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {LeaseUnits: self._context.lease, ComputeUnit: self._compute, CallServer: self._call}

    def _compute(self, request: ComputeUnit) -> Any:
        return self._context.gradient(request.parameters, request.unit, self._wire)

    def _call(self, request: CallServer) -> Any:
        return self._verbs[request.verb](request.push, request.body)

    def _watched(self, name: str, call: Callable[[], Any]) -> Any:
        with self._context.recorder.watchdog.work(name, self._transfers_secs):
            return call()

    def _upload_opt_state(self, push: Push, opt_state: Any) -> Any:
        try:
            return None, self._link.upload_opt_state(push, opt_state)
        except HybridSyncError as error:
            logging.info("worker %d leaves no optimizer state behind: %s", push.worker, error)
            raise


def _owned(answer: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return an answer whose arrays are not the link's, which fills its buffers anew at the next call."""
    reply, parameters = answer
    return reply, jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, parameters)
