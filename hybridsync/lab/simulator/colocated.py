"""Machines that are worker and parameter server at once, of which some are late; plain values. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridsync.core.errors import ConfigError


def check_numbers(
    value: object,
    *,
    above: tuple[str, ...] = (),
    not_below: tuple[str, ...] = (),
    endless: tuple[str, ...] = (),
) -> None:
    """Check a value's numbers.

    Args:
      value: a dataclass.
      above: names of the fields that must be above 0.
      not_below: names of the fields that must be 0 or more.
      endless: names of the fields that may be infinite.

    Raises:
      ConfigError: a field breaks its rule.
    """
    for name in (*above, *not_below, *endless):
        number = getattr(value, name)
        holds = (number > 0 if name in above else number >= 0) and (number < math.inf or name in endless)
        if not holds:
            bound = "above 0" if name in above else "0 or more"
            raise ConfigError(f"{type(value).__name__}.{name} must be {bound}, got {number}; correct it")


@dataclass(frozen=True)
class Colocated:
    """Models a cluster whose every worker machine also holds a part of the parameters; some machines send late.

    An exchange of worker i with the machines j takes so much longer, where t_ij = latency_i + latency_j:

        alone (asynchronous)      round_trips * sum_j t_ij + recovery * (max_j t_ij)^2
        all at once (lock-step)   max(0, round_trips * sum_j t_ij - step_secs) + incast * recovery * (max_j t_ij)^2

    Layers ask their machines in turn, so waits add up; in lock-step they overlap with the others' transfers. A flow
    that has lost a packet grows its window by a packet a round trip, which takes the square of the round trip to make
    up. A lock-step step waits for the worker whose exchange takes longest. Where workers are left out, their machines
    still hold their parts of the parameters, but fewer contributions pass each port: a step of m workers has m/n of
    `Costs.step_secs`.

    Source: reconstruction; Chiu and Jain, Analysis of the increase and decrease algorithms, 1989, for the recovery.

    Args:
      latency_secs: added latency of what machine 0, 1, ... sends, in seconds; one for each worker.
      round_trips: number of round trips with each machine in one exchange, one after another.
      recovery: seconds a squared second of round trip, for an exchange that has the ports to itself.
      incast: factor on the recovery where all exchange at once.
      stretches: (from, to) in seconds of the run, between which they come late.

    Raises:
      ConfigError: a value is out of range.
    """

    latency_secs: tuple[float, ...]
    round_trips: float = 1.0
    recovery: float = 0.0
    incast: float = 1.0
    stretches: tuple[tuple[float, float], ...] = ((0.0, math.inf),)

    def __post_init__(self) -> None:
        for begin, end in self.stretches:
            if not 0 <= begin < end:
                raise ConfigError(f"Colocated.stretches has one from {begin:g} to {end:g} s; give 0 <= from < to")
        check_numbers(self, not_below=("round_trips", "recovery", "incast"))
        if any(not 0 <= secs < math.inf for secs in self.latency_secs):
            raise ConfigError(f"Colocated.latency_secs must hold seconds of 0 or more, got {min(self.latency_secs)}")

    def is_late_at(self, now: float) -> bool:
        """Return whether what the machines send comes late at a second of the run."""
        return any(begin <= now < end for begin, end in self.stretches)

    def exchange_secs(self, worker: int) -> float:
        """Return how much longer an exchange of `worker` takes that has the ports to itself."""
        trips = self._trips(worker)
        return self.round_trips * math.fsum(trips) + self.recovery * max(trips, default=0.0) ** 2

    def transfer_secs(self, step_secs: float, num_members: int) -> float:
        """Return what the transfers of a lock-step step of so many members take, where all take `step_secs`."""
        return step_secs * num_members / len(self.latency_secs)

    def step_secs(self, worker: int, beside_secs: float) -> float:
        """Return how much longer the exchange of `worker` takes in a lock-step step, which has `beside_secs` anyway."""
        trips = self._trips(worker)
        waits = self.round_trips * math.fsum(trips)
        return max(0.0, waits - beside_secs) + self.incast * self.recovery * max(trips, default=0.0) ** 2

    def _trips(self, worker: int) -> list[float]:
        late = self.latency_secs
        return [late[worker] + late[other] for other in range(len(late)) if other != worker]
