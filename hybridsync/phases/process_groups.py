"""The process group of lock-step phases: which meshes are left, and a new group when they are used up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync.chief.run_state import RunControl
from hybridsync.collectives.backend import NO_GROUP
from hybridsync.collectives.device_choice import Mesh, Meshes
from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.interfaces.ports import SnapshotSource
from hybridsync.phases.run_context import CommittedSource, Reach
from hybridsync.protocols.modes import SyncMode

USED_UP = "every mesh of the process group has lost a member"
APART = "the workers have joined different process groups"
NONE = "the workers have joined no process group"


class ProcessGroups:
    """Chooses the mesh of each lock-step phase.

    Args:
      control: live workers.
      committed_source: keeps the state while every worker starts again.
      chief_address: the chief's address.
      holder_at: returns the role at an address that can take a snapshot of the state.
      renew: has every worker's process started again in a new process group.
      tell: called with the reason.
      num_devices: local devices of each worker, among which a mesh chooses.
    """

    def __init__(
        self,
        control: RunControl,
        committed_source: CommittedSource,
        chief_address: str,
        holder_at: Callable[[str], SnapshotSource],
        renew: Callable[[], None],
        tell: Callable[[str], None],
        num_devices: int,
    ) -> None:
        self._control, self._committed_source, self._chief_address, self._holder_at = (
            control,
            committed_source,
            chief_address,
            holder_at,
        )
        self._renew, self._tell, self._num_devices = renew, tell, num_devices
        self._meshes = Meshes(num_devices)

    def mesh(self, members: tuple[int, ...], mode: SyncMode) -> Mesh | None:
        """Return the next mesh: `members`, ascending ids, and a device choice.

        None when none is left, or when the members have joined different process groups: a worker that came while the
        others were training has a group of its own. On several hosts there is no group at all before it is needed.
        """
        with self._control.turn() as chief:
            groups = chief.members.process_groups(members)
        if NO_GROUP in groups or len(groups) > 1:
            return None
        return self._meshes.next(members, grouped=mode.has_group_rounds)

    def used(self, members: tuple[int, ...], device_choice: int) -> None:
        """Count a mesh as dead that an earlier chief has chosen in this process group."""
        self._meshes.used(members, device_choice)

    def discard_meshes(self) -> None:
        """Count every mesh formed so far as dead."""
        self._meshes.discard_formed()

    def renew(self, snapshot: Snapshot, source: str) -> tuple[Snapshot, str]:
        """Have every worker start again in a new process group; returns the snapshot kept for them, and where.

        The state is with the chief then, because no other role outlives this.

        Raises:
          PhaseBroken: the holder of the state was lost.
        """
        with self._control.turn() as chief:
            groups = chief.members.process_groups(chief.members.workers.ids())
        why = NONE if groups == {NO_GROUP} else APART if len(groups) > 1 else USED_UP
        if source != self._chief_address:
            with Reach(self._control, f"{why}, and the state could not be fetched"):
                self._committed_source.adopt(snapshot, source, self._holder_at(source))
            snapshot, source = self._committed_source.publish(), self._chief_address
        self._tell(why)
        self._renew()
        with self._control.turn() as chief:
            for worker in chief.members.workers.ids():
                chief.evict("worker", worker, f"{why}: it starts again in a new one")
        self._meshes = Meshes(self._num_devices)
        return snapshot, source


def check_replicas(drained: Mapping[int, StateVersion | None], snapshot: Snapshot, source: str) -> None:
    """Compare what the members of a lock-step phase hold: they must be equal, bit for bit.

    Args:
      drained: worker -> version of the state that it came back with.
      snapshot: snapshot of the member at `source`.
      source: address of that member.

    Raises:
      HybridSyncError: a member holds something else.
    """
    for worker, held in drained.items():
        if held is None or held.phase_id != snapshot.held.phase_id:
            continue
        if held.fingerprint != snapshot.held.fingerprint:
            raise HybridSyncError(
                f"worker {worker} ended phase {snapshot.held.phase_id} with fingerprint {held.fingerprint}, "
                f"{source} with {snapshot.held.fingerprint}; lock-step replicas must be equal: run the same "
                "command again to resume from the last checkpoint"
            )
