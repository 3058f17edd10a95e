"""A role's process in virtual time: it registers, reports, and may stop or end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from hybridsync import __version__
from hybridsync.core.errors import HybridSyncError, NotRegistered, RoleLost, StaleIncarnation, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Hello, RoleState, Welcome
from hybridsync.interfaces.reports import Report, ReportReply
from hybridsync.lab.simulator.chief_calls import ChiefCalls
from hybridsync.lab.simulator.simulated_snapshots import SimulatedSnapshots

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster

TRY_SECS = 0.2
"""Between two tries of the controller to reach a role."""
UNREACHABLE_SECS, CALL_DEADLINE_SECS = 3.0, 60.0
"""How long a caller tries where nobody listens, and where somebody does not answer."""


def is_lost(error: HybridSyncError, waited: float) -> bool:
    """Return whether a caller that has tried for `waited` seconds takes `error` for the end of it."""
    return waited >= (UNREACHABLE_SECS if isinstance(error, RoleLost) else CALL_DEADLINE_SECS)


class Process(ABC):
    """One process of a role.

    Args:
      simulated: everything around it.
      role, role_id: kind and number of the process.
      restart_count: number of processes that had the place before.

    Attributes:
      pid: unique in the run.
      address: address at which others reach it; each process has its own.
      calls: calls of this process on the chief.
      port: network port that the process sends and receives through: the worker's number, -1 for a server.
      incarnation: incarnation that the chief has assigned; 0 before.
      captured: the state that it keeps for others.
      dead: it has ended.
      stopped: it is stopped, and hears later what comes meanwhile.
    """

    def __init__(
        self, simulated: SimulatedCluster, role: Literal["worker", "server"], role_id: int, restart_count: int
    ) -> None:
        self.simulated, self.role, self.id, self.restart_count = simulated, role, role_id, restart_count
        self.pid = simulated.next_pid()
        self.address = f"{role}-{role_id}-{restart_count}"
        self.port = role_id if role == "worker" else -1
        self.incarnation = 0
        self.dead = self.stopped = False
        self._stash: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.calls = ChiefCalls(self)
        self.captured = SimulatedSnapshots(self.address, simulated.arithmetic)
        self._unheard: Report | None = None
        self._num_reports = 0

    # --- from start to end ---

    def start(self) -> None:
        """Say the first words to the chief."""
        self.register()

    def halted(self, call: Callable[..., object], *args: Any) -> bool:
        """Return whether the process cannot take a call now; one that is stopped keeps it for later."""
        if self.stopped and not self.dead:
            self._stash.append((call, args))
        return self.dead or self.stopped

    def kill(self) -> None:
        """End without a word."""
        self.dead = True
        self._stash.clear()

    def resume(self) -> None:
        """Go on after a stop."""
        if self.dead or not self.stopped:
            return
        self.stopped = False
        stash, self._stash = self._stash, []
        for call, args in stash:
            self.simulated.loop.after(0.0, call, *args)

    def leave(self) -> None:
        """End by itself: the run is over, or the chief refuses this process."""
        if not self.dead:
            self.kill()
            self.simulated.hosts.replace_ended(self)

    # --- what a kind of role adds ---

    @abstractmethod
    def registered(self) -> None:
        """Act on having been let in."""

    @abstractmethod
    def take_report(self) -> Report:
        """Return what happened since the last report."""

    @abstractmethod
    def revoke(self, phase_id: PhaseId) -> None:
        """Leave the phase, which the chief has revoked."""

    @abstractmethod
    def role_state(self) -> RoleState | None:
        """Return what this process is in the middle of."""

    # --- at the chief ---

    def register(self) -> None:
        """Say to the chief which process this is; it may be a chief that was started again."""
        simulated = self.simulated
        role_state = self.role_state() if self.incarnation else None
        hello = Hello(
            self.role,
            self.id,
            self.pid,
            host=simulated.network.cluster.host_name(self.port),
            address=self.address,
            schema=simulated.schema,
            version=__version__,
            restart_count=self.restart_count,
            role_state=role_state,
        )
        self.calls.ask("register", lambda: simulated.chief.service.register(hello), self._welcomed)

    def _welcomed(self, welcome: Welcome) -> None:
        known, self.incarnation = self.incarnation, welcome.incarnation
        if not known:
            self.beat_secs = welcome.heartbeat_secs
            self.registered()
            self.simulated.loop.after(self.beat_secs, self.beat)

    # --- heartbeats ---

    def beat(self) -> None:
        """Report, and again and again."""
        if self.halted(self.beat):
            return
        self.report()
        self.simulated.loop.after(self.beat_secs, self.beat)

    def report(self) -> None:
        """Tell the chief what happened, until it says that it has heard; its answer comes when there is news."""
        if self._unheard is None:
            self._num_reports += 1
            self._unheard = self.take_report()
        simulated = self.simulated
        simulated.network.message(self.port, simulated.chief.report, self, self._unheard, self._num_reports)

    def on_report_received(self, number: int) -> None:
        """Forget a report that the chief has."""
        if not self.halted(self.on_report_received, number) and number == self._num_reports:
            self._unheard = None

    def on_report_reply(self, report: Report, reply: ReportReply | HybridSyncError) -> None:
        """Act on the answer to a report."""
        if self.halted(self.on_report_reply, report, reply):
            return
        if isinstance(reply, StaleIncarnation):
            self.leave()
        elif isinstance(reply, NotRegistered):
            self.register()
        elif isinstance(reply, ReportReply):
            if reply.done and self.role == "server":
                self.leave()
            elif reply.revoked:
                self.revoke(report.phase_id)

    # --- whether others reach it ---

    def read(self, snapshot_id: int) -> Any:
        """Return the state of a snapshot.

        Raises:
          RoleLost, WaitTimeout: the process cannot be reached.
          StalePhase: the process keeps another snapshot.
        """
        self.reach()
        return self.captured.read(snapshot_id)

    def await_reached(self) -> None:
        """Let time go by until a call that the controller waits for gets through; it is tried again and again.

        Raises:
          RoleLost: the process has ended.
          WaitTimeout: the process is stopped or cut off.
        """
        simulated = self.simulated
        started = simulated.loop.now
        while True:
            try:
                self.reach()
                return
            except (RoleLost, WaitTimeout) as error:
                if is_lost(error, simulated.loop.now - started):
                    raise
            simulated.spend(TRY_SECS)

    def reach(self) -> None:
        """Check that a call gets through now.

        Raises:
          RoleLost: the process has ended.
          WaitTimeout: the process is stopped or cut off.
        """
        if self.dead:
            raise RoleLost(f"{self.address} is gone")
        if self.stopped or (self.role == "worker" and self.simulated.network.cut_off(self.id)):
            raise WaitTimeout(f"{self.address} did not answer")
