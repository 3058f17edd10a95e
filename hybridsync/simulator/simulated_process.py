"""A role's process in virtual time: it registers, reports, and may stop or end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from hybridsync import __version__
from hybridsync.core.errors import HybridSyncError, NotRegistered, RoleLost, StaleIncarnation, WaitTimeout
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Hello, Standing, Welcome
from hybridsync.interfaces.reports import Report, ReportReply
from hybridsync.simulator.captured_state import CapturedState

if TYPE_CHECKING:
    from hybridsync.simulator.simulated_cluster import World

CALL_SECS = 1.5
"""After so long without an answer a call is repeated."""
TRY_SECS = 0.2
"""Between two tries of the manager to reach a role."""
UNREACHABLE_SECS, CALL_DEADLINE_SECS = 3.0, 60.0
"""How long a caller tries where nobody listens, and where somebody does not answer."""


def is_lost(error: HybridSyncError, waited: float) -> bool:
    """Whether a caller that has tried for `waited` seconds takes `error` for the end of it."""
    return waited >= (UNREACHABLE_SECS if isinstance(error, RoleLost) else CALL_DEADLINE_SECS)


class Process(ABC):
    """One life of a role.

    Args:
      world: everything around it.
      role, role_id: its place.
      life: how many processes had the place before.

    Attributes:
      pid: unique in the run.
      address: where others reach it; another in each life.
      port: whose network port it speaks through: the worker's number, -1 for a server.
      incarnation: as the chief has told it; 0 before.
      captured: the state that it keeps for others.
      dead: it has ended.
      stopped: it is stopped, and hears later what comes meanwhile.
    """

    def __init__(self, world: World, role: Literal["worker", "server"], role_id: int, life: int) -> None:
        self.world, self.role, self.id, self.life = world, role, role_id, life
        self.pid = world.next_pid()
        self.address = f"{role}-{role_id}-{life}"
        self.port = role_id if role == "worker" else -1
        self.incarnation = 0
        self.dead = self.stopped = False
        self._stash: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._calls: dict[str, int] = {}
        self.captured = CapturedState(self.address, world.arithmetic)
        self._unheard: Report | None = None
        self._num_reports = 0

    # --- its life ---

    def start(self) -> None:
        """Say the first words to the chief."""
        self._register()

    def halted(self, call: Callable[..., object], *args: Any) -> bool:
        """Whether what reaches the process now is not to be acted on; while it is stopped, it is kept for later."""
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
            self.world.loop.after(0.0, call, *args)

    def leave(self) -> None:
        """End by itself: the run is over, or the chief refuses this process."""
        if not self.dead:
            self.kill()
            self.world.hosts.left(self)

    # --- what a kind of role adds ---

    @abstractmethod
    def registered(self) -> None:
        """Act on having been let in."""

    @abstractmethod
    def drain(self) -> Report:
        """Return what happened since the last report."""

    @abstractmethod
    def revoke(self, epoch: Epoch) -> None:
        """Leave the phase, which the chief has revoked."""

    @abstractmethod
    def standing(self) -> Standing | None:
        """Return what this process is in the middle of."""

    # --- calls on the chief ---

    def call(self, kind: str, answer: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Ask the chief; `then` gets the answer, or the error that it was.

        A later call of the same kind takes the place of this one. Where messages may be lost, it is repeated.

        Args:
          kind: of the call.
          answer: what the chief does: returns None while there is nothing to say; repeating it is harmless.
          then: what this process does.
        """
        number = self._calls[kind] = self._calls.get(kind, 0) + 1
        world = self.world
        world.network.message(self.port, world.desk.ask, self, kind, number, answer, then)
        if not world.network.reliable:
            world.loop.after(CALL_SECS, self._repeat, kind, number, answer, then)

    def answered(self, kind: str, number: int, then: Callable[[Any], object], reply: Any) -> None:
        """Act on an answer of the chief, unless it is a late or a second one."""
        if self.halted(self.answered, kind, number, then, reply) or self._calls.get(kind) != number:
            return
        if isinstance(reply, NotRegistered):  # a restarted chief: it is told who calls, and asked again
            self._register()
            return
        self._calls[kind] = number + 1  # whatever comes for that number from now on is late
        if isinstance(reply, StaleIncarnation):
            self.leave()
        else:
            then(reply)

    def _repeat(self, kind: str, number: int, answer: Callable[[], Any], then: Callable[[Any], object]) -> None:
        if self.halted(self._repeat, kind, number, answer, then) or self._calls.get(kind) != number:
            return
        world = self.world
        world.network.message(self.port, world.desk.ask, self, kind, number, answer, then)
        world.loop.after(CALL_SECS, self._repeat, kind, number, answer, then)

    def _register(self) -> None:
        world = self.world
        standing = self.standing() if self.incarnation else None
        hello = Hello(self.role, self.id, self.pid, "sim", self.address, world.schema, __version__, self.life, standing)
        self.call("register", lambda: world.chief.service.register(hello), self._welcomed)

    def _welcomed(self, welcome: Welcome) -> None:
        known, self.incarnation = self.incarnation, welcome.incarnation
        if not known:
            self.beat_secs = welcome.heartbeat_secs
            self.registered()
            self.world.loop.after(self.beat_secs, self.beat)

    # --- heartbeats ---

    def beat(self) -> None:
        """Report, and again and again."""
        if self.halted(self.beat):
            return
        self.report()
        self.world.loop.after(self.beat_secs, self.beat)

    def report(self) -> None:
        """Tell the chief what happened, until it says that it has heard; its answer comes when there is news."""
        if self._unheard is None:
            self._num_reports += 1
            self._unheard = self.drain()
        world = self.world
        world.network.message(self.port, world.desk.take, self, self._unheard, self._num_reports)

    def taken(self, number: int) -> None:
        """Forget a report that the chief has."""
        if not self.halted(self.taken, number) and number == self._num_reports:
            self._unheard = None

    def heard(self, report: Report, reply: ReportReply | HybridSyncError) -> None:
        """Act on the answer to a report."""
        if self.halted(self.heard, report, reply):
            return
        if isinstance(reply, StaleIncarnation):
            self.leave()
        elif isinstance(reply, NotRegistered):
            self._register()
        elif isinstance(reply, ReportReply):
            if reply.done and self.role == "server":
                self.leave()
            elif reply.revoked:
                self.revoke(report.epoch)

    # --- whether others reach it ---

    def read(self, capture_id: int) -> Any:
        """Return the state of a capture.

        Raises:
          RoleLost, WaitTimeout: the process cannot be reached.
          StaleEpoch: it keeps another capture.
        """
        self.reach()
        return self.captured.read(capture_id)

    def await_reached(self) -> None:
        """Let time go by until a call that the manager waits for gets through; it is tried again and again.

        Raises:
          RoleLost: the process has ended.
          WaitTimeout: it is stopped or cut off.
        """
        world = self.world
        started = world.loop.now
        while True:
            try:
                self.reach()
                return
            except (RoleLost, WaitTimeout) as error:
                if is_lost(error, world.loop.now - started):
                    raise
            world.spend(TRY_SECS)

    def reach(self) -> None:
        """Check that a call gets through now.

        Raises:
          RoleLost: the process has ended.
          WaitTimeout: it is stopped or cut off.
        """
        if self.dead:
            raise RoleLost(f"{self.address} is gone")
        if self.stopped or (self.role == "worker" and self.world.network.cut_off(self.id)):
            raise WaitTimeout(f"{self.address} did not answer")
