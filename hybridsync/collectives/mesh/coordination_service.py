"""Serves the meeting point of a process group, in the process that starts the workers.

Importing this file loads neither jax nor jaxlib: a supervisor never imports jax.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from hybridsync.collectives.backend import STOP_SECS
from hybridsync.collectives.mesh.sockets import listening
from hybridsync.core.addresses import at_port, socket_path
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.jax_internals import construct, make_service, unsuited

# The service is a meeting point here, not the failure detector (leases and supervisors are), and a short
# timeout would abort a worker that was merely stopped for a while.
HEARTBEAT_SECS = 3600
_SHUTDOWN_SECS = 5


class Service:
    """The process group's meeting point; its end aborts every worker that has joined. Made by `start_service`.

    Args:
      address: address at which workers join.
      runtime: jaxlib's service.

    Attributes:
      address: as given.
    """

    def __init__(self, address: str, runtime: Any) -> None:
        self.address = address
        self._runtime = runtime
        self._ending: threading.Thread | None = None
        self._error: Exception | None = None

    def stop(self, wait_secs: float = STOP_SECS) -> bool:
        """Stop serving, and wait up to `wait_secs` for the end (see `Service` of `hybridsync.collectives.backend`).

        jaxlib waits for calls in progress, at last without a limit, so a thread of its own does.
        """
        if self._ending is None:
            self._ending = threading.Thread(target=self._shut_down, name="coordination service", daemon=True)
            self._ending.start()
        # For the thread and not for its work alone: in jaxlib's code while Python ends, it would abort the process.
        self._ending.join(wait_secs)
        if self._ending.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _shut_down(self) -> None:
        try:
            self._runtime.shutdown()
        except Exception as error:  # noqa: BLE001 `stop` raises it, in the thread of who waits for the end
            self._error = error


def start_service(num_workers: int, address: str = "127.0.0.1:0") -> Service:
    """Start the coordination service of a process group with `num_workers` slots in this process, without jax.

    The kernel chooses the port: the runtime dies of SIGSEGV when a given one is taken. Returns the service.

    Args:
      num_workers: slots; a restarted worker takes the slot it had.
      address: `host:0`, or `unix:` and the path of a socket.

    Raises:
      HybridSyncError: the installed jaxlib is unsuited, or the host is not an address of this machine.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when jaxlib is loaded
    make = make_service()
    at_a_socket = socket_path(address) is not None
    if not at_a_socket:
        _check_host(address)
    before = listening()
    runtime = construct(
        "the coordination service",
        make,
        address,
        num_workers,
        heartbeat_timeout=HEARTBEAT_SECS,
        shutdown_timeout=_SHUTDOWN_SECS,
        recoverable=True,
    )
    if at_a_socket:
        return Service(address, runtime)
    opened = listening() - before
    if len(opened) != 1:
        raise unsuited("the coordination service", f"it opened {sorted(opened)}, not one port")
    host, port = opened.pop()
    return Service(at_port(host, port), runtime)


def _check_host(address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, 0), family=family).close()
    except OSError as error:
        raise HybridSyncError(f"cannot listen on {host}: {error.strerror}; name an address of this machine") from error
