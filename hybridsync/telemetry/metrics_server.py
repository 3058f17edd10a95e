"""A small HTTP server, for one page that any user of the machine may ask for: who asks costs the run little.

It answers a bounded number of connections at a time and closes others at once. Each has a bounded time, whatever it
sends or receives meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from absl import logging

from hybridsync.core.clock import SYSTEM_CLOCK

MOST_CONNECTIONS = 8
"""At a time; each occupies a thread and a file descriptor."""

REQUEST_SECS = 10.0
"""For a request and its reply, which is also what Prometheus waits by default."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serve a WSGI application, which several threads call at a time.

    Args:
      host: address to serve at.
      port: port of the address.
      application: application to serve.

    Raises:
      OSError: the port is in use, or the address is none of this machine.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, application: Callable[..., Any]) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._began: dict[Any, float] = {}  # by the connections that are open
        super().__init__((host, port), _Silent)
        self.set_app(application)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if there is a place."""
        if len(self._began) >= MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._began[request] = SYSTEM_CLOCK.monotonic()
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Let go of a connection."""
        self._began.pop(request, None)
        super().close_request(request)

    def service_actions(self) -> None:
        """End the connections whose time is over; the accepting thread calls it twice a second."""
        now = SYSTEM_CLOCK.monotonic()
        for request, began in list(self._began.items()):
            if now - began >= REQUEST_SECS:
                _shut(request)

    def server_close(self) -> None:
        """Serve nobody any more."""
        super().server_close()
        for request in list(self._began):
            _shut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say that somebody was not served, who may have gone away, without a traceback for each."""
        logging.log_every_n_seconds(logging.WARNING, "a request for metrics was not served", 60, exc_info=True)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""


def _shut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        return
