"""The end of links at the role that is called: one thread for each caller, and a bound on their number."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK, pause

READERS = 300
"""Connections beside those of the calls: every role of a run may read a state at a time."""

POLL_SECS = 0.05
"""The pause before the next attempt where a caller could not be accepted."""

_ROOM_SECS = 1.0
"""For the threads of callers that have ended to end too, before a new caller is turned away."""


class Answering(Protocol):
    """One caller's connection, at the role that is called."""

    def run(self) -> None:
        """Answer requests until the caller ends.

        Raises:
          OSError: the connection ended before its answer.
        """
        ...

    def interrupt(self) -> None:
        """End the connection from another thread; `run` returns, or raises OSError."""
        ...

    def has_ended(self) -> bool:
        """Return whether the caller has ended the connection; `run` may not have come to it yet."""
        ...

    def close(self) -> None:
        """Let go of all that the caller has; nobody runs this any more."""
        ...


class LinkService(ABC):
    """Answers each caller in a thread of its own; who becomes a caller is a subclass's.

    The lock guards the sessions.

    Args:
      listener: a socket that listens.
      name: name of the accepting thread.
      most: maximum number of connections at a time.
    """

    def __init__(self, listener: socket.socket, name: str, most: int) -> None:
        self._listener, self._name, self._most = listener, name, most
        self._former: deque[socket.socket] = deque()  # listeners that have ended; the accepting thread closes them
        self._lock = threading.Lock()
        self._sessions: dict[Answering, threading.Thread] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Accept callers from now on."""
        self._thread.start()

    def stop(self, wait_secs: float = 0.0) -> None:
        """End all connections, and wait for the calls under way up to a time."""
        deadline = SYSTEM_CLOCK.monotonic() + wait_secs
        with self._lock:
            self._stopped = True
            sessions = dict(self._sessions)
        shut(self._listener)  # the accepting thread sees that it is to stop
        for session in sessions:
            session.interrupt()
        for thread in (self._thread, *sessions.values()):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))

    def _listen_at(self, listener: socket.socket) -> None:
        """Accept callers from another listener; the former one ends."""
        former, self._listener = self._listener, listener
        self._former.append(former)
        shut(former)

    @abstractmethod
    def _serve(self) -> None:
        """Accept connections until this is stopped, and close the listener: what the accepting thread runs."""

    def _accept(self) -> socket.socket | None:
        """Return the next connection; None where there is none, or where it could not be accepted."""
        while self._former:  # not only the one that it waited at: it may have been with a caller meanwhile
            self._former.popleft().close()
        listener = self._listener
        try:
            return listener.accept()[0]
        except BlockingIOError:  # it went away before it was accepted
            return None
        except OSError as error:
            if listener is self._listener and not self._stopped:  # no descriptor is left: the caller waits
                logging.log_every_n_seconds(logging.WARNING, "a link was not accepted: %s", 10, error)
                pause(POLL_SECS)
            return None

    def _begin(self, session: Answering) -> bool:
        """Answer a caller from now on; returns False where there is no place, with the connection as it was."""
        with self._lock:
            if self._stopped or len(self._sessions) >= self._most:
                return False
            thread = threading.Thread(target=self._run, args=(session,), name=self._name, daemon=True)
            self._sessions[session] = thread
            try:
                thread.start()
            except RuntimeError as error:  # there is no thread for it: the caller tries again
                logging.warning("a link was not accepted: %s", error)
                del self._sessions[session]
                session.close()
        return True

    def _make_room(self) -> None:
        """If all places are taken, wait for those of callers that have ended, for `_ROOM_SECS` at most."""
        with self._lock:
            if len(self._sessions) < self._most:
                return
            ended = [thread for session, thread in self._sessions.items() if session.has_ended()]
        deadline = SYSTEM_CLOCK.monotonic() + _ROOM_SECS
        for thread in ended:
            thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))

    def _run(self, session: Answering) -> None:
        try:
            session.run()
        except OSError:  # the caller ended before its answer, or this service does
            return
        finally:
            try:
                session.close()
            finally:
                with self._lock:
                    del self._sessions[session]


def shut(connection: socket.socket) -> None:
    """End a connection, and every read or write there."""
    with contextlib.suppress(OSError):  # the other end is gone, or another thread has closed it
        connection.shutdown(socket.SHUT_RDWR)


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether the other end of a connection has ended it, or this one has."""
    poll = select.poll()
    try:
        poll.register(connection, select.POLLRDHUP)
    except ValueError:  # this end is closed
        return True
    return bool(poll.poll(0))
