"""Published straggler slowdowns, reproduced: `python -m benchmarks.syncswitch_stragglers`.

The published figures: 8 machines, each a worker and a parameter server; 10 or 30 ms of latency injected at the network
port of one or two of them; how much more time BSP and ASP took than without. Every parameter set below is one cluster
model for all eight figures, with parameters that keep its worst misfit small. Without latency a lock-step step takes
1.317 s and a worker's asynchronous unit 0.1998 s, as in the published runs without stragglers.

- *the slow workers alone*: the latency holds up its own worker, so many times a unit. Two in lock-step are then no
  worse than one, which they were.
- *machines, round trips*: a machine's latency is in everybody's exchange with its part of the parameters, and twice in
  the exchange of two such machines. It grows in proportion to the latency; the published figures grow faster.
- *machines, recovery*: the time to make up for lost packets, which grows with the square of the round trip, the same in
  lock-step and alone. Lock-step wants far more of it than asynchronous exchanges do.
- *machines, recovery, incast*: more of it where all exchange at once, and the round trips. This one reproduces all
  eight figures within 5 points.

Three parameters are fitted to eight figures: that the last set agrees with them is no proof that this is what happened
on those machines. What any other explanation has to have, too, is the steady square in lock-step, 1 : 4 : 9 : 36 for
round trips of 10, 20, 30 and 60 ms.

Source: slowdowns of Li et al., Sync-Switch, ICDCS 2021 (raw results in github.com/cake-lab/Sync-Switch).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.syncswitch_times import fitted
from benchmarks.virtual import seconds_of
from hybridsync.config import RunConfig
from hybridsync.lab.simulator.cluster import Cluster, Colocated, Scenario, Slow

WORKERS = 8
STEP_SECS, UNIT_SECS = 10_532.1 * WORKERS / 64_000, 1_598.1 * WORKERS / 64_000
UNITS = 1_000 * WORKERS
TOLERANCE = 0.05


@dataclass(frozen=True)
class Case:
    """A published slowdown: `slowdown` more time under `plan` with `secs` of latency at `machines` machines."""

    plan: str
    machines: int
    secs: float
    slowdown: float


CASES = (
    Case("bsp", 1, 0.010, 0.06),
    Case("bsp", 2, 0.010, 0.19),
    Case("bsp", 1, 0.030, 0.42),
    Case("bsp", 2, 0.030, 1.75),
    Case("asp", 1, 0.010, 0.05),
    Case("asp", 2, 0.010, 0.10),
    Case("asp", 1, 0.030, 0.20),
    Case("asp", 2, 0.030, 0.47),
)


def workers_alone(times: float) -> Callable[[Cluster, Case], Scenario]:
    """Return the model in which latency holds up its own worker `times` times a unit."""

    def scenario(cluster: Cluster, case: Case) -> Scenario:
        slow = tuple(Slow(worker, delay_secs=times * case.secs) for worker in range(case.machines))
        return Scenario(cluster=cluster, slow=slow)

    return scenario


def colocated(round_trips: float, recovery: float, incast: float) -> Callable[[Cluster, Case], Scenario]:
    """Return the model of machines that are worker and server (see `hybridsync.lab.simulator.cluster.Colocated`)."""

    def scenario(cluster: Cluster, case: Case) -> Scenario:
        late = (case.secs,) * case.machines + (0.0,) * (WORKERS - case.machines)
        return Scenario(cluster=dataclasses.replace(cluster, colocated=Colocated(late, round_trips, recovery, incast)))

    return scenario


SETS = {
    "the slow workers alone: 47.5 waits a unit": workers_alone(47.5),
    "machines: 5.32 round trips": colocated(5.32, 0.0, 1.0),
    "machines: recovery 250 a second": colocated(0.0, 250.0, 1.0),
    "machines: 0.72 round trips, recovery 14 a second, incast 45.5": colocated(0.72, 14.0, 45.5),
}


def main() -> int:
    """Simulate every case under every set, and print; the last line is JSON."""
    cluster = fitted(STEP_SECS, UNIT_SECS, WORKERS)
    usual = {plan: _seconds(plan, Scenario(cluster=cluster)) for plan in ("bsp", "asp")}
    found = []
    for name, scenario_of in SETS.items():
        print(name)
        predicted = [_seconds(case.plan, scenario_of(cluster, case)) / usual[case.plan] - 1 for case in CASES]
        misfits = [ours - case.slowdown for ours, case in zip(predicted, CASES, strict=True)]
        for case, ours, misfit in zip(CASES, predicted, misfits, strict=True):
            where = f"{case.plan}, {1e3 * case.secs:g} ms at {case.machines}"
            figures = f"published {case.slowdown:>+6.0%}  predicted {ours:>+7.1%}  {100 * misfit:>+6.1f} points"
            print(f"  {where:<18} {figures}")
        worst = max(map(abs, misfits))
        print(f"  worst misfit {100 * worst:.1f} points: {'within' if worst <= TOLERANCE else 'NOT within'} 5")
        found.append({"set": name, "predicted": [round(ours, 4) for ours in predicted], "worst": round(worst, 4)})
    print(json.dumps({"published": [dataclasses.asdict(case) for case in CASES], "sets": found}))
    return 0


def _seconds(plan: str, scenario: Scenario) -> float:
    return seconds_of(RunConfig(workload=UNITS, unit_size=128, workers=WORKERS, plan=plan), scenario)


if __name__ == "__main__":
    sys.exit(main())
