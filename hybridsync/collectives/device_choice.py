"""Chooses meshes of the process group that can still be used: one whose connections broke is dead for good. Pure.

>>> meshes = Meshes(num_devices=2)
>>> meshes.next((0, 1, 2))
((0, 1, 2), 0)
>>> meshes.discard_formed()
>>> meshes.next((0, 2)), meshes.next((0, 1, 2))
(((0, 2), 1), ((0, 1, 2), 1))
"""

from __future__ import annotations

NUM_DEVICES = 16
"""Local devices of each worker, among which a mesh chooses one."""

Mesh = tuple[tuple[int, ...], int]
"""Members in mesh order, and the device choice: which local device of each carries the collective (see
`devices_of`)."""


def num_ways(num_members: int, num_devices: int) -> int:
    """Return how many device choices there are for `num_members` workers of `num_devices` local devices each."""
    return num_devices**num_members


def devices_of(device_choice: int, num_members: int, num_devices: int) -> tuple[int, ...]:
    """Return the local device of each member, in mesh order, that `device_choice` stands for; no two are the same.

    The first choices take the same device of every member.

    >>> [devices_of(device_choice, 2, 3) for device_choice in range(9)]
    [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    assert 0 <= device_choice < num_ways(num_members, num_devices), (
        f"device choice {device_choice} of {num_devices}**{num_members}"
    )
    shifts, first = divmod(device_choice, num_devices)
    return (first, *((first + shifts // num_devices**place) % num_devices for place in range(num_members - 1)))


class Meshes:
    """Chooses the mesh of the next lock-step phase.

    After a loss the next mesh takes another device choice, in the same member order while there is one; then the order
    rotates. A single member has no connections: its mesh never wears out.

    Args:
      num_devices: local devices of each worker.
    """

    def __init__(self, num_devices: int = NUM_DEVICES) -> None:
        self._num_devices = num_devices
        self._formed: set[Mesh] = set()
        self._dead: set[Mesh] = set()
        self._num_lost = 0

    def next(self, live: tuple[int, ...], *, grouped: bool = False) -> Mesh | None:
        """Return a mesh over the `live` workers, ascending ids, and count it as formed.

        Args:
          live: ids of the workers in the mesh.
          grouped: whether any of them may form a group on its devices: those of every group are to be fresh.

        Returns:
          None where every device choice in every order has lost a member: only a new process group has other meshes.
        """
        if len(live) == 1:
            return live, 0
        if grouped:  # the same device of every member: then every group has a device choice of that number, too
            dead = {device_choice for _, device_choice in self._dead}
            fresh = next((choice for choice in range(self._num_devices) if choice not in dead), None)
            if fresh is None:
                return None
            self._formed.add((live, fresh))
            return live, fresh
        device_choices = num_ways(len(live), self._num_devices)
        total = device_choices * len(live)
        for tried in range(total):
            order, device_choice = divmod((self._num_lost + tried) % total, device_choices)
            mesh = (live[order:] + live[:order], device_choice)
            if mesh not in self._dead:
                self._formed.add(mesh)
                return mesh
        return None

    def used(self, members: tuple[int, ...], device_choice: int) -> None:
        """Count a mesh as dead that an earlier chief has chosen in this process group."""
        self._dead.add((members, device_choice))
        self._num_lost = max(self._num_lost, device_choice + 1)

    def discard_formed(self) -> None:
        """Count every mesh formed so far as dead: a member was lost, or a hung collective was broken.

        Breaking one shuts down the connections of all.
        """
        self._num_lost += bool(self._formed)
        self._dead |= self._formed
        self._formed = set()
