"""Workers that are made slow on purpose: who, how, and for which part of the workload. Pure.

    >>> (one,) = Straggler.parse("worker=3,delay_ms=30,from=10%,to=30%")
    >>> one.worker, one.delay_secs, one.start, one.stop
    (3, 0.03, 0.1, 0.3)
    >>> slow = Stragglers("worker=1,factor=4,rpc_ms=10,every=10%,for=5%", workload=100)
    >>> slow.of(1, unit=12).compute_secs(0.05), slow.of(1, unit=12).transfer_secs(1_000_000)
    (0.2, 0.01)
    >>> slow.of(1, unit=17) is slow.of(0, unit=12) is AS_FAST
    True

One formula gives the cost of a straggler, for the workers of every runtime, for the links that a server emulates and
for the simulator: a unit that would take s seconds takes factor * s + delay, and each transfer of it takes rpc_ms more
and no less than its bytes take on a link of `bytes_per_sec`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hybridsync.config.keywords import did_you_mean
from hybridsync.core.errors import ConfigError

EXAMPLE = "worker=3,delay_ms=30,from=10%,to=30%"

NAMED = {
    "syncswitch-1": "worker=0,rpc_ms=10,from=2%,to=4%",
    "syncswitch-2": (
        "worker=0,rpc_ms=30,every=6%,for=2%,from=2%,to=22%;worker=1,rpc_ms=30,every=6%,for=2%,from=2%,to=22%"
    ),
}
"""The two scenarios of Sync-Switch: how many workers, how often, and by how much every message of theirs is later.

Source: Sync-Switch (Li et al., ICDCS 2021), whose published runs name 1 worker, once, 10 ms, and 2 workers, 4 times, 30
ms. When it happens and for how long is our reconstruction. Online policies act while the run is in lock-step, which is
6 to 25 % of the workload in the published answers. So a stretch takes 2 % of the workload, a third of the shortest such
part, and begins 2 % into the run, when a policy has seen all workers healthy. Four stretches begin 6 % apart, at 2, 8,
14 and 20 %: one of them lies within a lock-step part of 6.25 %, two within 12.5 %, all four within 25 %. Both workers
of the second scenario are slow at the same time. They are the first workers, so that any run of two has them.
"""

ROUNDING = 1e-12
"""Shares are no binary fractions: without it the first unit of a stretch may fall behind the last one of all."""

_MILLISECONDS = {"delay_ms": "delay_secs", "rpc_ms": "rpc_secs"}
_SHARES = {"from": "start", "to": "stop", "every": "every", "for": "lasts"}
_HOW = ("delay_ms", "factor", "rpc_ms", "bytes_per_sec")
_KEYS = ("worker", *_HOW, *_SHARES)


class Slowness(NamedTuple):
    """Says how much slower a worker is at one moment.

    Args:
        factor: multiplies the time that a unit takes on the worker's device.
        delay_secs: added to the time of each unit, in seconds.
        rpc_secs: added to the time of each transfer, in seconds.
        bytes_per_sec: bandwidth of its link.
    """

    factor: float = 1.0
    delay_secs: float = 0.0
    rpc_secs: float = 0.0
    bytes_per_sec: float = math.inf

    @property
    def is_late(self) -> bool:
        """Return whether its transfers take longer, too."""
        return self.rpc_secs > 0 or self.bytes_per_sec < math.inf

    def compute_secs(self, secs: float) -> float:
        """Return what a unit takes that would take `secs`."""
        return secs * self.factor + self.delay_secs

    def transfer_secs(self, num_bytes: int) -> float:
        """Return what a transfer of `num_bytes` takes at least, on a link that is otherwise as fast as can be."""
        return self.rpc_secs + num_bytes / self.bytes_per_sec


AS_FAST = Slowness()
"""As fast as the others."""


def together(parts: Iterable[Slowness]) -> Slowness:
    """Return what several reasons to be slow amount to: factors multiply, delays add up, the slowest link counts."""
    found = [*parts]
    if len(found) < 2:
        return found[0] if found else AS_FAST
    return Slowness(
        math.prod(part.factor for part in found),
        math.fsum(part.delay_secs for part in found),
        math.fsum(part.rpc_secs for part in found),
        min(part.bytes_per_sec for part in found),
    )


@dataclass(frozen=True)
class Straggler:
    """A worker that is slow for a part of the workload: for all of it, for one stretch, or again and again.

    Args:
        worker: id of the worker.
        delay_secs: more for each unit's computation.
        start, stop: shares of the workload between which it is slow.
        factor: multiplies the time that its device takes for a unit.
        rpc_secs: more for each push, each pull, and each collective that it takes part in.
        bytes_per_sec: bandwidth of its link, each direction.
        every, lasts: shares of the workload: from `start` on, the worker is slow for the first `lasts` of each `every`.

    Raises:
        ConfigError: a value is out of range.
    """

    worker: int
    delay_secs: float = 0.0
    start: float = 0.0
    stop: float = 1.0
    factor: float = 1.0
    rpc_secs: float = 0.0
    bytes_per_sec: float = math.inf
    every: float = 1.0
    lasts: float = 1.0

    def __post_init__(self) -> None:
        for holds, rule, value in (
            (self.worker >= 0, "worker=0 or more", self.worker),
            (0 <= self.delay_secs < math.inf, "delay_ms=0 or more", self.delay_secs * 1000),
            (0 <= self.rpc_secs < math.inf, "rpc_ms=0 or more", self.rpc_secs * 1000),
            (1 <= self.factor < math.inf, "factor=1 or more", self.factor),
            (self.bytes_per_sec > 0, "bytes_per_sec above 0", self.bytes_per_sec),
            (0 <= self.start < self.stop <= 1, "0% <= from < to <= 100%", _percents(self.start, self.stop)),
            (0 < self.lasts <= self.every <= 1, "0% < for <= every <= 100%", _percents(self.lasts, self.every)),
        ):
            if not holds:
                got = f"{value:g}" if isinstance(value, float) else value
                raise ConfigError(f"emulation.stragglers must have {rule}, got {got}; correct it")

    @property
    def slowness(self) -> Slowness:
        """Slowness of the worker, where it is slow."""
        return Slowness(self.factor, self.delay_secs, self.rpc_secs, self.bytes_per_sec)

    def is_slow_at(self, share: float) -> bool:
        """Return whether it is slow at a share of the workload."""
        return self.start <= share < self.stop and (share - self.start + ROUNDING) % self.every < self.lasts

    @classmethod
    def parse(cls, text: str) -> tuple[Straggler, ...]:
        """Read stragglers, and names of scenarios, separated by semicolons; an empty text holds none.

        Raises:
            ConfigError: an entry does not follow the grammar or a value is out of range.
        """
        found: list[Straggler] = []
        for entry in filter(None, map(str.strip, text.split(";"))):
            if entry in NAMED:
                found += cls.parse(NAMED[entry])
            else:
                found.append(cls._parse_one(entry, text))
        return tuple(found)

    @classmethod
    def _parse_one(cls, entry: str, text: str) -> Straggler:
        try:
            worker, how = _read(entry)
            return cls(worker, **how)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"emulation.stragglers: cannot read {entry!r} in {text!r} ({error}); write {EXAMPLE}"
            ) from error


class Stragglers:
    """Holds all injected stragglers of a run, and looks them up by worker and unit.

    Args:
        text: as `Straggler.parse` reads it.
        workload: units of the run.

    Raises:
        ConfigError: the text cannot be read.
    """

    def __init__(self, text: str, workload: int) -> None:
        self._of: dict[int, list[Straggler]] = {}
        for straggler in Straggler.parse(text):
            self._of.setdefault(straggler.worker, []).append(straggler)
        self._workload = workload

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, worker: int, unit: int) -> Slowness:
        """Return how slow `worker` is with `unit`, whose place in the workload says when that is."""
        known = self._of.get(worker)
        if known is None:
            return AS_FAST
        share = min(unit, self._workload - 1) / self._workload  # units beyond it take the place of dropped ones
        return together(straggler.slowness for straggler in known if straggler.is_slow_at(share))


NO_STRAGGLERS = Stragglers("", 1)
"""Nobody is slow."""


def _read(entry: str) -> tuple[int, dict[str, float]]:
    """Return the worker of an entry, and the other fields that it gives; raises ValueError where it cannot be read."""
    if "=" not in entry:
        raise ValueError(f"no scenario has that name: {did_you_mean(entry, NAMED)}")
    given: dict[str, str] = {}
    for pair in entry.split(","):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key in given:
            raise ValueError(f"{key!r} is given twice")
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(_KEYS)}")
        given[key] = value
    if "worker" not in given:
        raise ValueError("'worker' is missing")
    if not any(how in given for how in _HOW):
        raise ValueError(f"nothing makes it slow: one of {', '.join(_HOW)} is needed")
    if ("every" in given) != ("for" in given):
        raise ValueError("'every' and 'for' go together")
    worker, fields = int(given.pop("worker")), {}
    for key, value in given.items():
        if key in _SHARES:
            fields[_SHARES[key]] = _read_percent(value)
        elif key in _MILLISECONDS:
            fields[_MILLISECONDS[key]] = float(value) / 1000
        else:
            fields[key] = float(value)
    return worker, fields


def _read_percent(text: str) -> float:
    if not text.endswith("%"):
        raise ValueError(f"{text!r} lacks its %")
    return float(text[:-1]) / 100


def _percents(*shares: float) -> str:
    return " and ".join(f"{100 * share:g}%" for share in shares)
