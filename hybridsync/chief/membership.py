"""Follows who takes part: incarnations and liveness leases, without reading a clock.

A role is alive while its last sign of life is younger than the lease. A newer process under the same number fences
the older one: its incarnation is refused from then on. The incarnation is the restart count of the process, which its
supervisor counts, so that a restarted chief goes on with the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridsync.core.errors import NotRegistered, StaleIncarnation
from hybridsync.interfaces.messages import Hello

HEARTBEAT_SECS = 1.0
LEASE_SECS = 3.0


@dataclass(slots=True)
class Member:
    """A registered role process; `last_beat` moves on with every sign of life."""

    hello: Hello
    incarnation: int
    last_beat: float


class Membership:
    """The registered processes of one kind of role, by id."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._members: dict[int, Member] = {}
        self._incarnations: dict[int, int] = {}

    def join(self, hello: Hello, now: float) -> Member:
        """Register a process; it replaces any earlier one under the same id. A repeat changes nothing.

        Raises:
          StaleIncarnation: a later process has this place, or this one has left it.
        """
        incarnation = hello.restart_count + 1
        newest = self._incarnations.get(hello.id, 0)
        if incarnation < newest or (incarnation == newest and hello.id not in self._members):
            raise self._stale(hello.id, incarnation)
        self._incarnations[hello.id] = incarnation
        self._members[hello.id] = Member(hello, incarnation, now)
        return self._members[hello.id]

    def leave(self, role_id: int) -> Member | None:
        """Remove a process; its incarnation is refused from now on."""
        return self._members.pop(role_id, None)

    def beat(self, role_id: int, incarnation: int, now: float) -> Member:
        """Note a sign of life.

        Raises:
          StaleIncarnation: that process has left or been replaced.
          NotRegistered: neither it nor a later one has registered: an earlier chief may have let it in.
        """
        if role_id not in self._incarnations or incarnation > self._incarnations[role_id]:
            raise NotRegistered(f"{self.role} {role_id} has not registered with this chief; register and call again")
        member = self._members.get(role_id)
        if member is None or member.incarnation != incarnation:
            raise self._stale(role_id, incarnation)
        member.last_beat = now
        return member

    def _stale(self, role_id: int, incarnation: int) -> StaleIncarnation:
        newest = self._incarnations[role_id]
        why = f"incarnation {newest} has taken its place" if newest != incarnation else "its lease has expired"
        return StaleIncarnation(
            f"{self.role} {role_id} speaks as incarnation {incarnation}, but {why}; this process ends"
        )

    def expired(self, now: float, lease_secs: float) -> tuple[Member, ...]:
        """Return the members without a sign of life for `lease_secs`."""
        return tuple(m for m in self._members.values() if now - m.last_beat > lease_secs)

    def refresh(self, now: float) -> None:
        """Count everybody as just heard of."""
        for member in self._members.values():
            member.last_beat = now

    def get(self, role_id: int) -> Member | None:
        """Return the live process under that id."""
        return self._members.get(role_id)

    def ids(self) -> tuple[int, ...]:
        """Return the ids of live processes, ascending."""
        return tuple(sorted(self._members))
