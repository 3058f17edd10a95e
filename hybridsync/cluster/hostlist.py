"""Expands the lists of hosts that Slurm writes, such as `node[01-03,7],login`. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from hybridsync.core.errors import ConfigError

MAX_HOSTS = 65_536
"""Names that a list may stand for: Slurm's own limit of a host list. A typing error must not fill the memory."""

_PART = r"(?:[A-Za-z0-9_.-]|\[[^\[\]]*\])+"
_LIST = re.compile(f"{_PART}(?:,{_PART})*")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(hostlist: str) -> tuple[str, ...]:
    """Expand a list of hosts, in the order that it is written in.

    A bracket holds numbers and ranges. A range keeps the zeros in front of its first number. A name may have several
    brackets; the last one counts fastest, as in `scontrol show hostnames`.

    Args:
      hostlist: names between commas.

    Raises:
      ConfigError: the list is empty or does not parse, a range counts down, a name stands in it twice, or it has more
        than `MAX_HOSTS` names.

    >>> expand("node[01-03,7],other2")
    ('node01', 'node02', 'node03', 'node7', 'other2')
    >>> expand("rack[1-2]n[9-10]"), expand("a[099-101]-ib")
    (('rack1n9', 'rack1n10', 'rack2n9', 'rack2n10'), ('a099-ib', 'a100-ib', 'a101-ib'))
    >>> expand("node[3-1]")
    Traceback (most recent call last):
    hybridsync.core.errors.ConfigError: the list of hosts 'node[3-1]' has the range '3-1' that counts down; ...
    """
    if _LIST.fullmatch(hostlist) is None:
        raise ConfigError(f"the list of hosts {hostlist!r} cannot be read; write it like 'node[01-03,7],other'")
    names: dict[str, None] = {}
    for part in re.findall(_PART, hostlist):
        for name in _names(part, hostlist):
            if name in names:
                raise ConfigError(f"the list of hosts {hostlist!r} has {name!r} twice; name each host once")
            names[name] = None
            if len(names) > MAX_HOSTS:
                raise ConfigError(f"the list of hosts {hostlist!r} has more than {MAX_HOSTS} names; shorten it")
    return tuple(names)


def _names(part: str, hostlist: str) -> Iterator[str]:
    """Return the names that one part between commas stands for."""
    pieces = [_numbers(inside, hostlist) if not text else [text] for inside, text in _PIECE.findall(part)]
    return map("".join, itertools.product(*pieces))


def _numbers(inside: str, hostlist: str) -> list[str]:
    """Return the numbers of a bracket, each with its zeros."""
    numbers: list[str] = []
    for text in inside.split(","):
        found = _RANGE.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"the list of hosts {hostlist!r} has {text!r} in a bracket; write a number or a range such as 01-16"
            )
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ConfigError(
                f"the list of hosts {hostlist!r} has the range {text!r} that counts down; write the smaller first"
            )
        if int(last) - int(first) >= MAX_HOSTS:
            raise ConfigError(f"the list of hosts {hostlist!r} has more than {MAX_HOSTS} names; shorten it")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
