"""A process that serves a primary over shared memory: pulls are answered, and pushes are held until it ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

from hybridsync.core.errors import StalePhase
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, BufferView, ParameterPort
from hybridsync.transport.link import Services
from hybridsync.transport.shared_memory.service import SlabService
from hybridsync.transport.shared_memory.slabs import SlabMemory

NUM_BYTES = 4096


class Lent:
    """A view that may be lent for ever."""

    def __init__(self, buffer: np.ndarray) -> None:
        self.buffer = buffer

    def release(self) -> None:
        pass


class HoldsPushes(ParameterPort):
    """Lends one buffer, and releases no push."""

    def __init__(self, memory: SlabMemory) -> None:
        self._lent = Lent(memory.allocate(NUM_BYTES))

    def pull(self, push: Push) -> Answer:
        return Answer(PushReply(push.base), self._lent)

    def begin_push(self, push: Push) -> Callable[[np.ndarray], Answer]:
        def offer(contribution: np.ndarray) -> Answer:
            print("held", flush=True)
            threading.Event().wait()
            return self.pull(push)

        return offer

    def idle(self, push: Push) -> None:
        pass

    def ready(self, push: Push) -> None:
        pass

    def lend(self, snapshot_id: int) -> BufferView:
        raise StalePhase(f"snapshot {snapshot_id} is not kept")

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        self.lend(snapshot_id)


def main(path: str, token: str) -> None:
    memory = SlabMemory()
    port = HoldsPushes(memory)
    services = Services(holder=port, parameters=port, contribution_bytes=NUM_BYTES)  # pyright: ignore[reportArgumentType]
    SlabService(services, memory, path, token, most=8)
    print("serves", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
