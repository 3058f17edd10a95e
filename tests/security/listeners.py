"""Where the processes of a run listen, as the kernel tells."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"
_ACCEPTS = 0x10000
"""The flag of a unix socket that listens, in /proc/net/unix."""


class Listeners(NamedTuple):
    """Addresses and ports of TCP, and paths of unix sockets."""

    tcp: set[tuple[str, int]]
    unix: set[str]


def processes(pid: int) -> list[int]:
    """Return a process and all that it has started, and they, and so on."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # the process, or that thread of it, has ended meanwhile
            continue
        found += [each for child in children for each in processes(int(child))]
    return found


def open_sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # it was closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def listeners(pid: int) -> Listeners:
    """Return where a process listens: nowhere, if it has ended meanwhile. It takes no packets of any kind."""
    try:
        return _listeners(pid)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EINVAL):  # EINVAL: nobody has waited for it yet
            raise
        return Listeners(set(), set())


def ports_by_role(programs: Mapping[int, str], roles: Mapping[int, str]) -> dict[str, set[tuple[str, int]]]:
    """Return the ports of a run on several hosts, which has no sockets in folders.

    Args:
      programs: process -> name of the program of each host.
      roles: process -> name of each role.

    Returns:
      name of a program or a role -> its ports; of others, mostly fork servers, "child of PROGRAM" -> theirs.
    """
    found: dict[str, set[tuple[str, int]]] = {}
    for program, name in programs.items():
        for pid in processes(program):
            tcp, unix = listeners(pid)
            assert unix == set(), f"process {pid} of {name} serves on {unix}"
            own = programs.get(pid) or roles.get(pid) or f"child of {name}"
            found[own] = found.get(own, set()) | tcp
    return found


def _listeners(pid: int) -> Listeners:
    own, tcp, unix = open_sockets(pid), set[tuple[str, int]](), set[str]()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in own:
                address, _, port = fields[1].partition(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                host = ipaddress.ip_address(b"".join(words))
                tcp.add((str(getattr(host, "ipv4_mapped", None) or host), int(port, 16)))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _ACCEPTS and fields[6] in own:
            unix.add(fields[7] if len(fields) > 7 else "")
    for name in ("udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            assert line.split()[9] not in own, f"process {pid} takes packets: {line}"
    return Listeners(tcp, unix)
