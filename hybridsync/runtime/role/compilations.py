"""The account of what JAX traces and compiles in this process, and one compilation for all processes of a host.

Processes that start together compile the same programs. The first to come to one compiles it, and the others wait and
load what it made, from the folder of compiled programs that they share.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from absl import logging

from hybridsync.core.activity import current
from hybridsync.core.clock import SYSTEM_CLOCK, Clock, pause
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.jax_internals import wrap_file_cache
from hybridsync.core.work_deadlines import COMPILE_SECS, UNWATCHED, Watching

WAIT_SECS = COMPILE_SECS / 2
"""How long a process waits for another one that compiles what it needs; then it compiles that as well."""
LOOK_SECS = 0.02
own_log = functools.partial(print, file=sys.stderr, flush=True)
"""Takes a line for the log of a role's process."""
CLAIMS = "claims"
"""File in the folder of compiled programs; a locked byte of it is a program that a process compiles."""
_TRACED, _COMPILED = "/jaxpr_trace_duration", "/backend_compile_duration"
_LOADED = "/compilation_cache/cache_hits"


class Compilations:
    """Counts what JAX traces, compiles and loads in this process, and notifies watchdog and worker of it.

    Args:
      note: called with the seconds of each compilation.
      watchdog: watchdog of the process.
      say: takes a line for the log.
    """

    def __init__(
        self,
        note: Callable[[float], None] = lambda secs: None,
        watchdog: Watching = UNWATCHED,
        say: Callable[[str], object] = logging.info,
    ) -> None:
        self._note, self._watchdog, self._say = note, watchdog, say
        self._lock = threading.Lock()
        self.traced = self.compiled = self.loaded = 0
        self._trace_secs = self._compile_secs = 0.0
        _listen()
        _COUNTING.append(self)

    def close(self) -> None:
        """Count no more."""
        _COUNTING.remove(self)

    def say_all(self, until: str) -> None:
        """Write the counts into the log, with the moment until which they were counted."""
        self._say(
            f"until {until}: {self.traced} programs traced in {self._trace_secs:.1f} s, {self.compiled} compiled and "
            f"{self.loaded} loaded in {self._compile_secs:.1f} s"
        )

    def on_begin(self, event: str, name: str) -> None:
        """Take in that a piece of JAX's work begins."""
        if event.endswith(_COMPILED):
            self._say(f"compiling {name}, unless it was compiled before")

    def on_event(self, event: str) -> None:
        """Take in what happened."""
        if event.endswith(_LOADED):
            with self._lock:
                self.loaded += 1
                self.compiled -= 1  # which its end counts, too

    def on_end(self, event: str, duration_secs: float) -> None:
        """Take in that a piece of JAX's work has ended."""
        if "/compile/" not in event:
            return
        # Also when a function was traced, which its compilation follows
        self._watchdog.compiles()
        current().compiling()
        with self._lock:
            if event.endswith(_TRACED):
                self.traced += 1
                self._trace_secs += duration_secs
            elif event.endswith(_COMPILED):
                self.compiled += 1
                self._compile_secs += duration_secs
        if event.endswith(_COMPILED):
            self._note(duration_secs)


_COUNTING: list[Compilations] = []


@functools.cache
def _listen() -> None:
    """Have JAX notify all that count, once a process: its versions have no public way to take a listener off again."""

    def on_begin(event: str, value: float | int, **named: str | int) -> None:
        for each in [*_COUNTING]:
            each.on_begin(event, str(named.get("fun_name", "a program")))

    def on_event(event: str, **_: str | int) -> None:
        for each in [*_COUNTING]:
            each.on_event(event)

    def on_end(event: str, duration_secs: float, **_: str | int) -> None:
        for each in [*_COUNTING]:
            each.on_end(event, duration_secs)

    jax.monitoring.register_scalar_listener(on_begin)
    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_end)


def share_compilations() -> None:
    """Have this process wait for what another one compiles already, as all do that keep their programs in one folder.

    Where the installed version of JAX has no place for that, each process compiles for itself.
    """
    try:
        wrap_file_cache(_shared)
    except HybridSyncError as error:
        logging.warning("Each process compiles its programs for itself: %s", error)


def _shared(cache: Any, folder: str) -> Any:
    try:
        return SharedCache(cache, Path(folder))
    except OSError as error:
        logging.warning("Each process compiles its programs for itself: %s", error)
        return cache


class SharedCache:
    """JAX's cache of compiled programs, in which a process that misses one compiles it while the others wait for it.

    The kernel holds the claims, so that a process's death ends its own. Two threads of a process share theirs: both
    compile what both miss at the same time.

    Args:
      cache: JAX's own cache.
      folder: folder of compiled programs.
      clock: clock for the wait.

    Raises:
      OSError: there can be no file for claims in the folder.
    """

    def __init__(self, cache: Any, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cache, self._clock = cache, clock
        self._path = folder  # JAX names it in its log
        self._file = os.open(folder / CLAIMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._mine = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._on_end)

    def get(self, key: str) -> bytes | None:
        """Return a compiled program; None where this process is to compile it."""
        place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        deadline, waits = self._clock.monotonic() + WAIT_SECS, False
        while True:
            try:
                if self._lock(fcntl.LOCK_SH, place):  # no other process writes it
                    found = self._cache.get(key)
                    if found is None and self._lock(fcntl.LOCK_EX, place):
                        self._claims.append(place)
                        return None
                    self._lock(fcntl.LOCK_UN, place)
                    if found is not None:
                        return found
            except OSError as error:  # a file system without locks
                logging.warning("%s is compiled without asking whether another process does: %s", key, error)
                return self._cache.get(key)
            if self._clock.monotonic() > deadline:
                logging.warning("Another process compiles %s for %g s already: so does this one.", key, WAIT_SECS)
                return None
            if not waits:
                logging.info("Waiting for another process, which compiles %s.", key)
            waits = True
            pause(LOOK_SECS)

    def put(self, key: str, value: bytes) -> None:
        """Keep a compiled program."""
        self._cache.put(key, value)

    def _lock(self, how: int, place: int) -> bool:
        try:
            fcntl.lockf(self._file, how if how == fcntl.LOCK_UN else how | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # another process's; POSIX allows both errors
            return False
        return True

    @property
    def _claims(self) -> list[int]:
        """Places of what this thread compiles."""
        if not hasattr(self._mine, "claims"):
            self._mine.claims = []
        return self._mine.claims

    def _on_end(self, event: str, duration_secs: float, **_: str | int) -> None:
        # Also of what is not kept, such as a program that calls back, and of what could not be compiled
        if event.endswith(_COMPILED):
            while self._claims:
                self._lock(fcntl.LOCK_UN, self._claims.pop())
