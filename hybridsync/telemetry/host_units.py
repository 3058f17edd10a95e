"""Reckons which host applied how many units of a run, from what the chief has counted by host and worker. Pure.

>>> found = shares_of(10, {("a", 0): 6, ("b", 1): 4})
>>> found, units_by_host(found)
({('a', 0): 6, ('b', 1): 4}, {'a': 6, 'b': 4})
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
HostWorker = tuple[str, int]
"""A host's name, and a worker that has run there."""


def shares_of(total: int, counted: Mapping[Key, int]) -> dict[Key, int]:
    """Return `total` units, divided as `counted` says: what is counted where that adds up, else its proportion.

    The counts and the total differ by units whose lease had ended when the chief heard of them, and by those that a
    rollback took back. Largest remainders get what is over, so that the shares sum to `total`.

    Args:
      total: units applied in the run.
      counted: key -> units that the chief saw applied under it.

    Returns:
      key -> units; empty where nothing is counted.

    >>> shares_of(10, {"a": 8, "b": 4, "c": 0})
    {'a': 7, 'b': 3, 'c': 0}
    >>> shares_of(10, {})
    {}
    """
    whole = sum(counted.values())
    if not whole:
        return {}
    found = {key: total * count // whole for key, count in counted.items()}
    left = total - sum(found.values())
    for key in sorted(counted, key=lambda key: -(total * counted[key] % whole))[:left]:
        found[key] += 1
    return found


def units_by_host(units: Mapping[HostWorker, int]) -> dict[str, int]:
    """Return host -> units of all workers there, hosts in order of their names."""
    found: dict[str, int] = {}
    for (host, _), count in sorted(units.items()):
        found[host] = found.get(host, 0) + count
    return found


def added(counted: Mapping[HostWorker, int], more: Mapping[str, Mapping[Any, int]]) -> dict[HostWorker, int]:
    """Return counts with those of one line of metrics added.

    Args:
      counted: counts of the lines before it.
      more: host -> worker, which JSON has as a text -> units.
    """
    found = dict(counted)
    for host, workers in more.items():
        for worker, count in workers.items():
            found[host, int(worker)] = found.get((host, int(worker)), 0) + count
    return found


def nested(counted: Mapping[HostWorker, int]) -> dict[str, dict[int, int]]:
    """Return counts as a line of metrics holds them: host -> worker -> units.

    >>> nested({("a", 0): 2, ("a", 1): 3})
    {'a': {0: 2, 1: 3}}
    """
    found: dict[str, dict[int, int]] = {}
    for (host, worker), count in counted.items():
        found.setdefault(host, {})[worker] = count
    return found


def has_several(hosts: Iterable[str]) -> bool:
    """Return whether more than one host is named."""
    return len({*hosts} - {""}) > 1
