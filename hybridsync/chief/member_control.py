"""Shows the controller the run's members: which are live, where, with which state, and which places are empty."""

from __future__ import annotations

from collections.abc import Iterable

from hybridsync.chief.run_state import RunState
from hybridsync.core.errors import RoleLost
from hybridsync.interfaces.messages import Process, RoleEvent, RoleState, StateVersion


class MemberControl:
    """Controls and reads the membership of a run for its controller.

    Every method takes the run's lock.

    Args:
      state: the run's state.
    """

    def __init__(self, state: RunState) -> None:
        self._state, self._condition = state, state.condition

    def evict(self, worker: int, reason: str) -> None:
        """Treat a live worker as lost; the supervisor that started its process is to end it."""
        with self._condition:
            self._state.evict("worker", worker, reason)

    def unheard_of(self, present: Iterable[Process]) -> list[Process]:
        """Return the workers and servers among `present` that have neither registered nor ended, as far as known."""
        with self._condition:
            ended, members = self._state.ended, self._state.members
            return [
                process
                for process in present
                if process[0] in ("worker", "server")
                and process not in ended
                and members.of(process[0]).get(process[1]) is None
            ]

    def miss(self, event: RoleEvent) -> None:
        """Treat a process as lost that an earlier chief knew, and that has not come to this one."""
        with self._condition:
            if self._state.members.of(event.role).get(event.id) is None:
                self._state.reports.lost.append(event)
                self._state.end_process(event)

    def expire(self) -> None:
        """Treat roles whose lease has run out as lost (see `RunMembership.expire`)."""
        with self._condition:
            self._state.expire()

    def role_states(self) -> dict[tuple[str, int], RoleState]:
        """Return what live roles were in the middle of when they registered, by (role, id)."""
        with self._condition:
            return self._state.members.role_states()

    def live_workers(self) -> tuple[int, ...]:
        """Return the ids of live workers, ascending."""
        with self._condition:
            return self._state.members.workers.ids()

    def num_live_servers(self) -> int:
        """Return how many servers are registered."""
        with self._condition:
            return len(self._state.members.servers.ids())

    def entering(self) -> tuple[int, ...]:
        """Return the servers that said last that they fetch the state of a phase, ascending."""
        with self._condition:
            return tuple(sorted(self._state.members.entering))

    def is_live(self, address: str) -> bool:
        """Return whether a registered role serves there."""
        with self._condition:
            return self._state.members.is_live(address)

    def address_of(self, role: str, role_id: int) -> str:
        """Return where a live role serves its state.

        Raises:
          RoleLost: the role is gone.
        """
        with self._condition:
            return self._state.members.address_of(role, role_id)

    def silent(self, secs: float) -> list[tuple[str, int]]:
        """Return (role, id) of the live processes that have not been heard of for `secs`."""
        with self._condition:
            return self._state.members.silent(self._state.clock.monotonic(), secs)

    def missing_workers(self) -> list[int]:
        """Return slots without a live worker."""
        with self._condition:
            return self._state.members.missing_workers()

    def num_awaited(self) -> int:
        """Return how many workers the run waits for before it begins."""
        with self._condition:
            return self._state.members.num_awaited()

    def awaited(self, workers: Iterable[int]) -> list[int]:
        """Return which of the workers that were there are not, and are waited for."""
        with self._condition:
            now = self._state.clock.monotonic()
            return [worker for worker in workers if self._state.members.is_awaited(worker, now)]

    def num_needed(self) -> int:
        """Return with how many workers a phase begins."""
        with self._condition:
            return self._state.members.num_needed()

    def process_groups(self, workers: Iterable[int]) -> set[str]:
        """Return the process groups that these workers have joined."""
        with self._condition:
            return self._state.members.process_groups(workers)

    @property
    def quarantined(self) -> dict[int, str]:
        """Workers that take no part in this session of the run any more, and why."""
        with self._condition:
            return dict(self._state.members.quarantined)

    @property
    def all_quarantined(self) -> RoleLost | None:
        """Error that ends the run when every worker is quarantined."""
        with self._condition:
            return self._state.members.all_quarantined()

    def resting(self) -> dict[int, StateVersion]:
        """Return workers between two phases that hold a state, with what they hold."""
        with self._condition:
            resting = self._state.members.resting
            return {worker: held for worker, held in resting.items() if held is not None}

    def unheard(self) -> list[int]:
        """Return live workers outside the phase that have not said yet what they hold: they have just registered."""
        with self._condition:
            live = self._state.members.workers.ids()
            return [
                worker
                for worker in self._state.phase_members.outside(live)
                if worker not in self._state.members.resting
            ]
