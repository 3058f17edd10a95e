"""Ports for programs that are started later."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_ANY = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _BEHIND = 10_000, 20_000
"""Jobs of Slurm take those that follow."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has at any address; the kernel gives them to nobody who asks for whichever is free."""
    first_of_any = int(_ANY.read_text().split()[0])
    places = range(_FIRST, min(_BEHIND, first_of_any))
    assert len(places) > 1000, f"the kernel gives out all ports from {first_of_any} on"
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.SystemRandom().sample(places, 1000):
            each = stack.enter_context(socket.socket())
            try:
                each.bind(("", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"only {len(found)} ports of 1000 are free")
