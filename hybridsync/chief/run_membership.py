"""Membership of the run: its worker and server processes, alive, late or quarantined. Pure: time is handed in."""

from __future__ import annotations

from collections.abc import Iterable

from hybridsync.chief.membership import HEARTBEAT_SECS, Member, Membership
from hybridsync.core.errors import RoleLost
from hybridsync.interfaces.messages import Hello, RoleState, StateVersion

SERVER_LEASE_SECS = 15.0
"""A server without a sign of life for so long is lost: its loss costs everybody's work since the last commit."""


class RunMembership:
    """Follows the processes of all roles.

    Args:
      num_workers: slots of the run.
      num_servers: parameter servers of the run.
      lease_secs: a worker without a sign of life for so long is lost; infinite for threads, which cannot die
        unnoticed.
      now: monotonic seconds.
      late: workers that come only later: nobody waits for them to register.

    Attributes:
      workers, servers: live processes.
      quarantined: worker -> why its place stays empty from now on.
      resting: worker between two phases -> the state it holds, None if it holds none.
      entering: servers that said last that they fetch the state of a phase.
    """

    def __init__(
        self, num_workers: int, num_servers: int, lease_secs: float, now: float, late: Iterable[int] = ()
    ) -> None:
        self.num_workers, self.num_servers, self.lease_secs = num_workers, num_servers, lease_secs
        self._server_lease_secs = max(lease_secs, SERVER_LEASE_SECS)
        self.workers, self.servers = Membership("worker"), Membership("server")
        self.quarantined: dict[int, str] = {}
        self.resting: dict[int, StateVersion | None] = {}
        self.entering: set[int] = set()
        self._late = set(late)
        self._role_states: dict[tuple[str, int], RoleState] = {}
        self._judged = now

    def of(self, role: str) -> Membership:
        """Return the processes of "worker" or "server"."""
        return self.servers if role == "server" else self.workers

    def join(self, hello: Hello, now: float) -> Member:
        """Register a process (see `Membership.join`), with where it stands in a phase if it is in one.

        Raises:
          StaleIncarnation: a later process has this place, or this one has left it.
        """
        member = self.of(hello.role).join(hello, now)
        self._role_states.pop((hello.role, hello.id), None)
        if hello.role_state is not None:
            self._role_states[hello.role, hello.id] = hello.role_state
        if hello.role == "worker":
            self._late.discard(hello.id)
        return member

    def leave(self, role: str, role_id: int) -> Member | None:
        """Remove a process, with what it held; its incarnation is refused from now on."""
        if role == "server":
            self.entering.discard(role_id)
        else:
            self.resting.pop(role_id, None)
        return self.of(role).leave(role_id)

    # --- liveness ---

    def is_judging_due(self, now: float) -> bool:
        """Return whether leases were last looked at half a heartbeat ago."""
        return now - self._judged >= HEARTBEAT_SECS / 2

    def expire(self, now: float) -> list[tuple[str, int, float]]:
        """Return (role, id, lease seconds) of the processes whose lease has run out.

        When leases have not been looked at for long, the chief was silent itself: every lease begins anew.
        """
        silent, self._judged = now - self._judged, now
        if silent > HEARTBEAT_SECS:
            self.workers.refresh(now)
            self.servers.refresh(now)
        return [
            (members.role, member.hello.id, secs)
            for members, secs in ((self.workers, self.lease_secs), (self.servers, self._server_lease_secs))
            for member in members.expired(now, secs)
        ]

    def live(self) -> list[tuple[str, int]]:
        """Return (role, id) of every live process: servers first, ascending."""
        servers = [("server", server) for server in self.servers.ids()]
        return servers + [("worker", worker) for worker in self.workers.ids()]

    def role_states(self) -> dict[tuple[str, int], RoleState]:
        """Return what live processes were in the middle of when they registered, by (role, id)."""
        return {key: self._role_states[key] for key in self.live() if key in self._role_states}

    def is_live(self, address: str) -> bool:
        """Return whether a live process serves there."""
        members = [self.of(role).get(role_id) for role, role_id in self.live()]
        return any(member is not None and member.hello.address == address for member in members)

    def address_of(self, role: str, role_id: int) -> str:
        """Return where a live process serves its state.

        Raises:
          RoleLost: it is gone.
        """
        member = self.of(role).get(role_id)
        if member is None:
            raise RoleLost(f"{role} {role_id} is gone; run the same command again to resume from the last checkpoint")
        return member.hello.address

    # --- places without a process ---

    def missing_workers(self) -> list[int]:
        """Return the places without a live worker."""
        return [worker for worker in range(self.num_workers) if self.workers.get(worker) is None]

    def num_awaited(self) -> int:
        """Return how many workers the run waits for before it begins."""
        return self.num_workers - len(self._late | self.quarantined.keys())

    def all_quarantined(self) -> RoleLost | None:
        """Return the error that ends the run when every worker is quarantined."""
        if len(self.quarantined) < self.num_workers:
            return None
        told = "; ".join(f"worker {worker}: {reason}" for worker, reason in sorted(self.quarantined.items()))
        return RoleLost(
            f"no worker is left, every one is quarantined ({told}); correct that, then run the same command again: it "
            "resumes from what was saved"
        )
