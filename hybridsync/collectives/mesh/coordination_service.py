"""The coordination service of a process group, in the supervisor, which never imports jax.

Importing this file loads neither jax nor jaxlib.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from absl import logging

from hybridsync.collectives.mesh.jax_internals import construct, make_service, unsuited
from hybridsync.collectives.mesh.sockets import listening
from hybridsync.core.addresses import at_port, socket_path
from hybridsync.core.errors import HybridSyncError

# The service is a meeting point here, not the failure detector (leases and supervisors are), and a short
# timeout would abort a worker that was merely stopped for a while.
HEARTBEAT_SECS = 3600
_SHUTDOWN_SECS = 5
STOP_SECS = 20.0
"""How long its end is waited for. jaxlib gives calls in progress 5 s, and what comes then has no limit."""


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

    def stop(self) -> None:
        """Stop serving; nothing happens the second time. A service that does not end in time is left behind."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        stopping = threading.Thread(target=runtime.shutdown, name="coordination service", daemon=True)
        stopping.start()
        stopping.join(STOP_SECS)
        if stopping.is_alive():
            logging.warning("the coordination service at %s has not ended within %g s", self.address, STOP_SECS)


def start_service(num_workers: int, address: str = "127.0.0.1:0") -> Service:
    """Start the coordination service of a process group with `num_workers` slots in this process, without jax.

    The kernel chooses the port: the runtime dies of SIGSEGV when a given one is taken.

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
