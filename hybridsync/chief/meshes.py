"""Which meshes of the world can still be used: one whose connections broke is dead for good. Pure.

    >>> meshes = Meshes(num_lanes=2)
    >>> meshes.next((0, 1, 2))
    ((0, 1, 2), 0)
    >>> meshes.lose()
    >>> meshes.next((0, 2)), meshes.next((0, 1, 2))
    (((0, 2), 1), ((0, 1, 2), 1))
"""

from __future__ import annotations

from hybridsync.errors import RoleLost

Mesh = tuple[tuple[int, ...], int]
"""Members in mesh order, and the lane: which local device of each carries the collective."""


class Meshes:
    """Chooses the mesh of the next lock-step phase.

    After a loss the next mesh takes another lane, in the same member order while there is one; then the order rotates.

    Args:
      num_lanes: local devices of each worker.
    """

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._formed: set[Mesh] = set()
        self._dead: set[Mesh] = set()
        self._num_lost = 0

    def next(self, live: tuple[int, ...]) -> Mesh:
        """Return a mesh over the `live` workers, ascending ids, and count it as formed.

        Raises:
          RoleLost: every lane in every order has lost a member.
        """
        total = self._num_lanes * len(live)
        for tried in range(total):
            order, lane = divmod((self._num_lost + tried) % total, self._num_lanes)
            mesh = (live[order:] + live[:order], lane)
            if mesh not in self._dead:
                self._formed.add(mesh)
                return mesh
        raise RoleLost(
            f"workers {list(live)} have used up the {total} ways to form a mesh ({self._num_lanes} lanes, {len(live)} "
            "orders) by as many losses; run the same command again: it resumes from the last commit in a fresh world"
        )

    def used(self, members: tuple[int, ...], lane: int) -> None:
        """Count a mesh as dead that an earlier chief has chosen in this world."""
        self._dead.add((members, lane))
        self._num_lost = max(self._num_lost, lane + 1)

    def lose(self) -> None:
        """Count every mesh formed so far as dead: a member was lost, or a hung collective was broken.

        Breaking one shuts down the connections of all.
        """
        self._num_lost += bool(self._formed)
        self._dead |= self._formed
        self._formed = set()
