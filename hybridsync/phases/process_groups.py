"""The world of lock-step phases: its meshes, a new one when they are used up, and replicas that must be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync.chief.run_control import RunControl
from hybridsync.collectives.device_choice import Mesh, Meshes
from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.messages import Capture, Held
from hybridsync.interfaces.ports import HolderPort
from hybridsync.phases.recovery import Keeper, Reach
from hybridsync.protocols.modes import SyncMode

USED_UP = "every mesh of the world has lost a member"


class Worlds:
    """Chooses the mesh of each lock-step phase.

    Args:
      board: live workers.
      keeper: keeps the state while every worker starts again.
      home: the chief's address.
      holder_at: address -> role that can capture the state.
      renew: has every worker's process started again in a new world.
      tell: hears why.
      num_devices: local devices of each worker, among which a mesh chooses.
    """

    def __init__(
        self,
        board: RunControl,
        keeper: Keeper,
        home: str,
        holder_at: Callable[[str], HolderPort],
        renew: Callable[[], None],
        tell: Callable[[str], None],
        num_devices: int,
    ) -> None:
        self._board, self._keeper, self._home, self._holder_at = board, keeper, home, holder_at
        self._renew, self._tell, self._num_devices = renew, tell, num_devices
        self._meshes = Meshes(num_devices)

    def mesh(self, members: tuple[int, ...], mode: SyncMode) -> Mesh | None:
        """Return the mesh of the next phase: `members`, ascending ids, and a lane; None when the world is used up."""
        return self._meshes.next(members, grouped=mode.has_group_rounds)

    def used(self, members: tuple[int, ...], lane: int) -> None:
        """Count a mesh as dead that an earlier chief has chosen in this world."""
        self._meshes.used(members, lane)

    def lose(self) -> None:
        """Count every mesh formed so far as dead."""
        self._meshes.lose()

    def renew(self, capture: Capture, source: str) -> tuple[Capture, str]:
        """Have every worker start again in a new world; returns the capture that the chief keeps for them, and where.

        Raises:
          PhaseBroken: whoever holds the state was lost.
        """
        if source != self._home:
            with Reach(self._board, f"{USED_UP}, and the state could not be fetched"):
                self._keeper.take(capture, source, self._holder_at(source))
            capture, source = self._keeper.offer(), self._home
        self._tell(USED_UP)
        self._renew()
        for worker in self._board.live_workers():
            self._board.evict(worker, f"{USED_UP}: it starts again in a new one")
        self._meshes = Meshes(self._num_devices)
        return capture, source


def check_replicas(drained: Mapping[int, Held | None], capture: Capture, source: str) -> None:
    """Compare what the members of a lock-step phase hold: they must be equal, bit for bit.

    Args:
      drained: worker -> what it came back with.
      capture: of the member at `source`.
      source: its address.

    Raises:
      HybridSyncError: a member holds something else.
    """
    for worker, held in drained.items():
        if held is None or held.epoch != capture.held.epoch:
            continue
        if held.fingerprint != capture.held.fingerprint:
            raise HybridSyncError(
                f"worker {worker} ended epoch {capture.held.epoch} with fingerprint {held.fingerprint}, "
                f"{source} with {capture.held.fingerprint}; lock-step replicas must be equal: run the same "
                "command again to resume from the last checkpoint"
            )
