"""The chief's front in virtual time: calls wait here until the chief has an answer, as they do over the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridsync.chief.run_state import RunControl, RunState
from hybridsync.chief.service import ChiefService
from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.reports import Report
from hybridsync.lab.simulator.chief_calls import Call
from hybridsync.lab.simulator.event_loop import Loop
from hybridsync.lab.simulator.network import Network

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_process import Process
    from hybridsync.lab.simulator.watch import Watch

Answer = Callable[[], Any]


class SimulatedChief:
    """Takes calls of processes, and answers them now or when something has changed.

    Args:
      state: the run's state, which one thread alone reads and changes.
      loop, network: virtual time, and the network for the answers.
      watch: hears of reports.

    Attributes:
      service: answers the calls.
      control: the controller's, of the same state.
      closed: the chief's process has ended; no call gets an answer any more.
    """

    def __init__(self, state: RunState, loop: Loop, network: Network, watch: Watch) -> None:
        self.state, self.service, self.control = state, ChiefService(state), RunControl(state)
        self._loop, self._network, self._watch = loop, network, watch
        self.closed = False
        self._calls: dict[tuple[int, str], Call] = {}
        self._reports: dict[int, tuple[Process, Report, float]] = {}
        self._is_woken = False

    def call(self, call: Call) -> None:
        """Take a call; it waits here while there is no answer."""
        if self.closed:
            return
        reply = self._try(call.answer)
        if reply is None:
            self._calls[call.process.pid, call.kind] = call
        else:
            self._network.message(call.process.port, call.process.calls.on_reply, call, reply)

    def report(self, process: Process, report: Report, number: int) -> None:
        """Take a heartbeat; the answer waits for news, or for the next one."""
        if self.closed:
            return
        earlier = self._reports.pop(process.pid, None)
        if earlier is not None:
            self._reply(*earlier)
        received = self._loop.now
        refused = self._try(lambda: self.service.record_report(report))
        if refused is not None:
            self._network.message(process.port, process.on_report_reply, report, refused)
            return
        self._watch.reported(report)
        self._network.message(process.port, process.on_report_received, number)
        if self.state.over or self.service.has_news(report):
            self._reply(process, report, received)
        else:
            self._reports[process.pid] = process, report, received

    def wake(self) -> None:
        """Look at the waiting calls as soon as the current change is done; called at every change."""
        if not self._is_woken and (self._calls or self.state.over or self.state.phase_members.broken):
            self._is_woken = True
            self._loop.after(0.0, self._sweep)

    def _sweep(self) -> None:
        self._is_woken = False
        if self.closed:
            return
        calls, self._calls = self._calls, {}
        for key, call in calls.items():
            if call.process.dead:
                continue
            reply = self._try(call.answer)
            if reply is None:
                self._calls.setdefault(key, call)
            else:
                self._network.message(call.process.port, call.process.calls.on_reply, call, reply)
        if self.state.over or self.state.phase_members.broken:
            for pid, (process, report, received) in [*self._reports.items()]:
                if self.state.over or self.service.has_news(report):
                    del self._reports[pid]
                    self._reply(process, report, received)

    def _reply(self, process: Process, report: Report, received: float) -> None:
        if not process.dead:
            self._network.message(process.port, process.on_report_reply, report, self.service.answer(report, received))

    def _try(self, answer: Answer) -> Any:
        """Return an answer, or the refusal that it is."""
        try:
            return answer()
        except HybridSyncError as error:
            return error
