"""A role whose calls do what a test says; as a process, it holds each pull, or each push, in the middle for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

from hybridsync.core.errors import StalePhase
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, BufferView, ParameterPort
from hybridsync.security.keyring import Keyring
from hybridsync.transport.link import Services
from hybridsync.transport.tcp.transport import TcpTransport

NUM_BYTES = 24 << 20
"""More than the kernel keeps on a connection."""


class View:
    """Lends one buffer."""

    def __init__(self, num_bytes: int) -> None:
        self.buffer = np.resize(np.arange(251, dtype=np.uint8), num_bytes)  # no frame is like another
        self.num_lent = self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


class Scripted(ParameterPort):
    """A role of which each step calls what a test has put there.

    Args:
      num_bytes: of contributions and parameters.
    """

    def __init__(self, num_bytes: int) -> None:
        self.view, self.pushed = View(num_bytes), list[np.ndarray]()
        self.on_begin: Callable[[], None] = lambda: None
        self.on_arrival: Callable[[], None] = lambda: None

    def services(self) -> Services:
        size = self.view.buffer.nbytes
        return Services(holder=self, parameters=self, contribution_bytes=size, num_buffers=2)  # pyright: ignore[reportArgumentType]

    def pull(self, push: Push) -> Answer:
        self.view.num_lent += 1
        return Answer(PushReply(1), self.view, lambda: self.on_arrival())

    def begin_push(self, push: Push) -> Callable[[np.ndarray], Answer]:
        self.on_begin()

        def offer(contribution: np.ndarray) -> Answer:
            self.pushed.append(contribution.copy())
            return self.pull(push)

        return offer

    def idle(self, push: Push) -> None: ...

    def ready(self, push: Push) -> None: ...

    def lend(self, snapshot_id: int) -> BufferView:
        if snapshot_id != 1:
            raise StalePhase(f"snapshot {snapshot_id} is not kept")
        self.view.num_lent += 1
        return self.view

    def read(self, snapshot_id: int, into: np.ndarray) -> None:
        into[:] = self.lend(snapshot_id).buffer


def main(address: str, token: str, held: str) -> None:
    def wait_for_ever() -> None:
        print("held", flush=True)
        threading.Event().wait()

    role = Scripted(NUM_BYTES)
    if held == "pull":
        role.on_arrival = wait_for_ever
    if held == "push":
        role.on_begin = wait_for_ever
    serving = TcpTransport(Keyring(token)).serve(role.services(), address, calls=8)
    print("serves", flush=True)
    sys.stdin.read()
    serving.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
