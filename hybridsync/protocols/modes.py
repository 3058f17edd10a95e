"""The three ways to keep the workers of a phase together, and everything that depends on which one it is.

A protocol names its mode (`Protocol.mode`). Code elsewhere asks the mode and compares it with nothing.

| mode | its members | its state |
|---|---|---|
| `LOCKSTEP` | take each step together and all-reduce the gradient | is the same on every member |
| `SERVER` | push gradients to parameter servers, each at its own pace | is on the servers |
| `GROUP` | update their own replicas and average them in groups | is the mean of the members' replicas |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MESH = "mesh"
"""Key of the one lease that all members of a lock-step phase share."""


@dataclass(frozen=True)
class SyncMode:
    """Describes how the members of a phase are synchronised. The defaults are those of a phase without servers.

    Attributes:
      name: name for timelines and messages.
      is_served: servers hold the state. Otherwise the members do: losing one breaks the phase, and the phase drains
        until all members have come back.
      moves_together: every member takes every step. Then all share one lease, a step may give each of them a different
        number of units, and all replicas are equal.
      has_group_rounds: groups of members average their replicas, as the protocol's group rule matches them.
    """

    name: str
    is_served: bool = False
    moves_together: bool = False
    has_group_rounds: bool = False

    def holder(self, members: Sequence[int]) -> tuple[str, int]:
        """Return the role, and its id, whose state is captured for the next phase."""
        return ("server", 0) if self.is_served else ("worker", members[0])

    def lease_key(self, worker: int) -> str:
        """Return under which name `worker` leases its units."""
        return MESH if self.moves_together else f"worker {worker}"

    def is_over(self, end_units: int, num_applied: int, num_members: int, num_back: int) -> bool:
        """Return whether a phase has come to its end.

        Args:
          end_units: applied units at which it ends.
          num_applied: units applied so far, as the chief knows.
          num_members: number of members of the phase.
          num_back: number of members that have left it.
        """
        # Members in step leave together and only they know what the last step did; elsewhere the count decides.
        return num_back == num_members if self.moves_together else num_applied >= end_units

    def is_short(self, end_units: int, reached: int) -> bool:
        """Return whether a phase has ended below `end_units`, because units were dropped: its stage is entered again.

        Args:
          end_units: applied units at which it was to end.
          reached: units that the members hold that are back; below 0 where none is.
        """
        return self.moves_together and 0 <= reached < end_units

    def is_leased_out(self, end_units: int, num_applied: int, room: int) -> bool:
        """Return whether no unit of the phase is going to be leased any more.

        Args:
          end_units: applied units at which it ends.
          num_applied: units applied so far.
          room: units that may still be leased.
        """
        # A mesh applies whatever it leased; elsewhere a lost worker's units come back and are leased again.
        return room == 0 if self.moves_together else num_applied >= end_units

    def breaks_at_loss_of(self, role: str) -> bool:
        """Return whether the phase cannot go on without one of its workers, or of its servers."""
        return (role == "server") == self.is_served


LOCKSTEP = SyncMode("sync", moves_together=True)
SERVER = SyncMode("server", is_served=True)
GROUP = SyncMode("group", has_group_rounds=True)
