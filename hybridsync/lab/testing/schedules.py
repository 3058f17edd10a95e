"""Schedules that are drawn from one seed: a plan, roles, and what happens to processes, messages and saves.

In the safety part anything may fail; after `CALM_SECS` nothing does any more, and the run has to end by itself.
`trials.py` runs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from hybridsync.lab.simulator.cluster import (
    Chaos,
    Cluster,
    Costs,
    Death,
    Device,
    Join,
    Link,
    Partition,
    Pause,
    Role,
    Scenario,
    Switch,
)
from hybridsync.policies.actions import PLANNED, Action, Choice, ExcludeWorkers, TemporaryProtocol, View, WeightedShares

PLANS = (
    *("asp", "bsp", "bsp:50%,asp", "asp:50%,bsp", "asp:50%,asp"),
    *("bsp:30%,asp:40%,bsp", "asp:30%,bsp:30%,asp", "asp:20%,bsp:5%,asp:20%,asp"),
)
GROUP_PLANS = (
    *("preduce", "adpsgd", "preduce(groups=arrival,period=3)", "preduce(groups=static)", "preduce(size=3,slowdown=2)"),
    *("bsp:30%,preduce:40%,bsp", "preduce:50%,asp", "asp:40%,adpsgd:30%,preduce(momentum=true)"),
    *("preduce:20%,adpsgd:20%,preduce(groups=arrival)", "preduce(groups=inter,node=2):50%,bsp"),
    *("preduce(buffer=false,division=false,slowdown=0)", "preduce(division=false,size=3,every=3):60%,asp"),
    "bsp:20%,preduce(buffer=false,size=auto)",
)


def plans_of(name: str) -> tuple[str, ...]:
    """Return plans in which the protocol `name` stands alone, and between others and itself."""
    return name, f"bsp:40%,{name}", f"{name}:50%,asp", f"{name}:30%,bsp:20%,{name}", f"{name}:40%,{name}"


@dataclass(frozen=True)
class Restless:
    """An online policy that leaves out anybody, detours, or deals a step out anyhow, for no reason but its seed.

    It changes its mind at once.

    Args:
      seed: random seed of its decisions.
      every: number of lock-step units for which it keeps a decision.
    """

    seed: int
    every: int = 6
    name: str = "restless"
    keeps_protocol: bool = False

    def decide(self, view: View) -> Choice:
        random = Random(f"{self.seed} {view.units_left // self.every}")
        out = tuple(worker for worker in view.live if random.random() < 0.4)
        dealt = WeightedShares(tuple((worker, 1 + worker % 3) for worker in view.live))
        whims: tuple[Action, ...] = (
            PLANNED,
            ExcludeWorkers(out) if out else PLANNED,
            TemporaryProtocol(view.detour),
            dealt,
        )
        return Choice(random.choice(whims), "it likes to")


CALM_SECS = 8.0
"""Until then anything may fail."""


@dataclass(frozen=True)
class Schedule:
    """Describes a drawn trial: a run, and what happens to it.

    Args:
      seed: random seed that the schedule was drawn from.
      plan, workers, servers, units: values of the run's configuration.
      unfit: units whose contribution is not finite.
      scenario: the incidents of the run.
      online: whether a restless policy changes members and protocols besides.
    """

    seed: int
    plan: str
    workers: int
    servers: int
    units: int
    unfit: frozenset[int]
    scenario: Scenario
    online: bool = False


ORDERED = ("asp", "bsp", "ssp(staleness=2)", "preduce", "gba(batch=2)", "asp(staleness_rule=rate)")
"""Protocols that a drawn user orders."""


def with_orders(schedule: Schedule) -> Schedule:
    """Return the schedule, in which the run's user asks for other protocols at some drawn times besides."""
    random = Random(f"{schedule.seed} orders")
    switches = tuple(
        Switch(random.uniform(0.0, CALM_SECS * random.random()), random.choice(ORDERED))
        for _ in range(random.randint(1, 5))
    )
    return replace(schedule, scenario=replace(schedule.scenario, switches=switches))


def draw(seed: int, plans: tuple[str, ...] = PLANS, *, online: bool = False) -> Schedule:
    """Return the schedule of `seed`, with one of `plans`: all else is the same, whatever they are.

    With a restless policy there are more units: it is asked only when a phase is known to go on.
    """
    random = Random(seed)
    workers, servers = random.randint(1, 4), random.choice((1, 1, 2))
    units = random.randint(20, 60) * (6 if online else 1)

    def when() -> float:
        return random.uniform(0.0, CALM_SECS * random.random())

    def one_in(count: int) -> bool:
        return random.random() < 1 / count

    def death() -> Death:
        role: Role = random.choices(("worker", "server", "chief"), (6, 2, 1))[0]
        places = {"worker": workers, "server": servers, "chief": 1}[role]
        back = None if one_in(2) else random.uniform(0.05, 4.0)
        return Death(role, random.randrange(places), when(), back)

    devices = tuple(Device(random.uniform(0.02, 0.2), random.choice((0.0, 0.3))) for _ in range(workers))
    costs = Costs(
        commit_secs=random.uniform(0.01, 0.5),
        restart_secs=random.uniform(0.3, 2.5),
        capture_secs=random.choice((0.002, 0.1)),
        notice_secs=random.choice((0.01, 0.5)),
    )
    link = Link(random.choice((1e-4, 0.02)), random.choice((1.25e9, 1e6)))
    chaos = Chaos(until_secs=CALM_SECS)
    if one_in(2):
        lost, duplicated, delayed = (random.choice((0.0, 0.05, 0.2, 0.3)) for _ in range(3))
        delay_secs = random.choice((0.01, 0.1, 0.5, 2.0))
        chaos = Chaos(lost, duplicated, delayed, delay_secs=delay_secs, until_secs=CALM_SECS)
    scenario = Scenario(
        cluster=Cluster(devices, worker_link=link, server_link=link, costs=costs),
        deaths=tuple(death() for _ in range(random.choice((0, 0, 1, 2, 4)))),
        pauses=tuple(
            Pause(random.randrange(workers), when(), random.uniform(0.1, 6.0), replaced=one_in(2))
            for _ in range(random.choice((0, 0, 1, 2)))
        ),
        joins=(Join(random.randrange(workers), random.uniform(0.1, CALM_SECS)),) if one_in(8) else (),
        partitions=tuple(
            Partition(tuple(sorted(random.sample(range(workers), random.randint(1, workers)))), when(), secs)
            for secs in ([random.uniform(0.1, 6.0)] if one_in(4) else [])
        ),
        chaos=chaos,
        save_fails=tuple(i for i in range(6) if i and one_in(10)),
        preempt_secs=when() if one_in(6) else math.inf,
        for_good=seed % 2 == 1,
    )
    unfit = frozenset(unit for unit in range(2 * units) if one_in(12)) if one_in(5) else frozenset()
    return Schedule(
        seed, random.choice(plans), workers, servers=servers, units=units, unfit=unfit, scenario=scenario, online=online
    )
