"""Runs the phases of one worker, in a thread, whose state servers hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
from hybridsync.worker.context import ProgramNumerics, WorkerContext, nothing
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
      context: context of this worker.
      link_of: the phase -> the link to its server.
      ahead: runs lease renewals in the background of the training, so that units are in hand while the chief is away;
        None asks when there is nothing left.
    """

    def __init__(self, context: WorkerContext, link_of: Callable[[Phase], ServerLink], ahead: Executor | None) -> None:
        self._context, self._link_of, self._ahead = context, link_of, ahead
        self._numerics = ProgramNumerics(context.programs)
        self._lock = threading.Lock()
        self.stream: LeaseQueue | None = None
        self._phase_id = NO_PHASE
        self._links: tuple[ServerLink, ...] = ()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until the chief has no more units.

        Raises:
          PhaseRevoked: the phase has ended for all members.
          RoleLost, WaitTimeout: the server did not answer, or the phase was revoked.
        """
        # One call at a time goes over a link: pushes in the background have their own.
        num_links = 2 if phase.protocol.local_updates else 1
        links = tuple(self._link_of(phase) for _ in range(num_links))
        with self._lock:
            self._phase_id, self._links = phase.id, links
        try:
            self._run(phase, links)
        finally:
            with self._lock:  # their memory goes with the phase
                self._links = ()
            for link in links:
                link.close()

    def revoke(self, phase_id: PhaseId, reason: str) -> None:
        """Make the current phase raise RoleLost, if it is `phase_id`; called from another thread."""
        with self._lock:
            links = self._links if phase_id == self._phase_id else ()
        for link in links:
            link.close()

    def _run(self, phase: Phase, links: Sequence[ServerLink]) -> None:
        member = PhaseMember(self._context.worker, phase, self._context.recorder)
        kind = LocalEngine if member.protocol.local_updates else ServerEngine
        engine = kind(member, self._numerics, ahead=self._ahead is not None)
        self.stream = engine.leases
        beside: dict[type, Executor] = {}
        if self._ahead is not None:
            beside[LeaseUnits] = self._ahead
        with ExitStack() as stack:
            if member.protocol.local_updates:
                transfers = ThreadPoolExecutor(len(links), "transfer")
                # Not waited for: an engine joins what it began, unless it ends by the user's error. A push that is held
                # then may be held until the others hear of that error, which this thread is to tell them.
                stack.callback(transfers.shutdown, wait=False)
                beside[CallServer] = transfers
            drive(engine.run(), carriers_of(self._context, links, member.protocol), beside, member.now)


def carriers_of(context: WorkerContext, links: Sequence[ServerLink], protocol: Protocol) -> Carriers:
    """Return what carries out a worker's requests over its links, in a phase with this protocol.

    With local updates a step, or a unit in place of one that was dropped, may continue from the result of an earlier
    call.

    Args:
      context: context of this worker.
      links: links for all calls; the last one carries pushes in the background of the others.
      protocol: protocol of the phase.
    """
    prepare = nothing if protocol.local_updates else links[0].prepare  # what is computed is what is pushed
    return _Calls(context, links, protocol.wire_dtype, prepare, keeps=protocol.local_updates).carriers


class _Calls:
    """Carries out the requests of one phase; `keeps` where an answer is used beyond the next call."""

    def __init__(
        self,
        context: WorkerContext,
        links: Sequence[ServerLink],
        wire: str,
        prepare: Callable[[Any], None],
        *,
        keeps: bool,
    ) -> None:
        self._context, self._wire, self._prepare = context, wire, prepare
        self._recorder, self._link, self._beside = context.recorder, links[0], links[-1]
        # A push is staged, decided and answered in calls that follow one another, each with a deadline of its own.
        secs = 4 * transfer_secs(context.programs.contribution_layout.nbytes)
        work = context.recorder.watchdog.work
        self._pull_work, self._push_work = work("a pull", secs), work("a push", secs)
        self._beside_work = work("a push", secs)
        self._sent_bytes, self._received_bytes = context.programs.wire_sizes(wire)
        self._keeps = keeps

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        # Not kept here: this object would then refer to itself, and its links' memory would stay until Python looks for
        # such cycles, which took several phases.
        verbs: dict[str, Callable[[Push, Any], Any]] = {
            "pull": self._pull,
            "push_pull": self._push_pull,
            "push": self._push_beside,
            "ready": self._ready,
            "idle": self._idle,
            "download_opt_state": self._download_opt_state,
            "upload_opt_state": self._upload_opt_state,
        }
        if self._keeps:
            verbs |= {verb: _owned(verbs[verb]) for verb in ("pull", "push_pull")}

        def call(request: CallServer) -> Any:
            return verbs[request.verb](request.push, request.body)

        return {LeaseUnits: self._context.lease, ComputeUnit: self._compute, CallServer: call}

    def _compute(self, request: ComputeUnit) -> Any:
        return self._context.gradient(request.parameters, request, self._wire, self._prepare)

    def _pull(self, push: Push, _: Any) -> Any:
        with self._pull_work:
            answer = self._link.pull(push)
        self._recorder.moved(0, self._received_bytes)
        return self._here(answer)

    def _push_pull(self, push: Push, body: Any) -> Any:
        with self._push_work:
            answer = self._link.push_pull(push, body)
        self._recorder.moved(self._sent_bytes, self._received_bytes * answer[0].brings_parameters(push))
        return self._here(answer)

    def _here(self, answer: Any) -> Any:
        reply, parameters = answer
        return reply, self._context.programs.placement.at_worker(parameters, self._context.worker)

    def _push_beside(self, push: Push, body: Any) -> Any:
        with self._beside_work:
            reply = self._beside.push(push, body)
        self._recorder.moved(self._sent_bytes, 0)
        return reply, None

    def _ready(self, push: Push, _: Any) -> Any:
        with self._push_work:
            self._link.ready(push)
        return None, None

    def _idle(self, push: Push, _: Any) -> Any:
        self._link.idle(push)
        return None, None

    def _download_opt_state(self, push: Push, _: Any) -> Any:
        link, context = self._link, self._context
        opt_state = context.programs.placement.at_worker(link.download_opt_state(push), context.worker)
        self._recorder.moved(0, context.programs.opt_state_layout.nbytes)
        return None, opt_state

    def _upload_opt_state(self, push: Push, opt_state: Any) -> Any:
        try:
            answer = self._link.upload_opt_state(push, opt_state)
            self._recorder.moved(self._context.programs.opt_state_layout.nbytes, 0)
            return None, answer
        except HybridSyncError as error:
            logging.info("worker %d leaves no optimizer state behind: %s", push.worker, error)
            raise


def _owned(call: Callable[[Push, Any], Any]) -> Callable[[Push, Any], Any]:
    """Return a call whose arrays are not the link's, which fills its buffers anew at the next one."""

    def call_and_copy(push: Push, body: Any) -> Any:
        reply, parameters = call(push, body)
        return reply, jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, parameters)

    return call_and_copy
