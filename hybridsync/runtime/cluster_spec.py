"""One host's place in a run on several hosts, as its command line says it, and its address towards the head."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hybridsync.cluster.discovery import Place
from hybridsync.cluster.role_assignment import HEAD
from hybridsync.config.resume_rules import to_json
from hybridsync.config.run_config import RunConfig
from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.counted import counted
from hybridsync.core.errors import AddressError, ConfigError
from hybridsync.policies.plan_checks import parsed_plan, sums_among_workers
from hybridsync.runtime.user_output import say

PRIVATE = "private"
"""Value of --collectives_network for a network whose users may all read, and disturb, the sums among workers."""


@dataclass(frozen=True)
class ClusterSpec:
    """Holds one host's place in a run on several hosts.

    Attributes:
      head: address, host:port, at which the agents of the other hosts attach.
      index: index of this host; 0 is the head.
      num_hosts: number of hosts of the run.
      address: address of this host, at which its roles serve.
      certificates: folder of this host's certificate; the head's has the authority's key, too.
      slots: maximum number of workers on this host; 0 for its share.
      collectives_network: "private" where gloo may carry sums between hosts in plain text.
    """

    head: str
    index: int
    num_hosts: int
    address: str
    certificates: Path
    slots: int = 0
    collectives_network: str = ""

    @property
    def is_head(self) -> bool:
        """Return whether this host is the head."""
        return self.index == HEAD

    def check(self, config: RunConfig) -> None:
        """Refuse a run that these hosts are not to carry.

        Raises:
          ConfigError: more hosts than workers, too few slots, or collectives between hosts on a network that is not
            declared private.
        """
        if self.num_hosts > config.workers:
            raise ConfigError(
                f"--hosts={self.num_hosts} is more than the {counted(config.workers, 'worker')}; each host runs one at "
                "least: take fewer hosts, or more --workers"
            )
        share = -(-config.workers // self.num_hosts)
        if self.slots and self.slots < share:
            raise ConfigError(
                f"--slots={self.slots} is less than this host's share of {config.workers} workers on "
                f"{self.num_hosts} hosts, which is {share}; give it more slots, or leave the flag out"
            )
        named = sums_among_workers(parsed_plan(config))
        if named and self.sums_refused:
            raise ConfigError(f"{named[0]} {self.sums_refused}")

    @property
    def sums_refused(self) -> str:
        """Return why workers may not sum between the hosts, to follow the name of a protocol; "" where they may."""
        if self.num_hosts == 1 or self.collectives_network == PRIVATE or is_loopback(self.address):
            return ""
        return (
            "sums between hosts over gloo, which neither encrypts nor asks who calls; say "
            f"--collectives_network={PRIVATE} if that network has no other users, or take a protocol that goes "
            "through the servers, such as bsp_server"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is written as an address of the loopback interface, or as localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def digest_of(config: RunConfig) -> str:
    """Return the digest of a configuration, by which hosts compare theirs."""
    return xxhash.xxh3_128_hexdigest(json.dumps(to_json(config), sort_keys=True).encode())


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
