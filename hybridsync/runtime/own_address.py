"""Finds the address of this host by which it reaches the head, and waits for the head's name to have one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from hybridsync.cluster.discovery import Place
from hybridsync.cluster.role_assignment import HEAD
from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import AddressError
from hybridsync.runtime.cluster_spec import is_loopback
from hybridsync.runtime.user_output import say

LOOK_SECS = 600.0
"""How long an agent looks for a head that is away, or whose name has no address yet."""
PAUSE_SECS = 1.0
_NEVER = threading.Event()


def own_address(
    place: Place,
    look_secs: float = LOOK_SECS,
    say: Callable[[str], None] = say,
    clock: Clock = SYSTEM_CLOCK,
    wait: Callable[[float], object] = _NEVER.wait,
) -> str:
    """Return the address of this host by which it reaches the head; nothing is sent to find it.

    The name of a host that has just started may have no address for some seconds, as a pod's, and there may be no way
    to it yet. The head waits for its own name as well.

    Args:
      place: place of this host in the run.
      look_secs: longest search for an address, in seconds.
      say: shows a line to the user.
      clock: clock for the search.
      wait: lets so many seconds pass.

    Raises:
      AddressError: the head's name has no address all that time, or none that other hosts reach.
    """
    deadline, is_told = clock.monotonic() + look_secs, False
    while True:
        try:
            return _address(place)
        except OSError as error:
            why = error.strerror or error
            if clock.monotonic() >= deadline:
                raise AddressError(
                    f"--head={place.head} cannot be reached from here for {look_secs:g} s: {why}; name the head by an "
                    "address that every host reaches, and this host by --address"
                ) from error
            if not is_told:
                say(f"--head={place.head} cannot be reached from here yet: {why}; it is tried for {look_secs:g} s")
            is_told = True
            wait(PAUSE_SECS)


def _address(place: Place) -> str:
    """Return the address.

    Raises:
      OSError: the head's name has no address, or there is no route to it.
      AddressError: other hosts do not reach it.
    """
    host, _, port = place.head.rpartition(":")
    family, kind, _, _, to = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    found = str(to[0])
    if place.hosts > 1 and is_loopback(found) and not is_loopback(host):  # as Debian names a host to itself
        raise AddressError(
            f"--head={place.head} is {found} to this host, which others do not reach; name the head by the address "
            "that the others reach, and each host by --address"
        )
    if place.index == HEAD:
        return found
    with socket.socket(family, kind) as probe:
        probe.connect(to)
        return probe.getsockname()[0]
