"""Does what server and worker processes both do: first words and heartbeat."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hybridsync import __version__
from hybridsync.core.clock import SYSTEM_CLOCK, Clock, pause
from hybridsync.core.errors import HybridSyncError, NotRegistered, RoleLost, described
from hybridsync.core.plan import PhaseId
from hybridsync.devices.environment import own_gpus
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleState,
    Welcome,
)
from hybridsync.interfaces.ports import ChiefPort
from hybridsync.interfaces.reports import Exchange, Report, ReportReply
from hybridsync.runtime.role.role_pipe import RoleSpec

T = TypeVar("T")

CHIEF_SECS = 60.0
"""How long a role goes on without a chief, after `hang.silent_secs` in which one may stand still: a restarted chief has
to import everything, on few cores."""

AGAIN_SECS = 0.1
"""Between two tries at a chief that forgets a role again: it was lost as well."""

STOP_SECS = 10.0


class ReconnectingChiefClient:
    """The chief as a role process calls it: `WorkPort` and `ChiefPort.report`, whatever chief process answers.

    A restarted chief does not know the role: it gets the role's first message and its state, and the call is repeated.

    Args:
      link: link to the chief's address, which a restarted one keeps.
      hello: returns the role's first message, with its current state.
    """

    def __init__(self, link: ChiefPort, hello: Callable[[], Hello]) -> None:
        self._link, self._hello = link, hello

    def register(self) -> Welcome:
        """Take part in the run."""
        return self._link.register(self._hello())

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        """See `ChiefPort.next_phase`."""
        return self._known(lambda: self._link.next_phase(request))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """See `ChiefPort.lease`."""
        return self._known(lambda: self._link.lease(request))

    def join_group(self, request: GroupRequest) -> GroupReply:
        """See `WorkPort.join_group`."""
        return self._known(lambda: self._link.join_group(request))

    def report(self, report: Report) -> ReportReply:
        """See `ChiefPort.report`."""
        return self._known(lambda: self._link.report(report))

    def _known(self, ask: Callable[[], T]) -> T:
        deadline = SYSTEM_CLOCK.monotonic() + CHIEF_SECS
        while True:
            try:
                return ask()
            except NotRegistered:  # and once more, if that chief is lost as well
                if SYSTEM_CLOCK.monotonic() > deadline:
                    raise
                self.register()
                pause(AGAIN_SECS)


def hello(
    spec: RoleSpec, address: str, schema: str, role_state: RoleState | None = None, frozen: tuple[str, ...] = ()
) -> Hello:
    """Return who this process is, which serves its state at `address`."""
    return Hello(
        spec.role,
        spec.role_id,
        os.getpid(),
        host=socket.gethostname(),
        address=address,
        schema=schema,
        version=__version__,
        restart_count=spec.restart_count,
        role_state=role_state,
        process_group=spec.coordinator if spec.role == "worker" else "",
        devices=own_gpus(os.environ) if spec.role == "worker" else (),
        frozen=frozen,
    )


class Heartbeat:
    """Reports to the chief from a thread of its own, and hears from it.

    Args:
      chief: the chief that reports go to.
      take_report: returns what happened since the last report.
      secs: between reports.
      wake: set by others to report at once.
      hold_secs: seconds that the chief may keep its answer back while it has no news.
      heard: called with the phase that was reported from, and the answer.
      clock: stamps when a report left and when its answer came.
      ended: called once, with None when the run is over, or with why the chief refused this process or is gone.
    """

    def __init__(
        self,
        chief: ReconnectingChiefClient,
        take_report: Callable[[], Report],
        secs: float,
        wake: threading.Event,
        ended: Callable[[HybridSyncError | None], None],
        *,
        hold_secs: float = 0.0,
        heard: Callable[[PhaseId, ReportReply], None] = lambda phase_id, reply: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._chief, self._take_report, self._secs = chief, take_report, secs
        self._wake, self._ended = wake, ended
        self._hold_secs, self._heard, self._clock = hold_secs, heard, clock
        self._stopping = False
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Send a last report and end."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECS)

    def _report(self, report: Report) -> tuple[float, ReportReply]:
        """Send a report in as many messages as it needs; returns when the last one left, and its answer."""
        *first, last = report.pieces()
        for piece in first:
            self._chief.report(piece)
        return self._clock.monotonic(), self._chief.report(last)

    def _beat(self) -> None:
        try:
            self._report_until_over()
        except Exception as error:  # noqa: BLE001 the process ends by it: nobody else sends a sign of life
            failure = RoleLost(f"the heartbeat failed: {described(error)}")
            failure.__cause__ = error
            self._ended(failure)

    def _report_until_over(self) -> None:
        exchange: Exchange | None = None
        while True:
            self._wake.wait(self._secs)
            self._wake.clear()
            last = self._stopping
            report = replace(self._take_report(), hold_secs=0.0 if last else self._hold_secs, exchange=exchange)
            try:
                sent, reply = self._report(report)
            except HybridSyncError as error:
                if not last:
                    self._ended(error)
                return
            exchange = Exchange(sent, reply.received, reply.replied, self._clock.monotonic())
            self._heard(report.phase_id, reply)
            if reply.done and not last:
                self._ended(None)
            if reply.done or last:
                return
