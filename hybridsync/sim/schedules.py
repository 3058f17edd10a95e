"""Trials of the protocol code by seeded schedules: first faults, then none; what must hold is checked all the way.

A schedule is drawn from one seed: a plan, roles, and what happens to processes, messages and saves. In the safety part
everything may fail; after `CALM_SECS` nothing does any more, and the run has to end by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hybridsync.applylog import Entry
from hybridsync.config import CheckpointConfig, TelemetryConfig
from hybridsync.errors import CheckpointError, HybridSyncError
from hybridsync.messages import LeaseReply, Push, PushReply
from hybridsync.plan import Epoch, Phase
from hybridsync.run import Run
from hybridsync.sim.arithmetic import Counting, Counts, Sizes
from hybridsync.sim.cluster import Chaos, Cluster, Costs, Death, Device, Partition, Pause, Scenario
from hybridsync.sim.loop import Loop, VirtualClock
from hybridsync.sim.process import Process
from hybridsync.sim.server import Server
from hybridsync.sim.world import Watch, World
from hybridsync.telemetry.recorder import Recorder

PLANS = ("asp", "bsp", "bsp:50%,asp", "asp:50%,bsp", "bsp:30%,asp:40%,bsp", "asp:30%,bsp:30%,asp")
CALM_SECS = 8.0
"""Until then anything may fail."""
END_SECS = 900.0
"""A run that has not ended by then never will: the longest wait of the chief is 600 s."""
SIZES = Sizes(10_000, 10_000, 20_000)


class Violation(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Schedule:
    """What is tried.

    Args:
      seed: it was drawn from.
      plan, workers, servers, units: of the run.
      scenario: what happens.
    """

    seed: int
    plan: str
    workers: int
    servers: int
    units: int
    scenario: Scenario


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule.

    Args:
      units: applied.
      epochs: entered.
      rolled_back: units that were applied again.
      seconds: virtual.
      calls: events carried out.
    """

    units: int
    epochs: int
    rolled_back: int
    seconds: float
    calls: int


def draw(seed: int, plans: tuple[str, ...] = PLANS) -> Schedule:
    """Return the schedule of `seed`; the same for ever."""
    random = Random(seed)
    workers, servers = random.randint(1, 4), random.choice((1, 1, 2))
    units = random.randint(20, 60)
    devices = tuple(Device(random.uniform(0.02, 0.2), random.choice((0.0, 0.3))) for _ in range(workers))
    costs = Costs(commit_secs=random.uniform(0.01, 0.5), restart_secs=random.uniform(0.3, 2.5))

    def when() -> float:
        return random.uniform(0.0, CALM_SECS * random.random())

    deaths = [
        Death("server", random.randrange(servers), when())
        if random.random() < 0.25
        else Death("worker", random.randrange(workers), when())
        for _ in range(random.choice((0, 0, 1, 2, 4)))
    ]
    pauses = [
        Pause(random.randrange(workers), when(), random.uniform(0.1, 6.0), replaced=random.random() < 0.5)
        for _ in range(random.choice((0, 0, 1, 2)))
    ]
    partitions = [
        Partition((random.randrange(workers),), when(), random.uniform(0.1, 6.0))
        for _ in range(random.choice((0, 0, 0, 1)))
    ]
    chaos = Chaos(until_secs=CALM_SECS)
    if random.random() < 0.5:
        lost, duplicated, delayed = (random.choice((0.0, 0.05, 0.2, 0.3)) for _ in range(3))
        chaos = Chaos(lost, duplicated, delayed, delay_secs=random.choice((0.01, 0.1, 0.5)), until_secs=CALM_SECS)
    scenario = Scenario(
        cluster=Cluster(devices=devices, costs=costs),
        deaths=tuple(deaths),
        pauses=tuple(pauses),
        partitions=tuple(partitions),
        chaos=chaos,
        save_fails=tuple(i for i in range(4) if i and random.random() < 0.1),
    )
    return Schedule(seed, random.choice(plans), workers, servers, units, scenario)


class Checks(Watch):
    """What must hold at every moment.

    Attributes:
      epochs: entered by a server or handed out with units, in order.
    """

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.world: World | None = None

    def served(self, server: Process, phase: Phase) -> None:
        self._seen(phase.epoch, f"{server.address} serves")

    def leased(self, worker: Process, phase: Phase, reply: LeaseReply) -> None:
        self._seen(phase.epoch, f"{worker.address} was given units {reply.ranges} in", active=bool(reply.ranges))

    def pushed(self, push: Push, reply: PushReply) -> None:
        """An acknowledged unit is in the state, or dropped for good, unless a later epoch went back behind it."""
        assert self.world is not None
        server = self.world.hosts.newest["server", 0]
        if not isinstance(server, Server) or server.sequencer.epoch != push.epoch:
            return
        sequencer = server.sequencer
        for unit in push.units:
            if unit not in sequencer.applied and unit not in sequencer.dropped:
                raise Violation(f"unit {unit} of worker {push.worker} was acknowledged, but nobody applied it")

    def _seen(self, epoch: Epoch, who: str, active: bool = True) -> None:
        newest = max(self.epochs, default=Epoch(0, 0))
        if any(known.number == epoch.number and known != epoch for known in self.epochs):
            raise Violation(f"{who} epoch {epoch.beside(newest)[0]}, but that number was handed out before")
        if epoch not in self.epochs:
            self.epochs.append(epoch)


def try_schedule(schedule: Schedule, run_of: Callable[[Schedule], Run]) -> Outcome:
    """Run a schedule and check it.

    Args:
      schedule: what to try.
      run_of: the schedule -> the run, of any task: only its configuration counts.

    Raises:
      Violation: something that must hold did not.
    """
    run, checks, loop = run_of(schedule), Checks(), Loop()
    world = World(
        run,
        schedule.scenario,
        Counting(SIZES),
        Recorder.null(VirtualClock(loop)),
        loop,
        seed=schedule.seed,
        logs_updates=True,
        watch=checks,
    )
    checks.world = world
    loop.at(END_SECS, _never_ends, world)
    try:
        summary = world.run()
    except CheckpointError as error:  # of the last save, after which nothing goes on that could be saved later
        if world.chief.num_applied != schedule.units or not schedule.scenario.save_fails:
            raise Violation(f"the run failed: {error}") from error
        units = world.chief.counts()
        return Outcome(units.applied, len(checks.epochs), units.rolled_back, loop.now, loop.num_calls)
    except HybridSyncError as error:
        raise Violation(f"the run failed: {type(error).__name__}: {error}") from error
    if summary.exit != "completed":
        raise Violation(f"the run ended as {summary.exit}")
    _check_end(world, schedule)
    units = summary.units
    return Outcome(units.applied, len(checks.epochs), units.rolled_back, loop.now, loop.num_calls)


def _never_ends(world: World) -> None:
    applied = world.chief.num_applied
    raise Violation(f"the run has not ended after {END_SECS:g} s: {applied} of {world.run_.config.workload} units")


def _check_end(world: World, schedule: Schedule) -> None:
    counts = world.chief.counts()
    if counts.issued != counts.applied + counts.dropped + counts.outstanding:
        raise Violation(f"the accounting does not add up: {counts}")
    if counts.applied != schedule.units:
        raise Violation(f"{counts.applied} units were applied, the workload is {schedule.units}")
    state: Counts = world.final
    applied = world.chief.ledger.applied()
    wrong = {unit: count for unit, count in state.counts.items() if count != 1 or unit not in applied}
    missing = [unit for unit in applied if unit not in state.counts]
    if wrong or missing:
        raise Violation(f"applied other than once: {wrong}, missing in the parameters: {missing}")
    replayed = replay(world.log)
    if replayed != state:
        raise Violation(f"the apply log of {len(world.log)} updates does not lead to the final state")


def replay(log: list[Entry]) -> Counts:
    """Return the state that the updates of `log` lead to, each on the version that it names."""
    arithmetic = Counting(SIZES)
    state = arithmetic.start()
    versions = {0: state}
    for entry in log:
        base = versions.get(entry.base)
        if base is None or entry.sequence != max(versions) + 1:
            raise Violation(f"update {entry.sequence} names version {entry.base}, the log goes to {max(versions)}")
        gradients = [arithmetic.gradient(arithmetic.parameters(base), unit) for unit in entry.units]
        state = arithmetic.update(state, gradients, units=len(entry.units), factor=entry.rate, blend=entry.blend)
        versions[entry.sequence] = state
    return state


def run_of(base: Run) -> Callable[[Schedule], Run]:
    """Return what makes the run of a schedule out of `base`, whose task is not used."""

    def make(schedule: Schedule) -> Run:
        config = dataclasses.replace(
            base.config,
            workload=schedule.units,
            workers=schedule.workers,
            servers=schedule.servers,
            plan=schedule.plan,
            seed=0,
            checkpoint=CheckpointConfig(secs=1.0),
            telemetry=TelemetryConfig(log_secs=1e9, timeline=False),
            drain_secs=2.0,
        )
        return dataclasses.replace(base, config=config)

    return make
