"""Tries drawn schedules: `python -m tests.lab.testing.drawn_schedules --seed=0 --seeds=1000`.

A seed that breaks something is shown with what happened, virtual second by virtual second, and with the command that
shows it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from configs import tally
from hybridsync.core.errors import HybridSyncError
from hybridsync.lab.simulator.event_loop import VirtualClock
from hybridsync.lab.testing.schedules import GROUP_PLANS, PLANS, Schedule, draw, plans_of, with_orders
from hybridsync.lab.testing.trials import Outcome, run_of, try_schedule
from hybridsync.telemetry.events import NullEventLog
from hybridsync.telemetry.progress import NullProgress
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run

COMMAND = "python -m tests.lab.testing.drawn_schedules --seed={}"
BREAKS = (
    *(AssertionError, HybridSyncError, ArithmeticError, AttributeError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)
"""What a bug ends a trial with: a finding, and the other seeds are to be tried."""
TELL_EVERY = 1000
"""Seeds between two lines that say how far it is."""


@functools.cache
def runs() -> Callable[[Schedule], Run]:
    """Return what makes the run of a schedule."""
    config = tally.config()
    return run_of(Run(config, tally.task(config), tally.optimizer(config), None))


def schedule_of(seed: int, plans: tuple[str, ...], online: bool, orders: bool) -> Schedule:
    schedule = draw(seed, plans, online=online)
    return with_orders(schedule) if orders else schedule


def try_seed(seed: int, plans: tuple[str, ...] = PLANS, online: bool = False, orders: bool = False) -> Outcome:
    """Run the schedule of a seed and check it."""
    return try_schedule(schedule_of(seed, plans, online, orders), runs())


class EventPrinter:
    """The events of a trial, with their virtual time, shown as they happen."""

    def recorder(self, clock: VirtualClock) -> Recorder:
        story = self

        class Events(NullEventLog):
            def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
                story.say(clock, f"{kind} " + " ".join(f"{key}={value}" for key, value in fields.items()))
                return super().write(kind, phase=phase, wall=wall, **fields)

        class Notes(NullProgress):
            def note(self, text: str) -> None:
                story.say(clock, text)

        return dataclasses.replace(Recorder.null(clock, Notes()), events=Events(clock))

    def say(self, clock: VirtualClock, text: str) -> None:
        print(f"{clock.monotonic():9.3f}  {text}")


def tell(seed: int, plans: tuple[str, ...], command: str, online: bool = False, orders: bool = False) -> bool:
    """Show the story of a seed; returns whether everything held."""
    schedule = schedule_of(seed, plans, online, orders)
    print(schedule)
    try:
        print(try_schedule(schedule, runs(), EventPrinter().recorder))
    except AssertionError as violation:
        print(f"seed {seed}: {type(violation).__name__}: {violation}\nagain: {command.format(seed)}")
        return False
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many; the story of a single one is shown")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--protocol", default="", help="as in a plan: draws among plans of it, with the seeds' faults")
    which.add_argument("--groups", action="store_true", help="draw plans with group protocols")
    parser.add_argument("--online", action="store_true", help="with a policy that changes members and protocols")
    parser.add_argument("--orders", action="store_true", help="with a user who asks for other protocols")
    options = parser.parse_args(arguments)
    plans, command = PLANS, COMMAND
    if options.groups:
        plans, command = GROUP_PLANS, COMMAND + " --groups"
    elif options.protocol:
        plans, command = plans_of(options.protocol), f"{COMMAND} --protocol={options.protocol}"
    if options.online:
        command += " --online"
    if options.orders:
        command += " --orders"
    if options.seeds == 1:
        return 0 if tell(options.seed, plans, command, options.online, options.orders) else 1
    seeds = range(options.seed, options.seed + options.seeds)
    return try_all(seeds, plans, command, options.online, options.orders)


def try_all(seeds: range, plans: tuple[str, ...], command: str, online: bool = False, orders: bool = False) -> int:
    """Try every seed, whatever becomes of one; what failed is told at once, and again at the end."""
    failed, sums = list[str](), Counter[str]()
    for tried, seed in enumerate(seeds, start=1):
        try:
            outcome = try_seed(seed, plans, online, orders)
        except BREAKS as error:
            failed.append(f"seed {seed}: {type(error).__name__}: {error}\nagain: {command.format(seed)}")
            print(failed[-1], flush=True)
        else:
            sums[outcome.exit] += 1
            sums.update({key: value for key, value in dataclasses.asdict(outcome).items() if key != "exit"})
        if tried % TELL_EVERY == 0:
            print(f"{tried} of {len(seeds)} seeds tried, {len(failed)} failed", flush=True)
    print(*failed, f"{len(seeds)} seeds, {len(failed)} failed; {dict(sums)}", sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
