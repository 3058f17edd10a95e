"""Reads the file that names the hosts of a run by ssh. Pure."""

from __future__ import annotations

from hybridsync.core.errors import ConfigError


def addresses_of(text: str, name: str) -> tuple[str, ...]:
    r"""Return the addresses of the hosts, the head's first, as the script for ssh reads them.

    A line has an address, and the destination for ssh if that differs. Empty lines and those that begin with # are left
    out.

    Args:
      text: content of the file.
      name: name of the file, for errors.

    Raises:
      ConfigError: the text names no host, or one host twice.

    >>> addresses_of("# the head\n10.0.0.1\n\n10.0.0.2 me@second\n", "hosts.txt")
    ('10.0.0.1', '10.0.0.2')
    """
    lines = [line.split() for line in text.splitlines()]
    found = tuple(words[0] for words in lines if words and not words[0].startswith("#"))
    if not found:
        raise ConfigError(f"--hosts={name} names no host; write an address a line, the head's first")
    for index, address in enumerate(found):
        if address in found[:index]:
            raise ConfigError(f"--hosts={name} names {address} twice; a host has one agent, so write it once")
    return found
