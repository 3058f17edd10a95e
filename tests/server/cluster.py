"""Several parameter servers in one process: real primary, stores and links, without sockets between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Secondary
from hybridsync.storage.apply_log_entries import Entry, Left
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.training.state import TrainState, initial_state
from hybridsync.transport.packed_link import PackedLink
from tests.roles import CHIEF, phase_of
from tests.transport.copying import CopyingBlocks, CopyingParameters, packed_link

SECS = 20.0
"""Far longer than anything here takes; a wait that gets there has failed."""


def until_held(primary: Primary, num_pushes: int) -> None:
    """Wait until so many pushes are held. Nobody is notified when one comes to be, so this looks again and again."""
    deadline = SYSTEM_CLOCK.monotonic() + SECS
    while primary._sequencer.num_held != num_pushes:
        assert SYSTEM_CLOCK.monotonic() < deadline, "no push arrived"
        pause(0.001)


class ListedLog:
    """Keeps the entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.left: list[Left] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)

    def detach(self) -> Callable[[], None]:
        return self.flush

    def flush(self) -> None:
        pass

    def record_left(self, left: Left) -> None:
        self.left.append(left)

    def clear(self) -> None:
        pass


class Cluster:
    """A primary and its stores, from one starting state.

    Args:
      programs: of the run.
      num_servers: how many.
      wrap: what stands between the primary and a store.
    """

    def __init__(
        self, programs: Programs, num_servers: int, wrap: Callable[[Secondary], Any] = lambda store: store
    ) -> None:
        self.programs, self.num_servers = programs, num_servers
        self.log, self.failures = ListedLog(), list[HybridSyncError]()
        self.snapshot_buffer = SnapshotBuffer(programs.state_layout)
        self.state: TrainState = jax.device_get(initial_state(programs.task, programs.optimizer, 0))
        self.snapshot_buffer.pack(self.state)
        self.snapshot = self.snapshot_buffer.finalize(NO_PHASE, sequence=0, applied=())
        self.parts = partition(programs, num_servers)
        self.roles: dict[str, Any] = {CHIEF: self.snapshot_buffer}
        failed = self.failures.append
        self.stores = [Secondary(part, self.reader_at, SYSTEM_CLOCK, failed=failed) for part in self.parts[1:]]
        self.addresses = tuple(f"server {server}" for server in range(num_servers))
        wrapped = dict(zip(self.addresses[1:], map(wrap, self.stores), strict=True))
        self.primary = Primary(
            programs,
            ParameterPool(self.parts[0].programs.parameters_layout),
            self.reader_at,
            SYSTEM_CLOCK,
            self.log,
            threading.Event(),
            peers=Peers(self.parts, wrapped.__getitem__, failed),
            failed=failed,
        )
        self.roles["server 0"] = self.primary
        self.clients = [CopyingBlocks(store) for store in self.stores]

    def reader_at(self, address: str) -> Any:
        return self.roles[address]

    def enter(self, number: int = 1, snapshot: Snapshot | None = None, source: str = CHIEF, **fields: Any) -> Phase:
        phase = replace(
            phase_of(number, snapshot=snapshot or self.snapshot, source=source, **fields), servers=self.addresses
        )
        for server in (self.primary, *self.stores):
            server.enter(phase)
        return phase

    @property
    def left(self) -> list[Left]:
        """What the log says of the ends of phases."""
        return self.log.left

    def link(self) -> PackedLink:
        endpoint = Endpoint(self.primary, self.parts[0].programs.contribution_layout)
        return packed_link(self.parts, CopyingParameters(endpoint), self.clients)

    def captured(self, phase: Phase, final: bool = True, place: int = 0) -> tuple[Snapshot, TrainState]:
        """Return a snapshot of the whole state, as the chief gets it."""
        snapshot = self.primary.take_snapshot(phase.id, final, place)
        buffer = self.programs.state_layout.empty()
        self.primary.read(snapshot.snapshot_id, buffer)
        return snapshot, self.programs.state_layout.unpack(buffer)
