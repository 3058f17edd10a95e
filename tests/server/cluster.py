"""Several parameter servers in one process: real primary, stores and links, without sockets between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_EPOCH
from hybridsync.interfaces.messages import Capture, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import Answer
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import SnapshotPool
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Store
from hybridsync.storage.apply_log import Entry, Left
from hybridsync.training.programs import Programs
from hybridsync.training.snapshot import Holding
from hybridsync.training.state import TrainState, initial_state
from hybridsync.transport.grpc.parameter_server import ParameterClient
from hybridsync.transport.grpc.server_link import RemoteLink
from hybridsync.transport.grpc.shard import ShardClient
from tests.roles import CHIEF, phase_of


class ListedLog:
    """Keeps the entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.left: list[Left] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)

    def flush(self) -> None:
        pass

    def leave(self, left: Left) -> None:
        self.left.append(left)

    def clear(self) -> None:
        pass


@dataclass
class Block:
    """A block in a server's hands, overwritten when it comes back."""

    buffer: np.ndarray
    num_released: int = 0

    def release(self) -> None:
        self.num_released += 1
        self.buffer[:] = 0xFF


@dataclass
class StoreAt(ShardClient):
    """What a worker's client of a store is, without the wire."""

    store: Store
    blocks: list[Block] = field(default_factory=list)

    def stage(self, push: Push, block: np.ndarray) -> str:
        self.blocks.append(Block(aligned_copy(block)))
        return self.store.stage(push, self.blocks[-1])

    def pull_at(self, push: Push, into: np.ndarray) -> None:
        served = self.store.pull_at(push)
        into[:] = served.buffer
        served.release()


@dataclass
class PrimaryAt(ParameterClient):
    """What a worker's client of the primary is, without the wire."""

    endpoint: Endpoint

    def pull(self, push: Push, into: np.ndarray) -> PushReply:
        return self._fill(self.endpoint.pull(push), into)

    def push_pull(self, push: Push, contribution: np.ndarray, into: np.ndarray) -> PushReply:
        return self._fill(self.endpoint.begin_push(push)(aligned_copy(contribution)), into)

    def _fill(self, answer: Answer, into: np.ndarray) -> PushReply:
        into[:] = answer.parameters.buffer
        answer.parameters.release()
        return answer.reply


def aligned_copy(block: np.ndarray) -> np.ndarray:
    raw = np.empty(block.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + block.nbytes]
    copy[:] = block
    return copy


class Cluster:
    """A primary and its stores, from one starting state.

    Args:
      programs: of the run.
      num_servers: how many.
      wrap: what stands between the primary and a store.
    """

    def __init__(
        self, programs: Programs, num_servers: int, wrap: Callable[[Store], Any] = lambda store: store
    ) -> None:
        self.programs, self.num_servers = programs, num_servers
        self.log, self.failures = ListedLog(), list[HybridSyncError]()
        self.holding = Holding(programs.state_layout)
        self.state: TrainState = jax.device_get(initial_state(programs.task, programs.optimizer, 0))
        self.holding.pack(self.state)
        self.capture = self.holding.seal(NO_EPOCH, sequence=0, applied=())
        self.parts = partition(programs, num_servers)
        self.roles: dict[str, Any] = {CHIEF: self.holding}
        self.stores = [Store(part, self.reader_at, SYSTEM_CLOCK) for part in self.parts[1:]]
        self.addresses = tuple(f"server {server}" for server in range(num_servers))
        wrapped = dict(zip(self.addresses[1:], map(wrap, self.stores), strict=True))
        self.primary = Primary(
            programs,
            SnapshotPool(self.parts[0].programs.parameters_layout),
            self.reader_at,
            SYSTEM_CLOCK,
            self.log,
            threading.Event(),
            peers=Peers(self.parts, wrapped.__getitem__, self.failures.append),
        )
        self.roles["server 0"] = self.primary
        self.clients = [StoreAt(store) for store in self.stores]

    def reader_at(self, address: str) -> Any:
        return self.roles[address]

    def enter(self, number: int = 1, capture: Capture | None = None, source: str = CHIEF, **fields: Any) -> Phase:
        phase = replace(
            phase_of(number, capture=capture or self.capture, source=source, **fields), servers=self.addresses
        )
        for server in (self.primary, *self.stores):
            server.enter(phase)
        return phase

    @property
    def left(self) -> list[Left]:
        """What the log says of the ends of phases."""
        return self.log.left

    def link(self) -> RemoteLink:
        endpoint = Endpoint(self.primary, self.parts[0].programs.contribution_layout)
        return RemoteLink(self.parts, PrimaryAt(endpoint), self.clients)

    def captured(self, phase: Phase, final: bool = True) -> tuple[Capture, TrainState]:
        """Return a capture of the whole state, as the chief gets it."""
        capture = self.primary.capture(phase.epoch, final)
        buffer = self.programs.state_layout.empty()
        self.primary.read(capture.capture_id, buffer)
        return capture, self.programs.state_layout.unpack(buffer)
