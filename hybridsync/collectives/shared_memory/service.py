"""Hands the memory out to the workers of a host, and tells the others at once when one of them has ended.

The supervisor serves on a unix socket. A worker sends its place and gets the slab's file and all doorbells. The service
then watches the worker's process: the kernel notifies it of the process's end, before the chief can know.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import struct
import threading
from typing import NamedTuple

from absl import logging

from hybridsync.collectives.backend import STOP_SECS
from hybridsync.collectives.shared_memory import doorbells, slab
from hybridsync.collectives.shared_memory.doorbells import MOST_WORKERS
from hybridsync.core.addresses import socket_path
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import HybridSyncError, WaitTimeout
from hybridsync.core.kept_socket import KeptSocket

_HELLO = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_JOINED, _REFUSED = b"joined", b"refused"
_ANSWER_SECS = 1.0
_POLL_SECS = 0.05


class SumService:
    """Lets workers join; a thread of its own answers them and watches their processes.

    Args:
      num_places: workers that may join.
      address: `unix:` and the path of a socket that does not exist yet.

    Attributes:
      address: as given.

    Raises:
      HybridSyncError: there are too many workers, no place for a socket, or no memory or descriptors.
    """

    def __init__(self, num_places: int, address: str) -> None:
        path = socket_path(address)
        if path is None or num_places > MOST_WORKERS:
            what = f"{num_places} workers, of {MOST_WORKERS} at most" if path else f"{address}, which is no socket"
            raise HybridSyncError(f"shared memory cannot serve {what}; run with --collective=host")
        self.address, self._path, self._num_places = address, str(path), num_places
        self._stopped = False
        self._num_sessions = 0
        self._processes: dict[int, int] = {}  # place -> descriptor of its process
        with contextlib.ExitStack() as opened:
            self._listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            try:
                self._listener.bind(self._path)
                self._listener.listen(num_places)
                self._files: list[int] = []
                for make in (functools.partial(slab.create, num_places), *[doorbells.create] * num_places):
                    self._files.append(make())
                    opened.callback(os.close, self._files[-1])
            except OSError as error:
                raise HybridSyncError(
                    f"cannot serve shared memory at {path}: {error.strerror}; mend that, or run with --collective=host"
                ) from error
            self._words = slab.Words(self._files[0], num_places)
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._stop = doorbells.create()
            opened.callback(os.close, self._stop)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._stop, selectors.EVENT_READ)
            self._opened = opened.pop_all()
        self._thread = threading.Thread(target=self._serve, name="shared memory", daemon=True)
        self._thread.start()
        self._socket = KeptSocket(path, self._listen_again)

    def stop(self, wait_secs: float = STOP_SECS) -> bool:
        """Stop serving; a second call does nothing (see `Service`). Workers that have joined keep the memory."""
        if self._stopped:
            return True
        self._stopped = True
        self._socket.close()
        doorbells.ring(self._stop)
        self._thread.join()
        for process in self._processes.values():
            os.close(process)
        self._opened.close()
        del self._words  # its mapping would keep all of the slab
        return True

    def _serve(self) -> None:
        while not self._stopped:
            ready = [key for key, _ in self._selector.select()]
            for key in ready:  # ended workers first: a successor may ask for the same place
                if key.data is not None:
                    self._ended(key.data)
            if any(key.fileobj is self._listener for key in ready):
                try:
                    self._accept()
                except (OSError, struct.error) as error:  # it is gone again, or not a worker, or there is no descriptor
                    logging.warning("shared memory was not handed out: %s", error)
                    pause(_POLL_SECS)  # the caller still waits, and nothing reports a descriptor that is free again

    def _listen_again(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self._path)
            listener.listen(self._num_places)
        except OSError:
            listener.close()
            raise
        self._opened.callback(listener.close)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener  # the former one stays: nobody finds it any more

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(_ANSWER_SECS)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(credentials)
            (place,) = _HELLO.unpack(connection.recv(_HELLO.size + 1))
            if user != os.geteuid() or not 0 <= place < len(self._files) - 1:
                connection.sendall(_REFUSED)
                return
            if place in self._processes:
                self._ended(place)
            process = os.pidfd_open(pid)
            try:
                self._selector.register(process, selectors.EVENT_READ, place)
            except OSError:
                os.close(process)
                raise
            self._processes[place] = process
            self._num_sessions += 1
            self._words.set_progress(place, 0)  # what an earlier process of this place has left there
            self._words.set_session(place, self._num_sessions)
            try:
                socket.send_fds(connection, [_JOINED], self._files)
            except OSError:  # it did not wait, so it may be another process by now that is watched
                self._ended(place)
                raise

    def _ended(self, place: int) -> None:
        process = self._processes.pop(place)
        self._selector.unregister(process)
        os.close(process)
        self._words.set_session(place, -self._words.session(place))
        for bell in self._files[1:]:
            doorbells.ring(bell)


class Joined(NamedTuple):
    """Holds a worker's part of the host's memory.

    Attributes:
      file: descriptor of the slab.
      words: the words of all workers.
      doorbells: the doorbells of all workers.
    """

    file: int
    words: slab.Words
    doorbells: doorbells.Doorbells


def join(address: str, place: int, worker: int, timeout_secs: float) -> Joined:
    """Take a place; nobody else is waited for.

    Args:
      address: address of the service.
      place: place of this worker.
      worker: number of this worker, for messages.
      timeout_secs: longest wait for the service, in seconds.

    Raises:
      WaitTimeout: the service does not answer.
      HybridSyncError: it refuses this process, or this process has too few descriptors.
    """
    deadline, answer = SYSTEM_CLOCK.monotonic() + timeout_secs, b""
    files: list[int] = []
    flags, why = 0, "no answer"
    while not answer:
        remaining = deadline - SYSTEM_CLOCK.monotonic()
        if remaining <= 0:
            raise WaitTimeout(
                f"worker {worker} gets no shared memory at {address} within {timeout_secs:g} s ({why}): is the "
                "supervisor alive, and has it descriptors left (`ulimit -n`)?"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(remaining)
            try:
                connection.connect(str(socket_path(address)))
                connection.sendall(_HELLO.pack(place))
                answer, files, flags, _ = socket.recv_fds(connection, 64, MOST_WORKERS + 1, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:  # the service was busy, or this process was, for longer than either waits
                why = str(error)
        # A service that could not hand the memory out hangs up: for instance, it lacked a descriptor, or this process
        # was slower than it waits. That passes, so the place is asked for until the time is up.
        if not answer:
            pause(min(_POLL_SECS, remaining))
    if answer == _REFUSED:
        raise HybridSyncError(
            f"the service of shared memory at {address} refuses worker {worker}: it is of another user, or has no "
            f"place {place}"
        )
    if flags & socket.MSG_CTRUNC:
        for file in files:
            os.close(file)
        raise HybridSyncError(
            f"worker {worker} may not open the files of its shared memory, one for each worker; raise `ulimit -n`, or "
            "run with --collective=host"
        )
    return Joined(files[0], slab.Words(files[0], len(files) - 1), doorbells.Doorbells(files[1:], place))
