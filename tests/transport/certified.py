"""A transport over TLS in which each role of a job has a certificate of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.interfaces.ports import ChiefPort, Evaluate, ServerPort, ShardPort, SnapshotSource
from hybridsync.security.certificates import Authority
from hybridsync.security.identity import CHIEF, SERVER, WORKER
from hybridsync.security.keyring import Keyring
from hybridsync.server.partition import Part
from hybridsync.transport.link import Link, Services, Serving, Transport
from hybridsync.worker.link import ServerLink

TOKEN = "the run's token"


@cache
def authority() -> Authority:
    """Return the authority of all tests of a process."""
    with tempfile.TemporaryDirectory() as folder:
        return Authority.create(Path(folder) / "authority")


class CertifiedTransport:
    """Serves and dials as whoever would do so in a run.

    Args:
      make: keys -> the transport of one role.
    """

    def __init__(self, make: Callable[[Keyring], Transport]) -> None:
        names = ((CHIEF, 0), (SERVER, 0), (SERVER, 1), (WORKER, 0), (WORKER, 1))
        self._of = {name: make(Keyring(TOKEN, authority().issue(*name))) for name in names}
        self._num_links = 0

    def allocate(self, num_bytes: int) -> np.ndarray:
        return self._of[CHIEF, 0].allocate(num_bytes)

    def serve(self, services: Services, address: str, calls: int, watchdog: Watching = UNWATCHED) -> Serving:
        name = (CHIEF, 0) if services.chief else (SERVER, 0 if services.parameters else 1)
        return self._of[name].serve(services, address, calls, watchdog)

    def chief(self, address: str, deadline_secs: float) -> ChiefPort:
        return self._of[WORKER, 1].chief(address, deadline_secs)

    def holder(self, address: str, state_bytes: int = 0) -> Link[SnapshotSource]:
        return self._of[CHIEF, 0].holder(address, state_bytes)

    def server(self, address: str, state_bytes: int) -> Link[ServerPort]:
        return self._of[CHIEF, 0].server(address, state_bytes)

    def peer(self, address: str, state_bytes: int) -> Link[ShardPort]:
        return self._of[SERVER, 0].peer(address, state_bytes)

    def evaluator(self, address: str, state_bytes: int) -> Evaluate:
        return self._of[CHIEF, 0].evaluator(address, state_bytes)

    def link(self, servers: Sequence[str], parts: Sequence[Part]) -> ServerLink:
        """Return a link of worker 0; the third one is worker 1's."""
        self._num_links += 1
        return self._of[WORKER, self._num_links // 3].link(servers, parts)
