"""Waits for the roles that a run, or its next phase, needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hybridsync.chief.run_control import RunControl
from hybridsync.chief.run_state import RunState
from hybridsync.config import RunConfig
from hybridsync.core.clock import Clock
from hybridsync.core.errors import Preempted, WaitTimeout
from hybridsync.interfaces.messages import Process, RoleEvent
from hybridsync.protocols.modes import SyncMode

TICK_SECS = 0.05
START_DEADLINE_SECS = 600.0
"""For every role to register: imports and compilation of all of them on few cores."""
SAY_SECS = 20.0
"""How long the wait for roles goes without a word."""
SETTLE_SECS = 3.0
"""A restarted chief takes up the run when it has heard of nobody new for so long; calls are repeated every second."""


class MemberWaits:
    """Waits for roles to register, while the record goes on.

    Args:
      control: the roles that are present.
      config: the configuration, with the number of workers and servers.
      clock: clock for deadlines.
      tick: called every TICK_SECS meanwhile.
      say: shows the user a line when it takes long.
    """

    def __init__(
        self, control: RunControl, config: RunConfig, clock: Clock, tick: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._control, self._config, self._clock = control, config, clock
        self._tick, self._say = tick, say

    def await_all(self) -> None:
        """Wait until every role of the run takes part, but for workers that are to come later.

        Raises:
          Preempted: the run was asked to stop.
          PhaseBroken: the current phase lost a member.
          WaitTimeout: a role did not come.
        """
        self._await(lambda chief: len(chief.members.workers.ids()) >= chief.members.num_awaited(), self._config.servers)

    def await_again(self, workers: Collection[int]) -> None:
        """Wait until the workers are back that were started again, but for those whose hosts stay away.

        Raises:
          Preempted, PhaseBroken, WaitTimeout: see `await_all`.
        """
        self._await(lambda chief: _are_enough(chief) and not chief.awaited(workers), self._config.servers)

    def await_needed(self, mode: SyncMode) -> None:
        """Wait until a phase can begin: with the fewest workers that it needs, and every server where it is served.

        Raises:
          Preempted, PhaseBroken, WaitTimeout: see `await_all`.
        """
        self._await(_are_enough, self._config.servers if mode.is_served else 0)

    def await_registrations(self, present: Iterable[Process]) -> None:
        """Wait until every role has been heard of, or none has come for SETTLE_SECS of those that live.

        A process that is stopped does not end by itself, and nothing would replace it: it is given up as late as any
        other that is silent.

        Args:
          present: processes that an earlier chief has registered.
        """
        limit = self._config.hang.silent_secs
        present = tuple(present)
        known, since = 0, self._clock.monotonic()
        silent_at = since + limit
        while True:
            with self._control.turn() as chief:
                heard, unheard = len(chief.members.live()), chief.unheard_of(present)
            if self._clock.monotonic() - since >= SETTLE_SECS and not unheard:
                break
            if heard >= self._config.workers + self._config.servers:
                return
            if heard != known:
                known, since = heard, self._clock.monotonic()
            if self._clock.monotonic() >= silent_at:
                break
            self._control.wait_until(lambda chief: False, TICK_SECS)
        with self._control.turn() as chief:
            for role, role_id, restart_count, pid in chief.unheard_of(present):
                reason = f"no sign of life for {limit:g} s since the chief was restarted (hang.silent_secs)"
                chief.miss(RoleEvent(role, role_id, pid, reason, self._clock.wall(), restart_count=restart_count))

    def _await(self, workers_here: Callable[[RunState], bool], num_servers: int) -> None:
        def here(chief: RunState) -> bool:
            return workers_here(chief) and len(chief.members.servers.ids()) >= num_servers

        now = self._clock.monotonic()
        deadline, say_at = now + START_DEADLINE_SECS, now + SAY_SECS
        while not self._control.watch(here, TICK_SECS):
            now = self._clock.monotonic()
            with self._control.turn() as chief:
                preempted = chief.preempted
                missing = (
                    f"workers {chief.members.missing_workers()} have not registered; "
                    f"{len(chief.members.servers.ids())} of {self._config.servers} servers have"
                )
            if preempted:
                raise Preempted(f"asked to stop while {missing}; run the same command again")
            if now >= deadline:
                raise WaitTimeout(f"after {START_DEADLINE_SECS:g} s: {missing}")
            if now >= say_at:
                self._say(f"waiting: {missing}")
                say_at = deadline
            self._tick()


def _are_enough(chief: RunState) -> bool:
    return len(chief.members.workers.ids()) >= chief.members.num_needed()
