"""Checks an agent's message to the head by itself, before anything is changed by it. Pure.

>>> check_index(3, num_hosts=3)
Traceback (most recent call last):
...
hybridsync.core.errors.UnknownRole: there is no host 3 in this run: its further hosts are 1 to 2; start the agent with
one of these numbers
"""

from __future__ import annotations

import re

from hybridsync.chief.package_versions import check_version
from hybridsync.core.errors import ConfigError, InvalidMessage, UnknownRole
from hybridsync.core.plan import MOST_ENTRIES
from hybridsync.interfaces.agents import MOST_POLL_SECS, AgentHello, AgentReport

_SESSION = re.compile(r"[0-9a-f]{32}")


def check_index(index: int, num_hosts: int) -> None:
    """Refuse an agent that the run has no place for.

    Raises:
      UnknownRole: its number is not one of a further host.
    """
    if not 1 <= index < num_hosts:
        hosts = f"its further hosts are 1 to {num_hosts - 1}" if num_hosts > 1 else "it has one host"
        raise UnknownRole(f"there is no host {index} in this run: {hosts}; start the agent with one of these numbers")


def check_hello(hello: AgentHello, num_hosts: int, config_digest: str, version: str) -> None:
    """Refuse an agent that cannot take part.

    Args:
      hello: the agent's first message.
      num_hosts: number of hosts of the run, the head included.
      config_digest: digest of the run's configuration.
      version: version of the head's package.

    Raises:
      UnknownRole: the run has no such host.
      VersionMismatch: its package is of another minor series.
      ConfigError: the agent has another configuration, or another number of hosts.
      InvalidMessage: a number is out of range, or the session is not a session.
    """
    check_index(hello.index, num_hosts)
    who = f"the agent of host {hello.index} ({hello.host or 'of no name'})"
    check_version(who, hello.version, version, "the head")
    if hello.num_hosts not in (0, num_hosts):
        raise ConfigError(
            f"{who} was told of {hello.num_hosts} hosts, and the head of {num_hosts}; give every host the same --hosts"
        )
    if hello.config_digest != config_digest:
        raise ConfigError(
            f"{who} has the configuration {hello.config_digest or '(none)'}, the head {config_digest}; give every "
            "host the same configuration file and --set"
        )
    if not 1 <= hello.slots <= MOST_ENTRIES:
        raise InvalidMessage(f"{who} says that it has {hello.slots} slots; have 1 to {MOST_ENTRIES}")
    if not hello.host or not hello.address:
        raise InvalidMessage(f"{who} has the address {hello.address!r}; name the host, and where its processes serve")
    if not _SESSION.fullmatch(hello.session):
        raise InvalidMessage(f"{who} names the session {hello.session[:40]!r}; draw 32 hexadecimal digits")


def check_report(report: AgentReport) -> None:
    """Refuse an exchange that would wait for longer than one may.

    Raises:
      InvalidMessage: the exchange would wait for too long, or for less than no time.
    """
    if not 0 <= report.hold_secs <= MOST_POLL_SECS:
        raise InvalidMessage(
            f"the agent of host {report.index} lets the answer wait for {report.hold_secs:g} s, but an answer waits "
            f"for {MOST_POLL_SECS:g} s at most; ask again instead"
        )
