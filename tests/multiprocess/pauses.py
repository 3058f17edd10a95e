"""Everything stands still now and then, and nobody is at fault: `python -m tests.multiprocess.pauses --secs=1800`.

`configs/digits_mlp.py` trains while drawn pauses of 1 to 30 s hit the data of a worker or of all, the disk, the chief
and the workers (SIGSTOP, SIGCONT). Nothing is killed. So no role is ended, and no unit is rolled back or left out. Each
protocol has an equal share of the time. It prints a table, and ends with 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.multiprocess.job import Job
from tests.multiprocess.planted_pauses import DATA, DISK, pause
from tests.multiprocess.scenarios import newest_pid

PLANS = ("bsp", "asp", "ssp", "preduce", "diloco")
KINDS = (DATA, DISK, "chief", "worker")
WORKERS = 3
SHORTEST_SECS, LONGEST_SECS = 1.0, 30.0
MOST_REST_SECS = 3.0
"""A pause follows the one before after 1 s to this long."""
CONFIG = "configs/digits_mlp.py"


@dataclass(frozen=True)
class Outcome:
    """What became of a run whose pauses are counted by their kinds.

    Args:
      ended: roles that were ended, each with the reason.
      given_up: units that were dropped, for whatever reason.
      secs: how long all pauses lasted together.
    """

    plan: str
    pauses: Counter[str]
    secs: float
    ended: tuple[str, ...]
    rolled_back: int
    given_up: int
    units: int

    @property
    def is_good(self) -> bool:
        """Return whether nobody was taken to be at fault."""
        return not self.ended and not self.rolled_back and not self.given_up and self.units > 0

    def __str__(self) -> str:
        pauses = "  ".join(f"{self.pauses[kind]:>6}" for kind in KINDS)
        figures = f"{len(self.ended):>5}  {self.rolled_back:>11}  {self.given_up:>8}  {self.units:>9,}"
        return "\n".join((f"{self.plan:<8}  {pauses}  {self.secs:>6.0f}  {figures}", *self.ended))


FIGURES = "  secs  ended  rolled back  given up      units"
TITLE = " ".join((f"{'protocol':<8} ", *(f"{kind:>6} " for kind in KINDS), FIGURES))


def pauses_at_random(
    workdir: Path,
    plan: str,
    *more: str,
    secs: float,
    seed: int,
    kinds: Sequence[str] = KINDS,
    longest_secs: float = LONGEST_SECS,
) -> Outcome:
    """Run for `secs` or longer, until each kind of pause has been, stop the run, and return what became of it.

    Args:
      workdir: of the run.
      plan: its protocol.
      more: further flags.
      secs: how long pauses follow one another, at least.
      seed: of everything that is drawn.
      kinds: kinds of pauses.
      longest_secs: longest pause.
    """
    rng, counts, paused = random.Random(f"{seed} {plan}"), Counter[str](), 0.0
    flags = [f"--plan={plan}", f"--workers={WORKERS}", "--set=workload=100000000", "--checkpoint_secs=2", *more]
    with Job(workdir, CONFIG, *flags, planted="data_and_disk_pause") as job:
        job.until_units(1)
        until = SYSTEM_CLOCK.monotonic() + secs
        left: list[str] = []
        while SYSTEM_CLOCK.monotonic() < until or len(counts) < len(kinds):
            left = left or rng.sample(kinds, len(kinds))
            kind, length = left.pop(), rng.uniform(SHORTEST_SECS, longest_secs)
            counts[kind] += 1
            paused += length
            _pause(job, kind, length, rng)
            job.pause(rng.uniform(1.0, MOST_REST_SECS))
            assert job.process.poll() is None, job.screen() + job.logs()
        before = job.units()
        job.until_units(before + 1)
        job.send(signal.SIGTERM)
        assert job.wait() == 75, job.output + job.logs()
        assert job.tracebacks() == []
        units = job.summary()["units"]
        ended = tuple(f"  {e['role']} {e['id']} at {e['t']:.1f} s: {e['reason']}" for e in job.events("role_lost"))
        given_up = units["dropped"] + len(job.events("unit_quarantined"))
        return Outcome(plan, counts, paused, ended, units["rolled_back"], given_up, units["applied"])


def _pause(job: Job, kind: str, secs: float, rng: random.Random) -> None:
    """Let something stand still for so long, and return when it goes on."""
    if kind in (DATA, DISK):
        whose = rng.choice([None, *range(WORKERS)]) if kind == DATA else None
        pause(job.workdir, kind, secs, whose)
        job.pause(secs)
        return
    pids = [newest_pid(job, "chief", 0)] if kind == "chief" else rng.sample([*job.live_workers().values()], 1)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        job.pause(secs)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=1800.0, help="how long, all protocols together")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    parser.add_argument(
        "--flag", action="append", default=[], help="a further flag of each run, for example --link=tcp"
    )
    parser.add_argument("--plans", default=",".join(PLANS), help="protocols, separated by commas")
    given = parser.parse_args()
    plans, outcomes = given.plans.split(","), list[Outcome]()
    print(TITLE)
    with tempfile.TemporaryDirectory() as folder:
        for plan in plans:
            secs = given.secs / len(plans)
            outcome = pauses_at_random(Path(folder) / plan, plan, *given.flag, secs=secs, seed=given.seed)
            outcomes.append(outcome)
            print(outcome, flush=True)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
