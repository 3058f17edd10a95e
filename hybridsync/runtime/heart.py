"""What server and worker processes have in common: first words, heartbeat, compilation cache and its account."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import jax

from hybridsync import __version__
from hybridsync.errors import HybridSyncError
from hybridsync.messages import Hello, Report
from hybridsync.rpc.chief import ChiefClient
from hybridsync.runtime.child import RoleSpec

COMPILATION_CACHE = "compilation_cache"
STOP_SECS = 10.0


def hello(spec: RoleSpec, address: str, schema: str) -> Hello:
    """Return this process's first words to the chief, which serves its state at `address`."""
    return Hello(spec.role, spec.role_id, os.getpid(), socket.gethostname(), address, schema, __version__)


def use_compilation_cache(workdir: Path) -> None:
    """Keep compiled programs in the workdir, for roles that are started again; readable by its owner only."""
    cache = workdir / COMPILATION_CACHE
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class CompileTimer:
    """Sums what XLA compiles in this process, seconds."""

    def __init__(self, note: Callable[[float], None]) -> None:
        self._note = note
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            self._note(duration_secs)


class Heart:
    """Reports to the chief from a thread of its own, every `secs` or when woken.

    Args:
      chief: where to.
      drain: returns what happened since the last report.
      secs: between reports.
      wake: set by others to report at once.
      ended: called once, with None when the run is over, or with why the chief refused this process or is gone.
    """

    def __init__(
        self,
        chief: ChiefClient,
        drain: Callable[[], Report],
        secs: float,
        wake: threading.Event,
        ended: Callable[[HybridSyncError | None], None],
    ) -> None:
        self._chief, self._drain, self._secs = chief, drain, secs
        self._wake, self._ended = wake, ended
        self._stopping = False
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Send a last report and end."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECS)

    def _beat(self) -> None:
        while True:
            self._wake.wait(self._secs)
            self._wake.clear()
            last = self._stopping
            try:
                done = self._chief.report(self._drain()).done
            except HybridSyncError as error:
                if not last:
                    self._ended(error)
                return
            if done and not last:
                self._ended(None)
            if done or last:
                return
