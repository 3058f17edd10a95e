"""Judges from what each member of a phase is at who hangs and keeps others waiting; one rule for all modes. Pure.

A member hangs that has been at one thing for longer than that may take, though its process lives and reports. Reading
data and compiling have limits of their own. A unit's limit follows the worker's recent units, so nobody is given up for
being slow. Whoever waits is not at fault. Nobody is given up whom nobody waits for.

>>> from hybridsync.interfaces.phase import Phase
>>> from hybridsync.core.plan import PhaseId
>>> phase = Phase(PhaseId(3, 7), "ssp", (0, 1, 2), 0, 99, (), (), 0, "", 1, "", ("server-0",), "start")
>>> doing = {0: Doing(COMPUTING, 62.0, 0.05, phase.id), 1: Doing(WAITING, 61.0, 0.05, phase.id)}
>>> judge(phase, {**doing, 2: Doing(READING, 61.0, phase_id=phase.id)}, HangConfig())
Judgement(hung={0: 60.0}, slow={2: 600.0}, stands_still=False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hybridsync.chief.membership import Doing
from hybridsync.config.run_config import WARN_SECS, HangConfig
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import COMPILING, COMPUTING, READING, WAITING

STEPS = 10
"""How many times as long as its own recent units a worker may be at one."""


@dataclass(frozen=True)
class Judgement:
    """What is to be done about the members of a phase.

    Args:
      hung: members that hang and are waited for, each with its limit in seconds: they are given up.
      slow: other members that the user is to hear of, each with its limit in seconds.
      stands_still: every member has waited for longer than anything takes: nobody is at fault, and nothing comes of it.
    """

    hung: dict[int, float]
    slow: dict[int, float]
    stands_still: bool = False


def limit_of(doing: Doing, limits: HangConfig) -> tuple[float, str]:
    """Return how many seconds a member may be at what it is at, and the configuration value that says so.

    >>> limit_of(Doing(COMPUTING, usual_secs=20.0), HangConfig()), limit_of(Doing(WAITING), HangConfig())
    ((200.0, 'compute_secs'), (inf, ''))
    """
    if doing.what == WAITING:
        return math.inf, ""
    if doing.what == READING:
        return limits.read_secs, "read_secs"
    if doing.what == COMPUTING and doing.usual_secs:
        return max(limits.compute_secs, STEPS * doing.usual_secs), "compute_secs"
    return limits.compile_secs, "compile_secs"  # a phase's first unit, too: a device may load or tune its program


def warn_secs(limit_secs: float) -> float:
    """Return after how many seconds the user is warned of a limit."""
    return min(limit_secs / 2, WARN_SECS)


def judge(
    phase: Phase,
    doing: Mapping[int, Doing],
    limits: HangConfig,
    *,
    floor_secs: float = 0.0,
    step_secs: float = math.inf,
) -> Judgement:
    """Judge the members of a phase by what they are at.

    Where the rule or the group rounds make members wait, a hung one is waited for when another one has waited for as
    long as its limit; elsewhere when every member hangs. Where no server holds the state a phase begins with all its
    members, so they wait for one that hangs in an older phase.

    Args:
      phase: the current phase.
      doing: activity of each live member that has not come back from the phase.
      limits: limits of the run.
      floor_secs: no limit is shorter.
      step_secs: how long all members may wait at the same time where no server holds the state; it counts from the
        last that began to.
    """
    waits = [each.secs for each in doing.values() if each.what == WAITING and each.phase_id == phase.id]
    longest = max(waits, default=0.0) if phase.protocol.awaits_workers or not phase.mode.is_served else 0.0
    over, slow = {}, {}
    for worker, each in doing.items():
        limit = max(floor_secs, limit_of(each, limits)[0])
        if each.secs > limit:
            over[worker] = limit
        if math.isfinite(limit) and each.secs > warn_secs(limit):  # a wait has no limit
            slow[worker] = limit
    hung = {
        worker: limit
        for worker, limit in over.items()
        if longest > limit
        or len(over) == len(doing)
        or (not phase.mode.is_served and doing[worker].phase_id != phase.id)
    }
    all_wait = len(waits) == len(doing) > 0 and not phase.mode.is_served
    return Judgement(
        hung,
        {worker: limit for worker, limit in slow.items() if worker not in hung},
        all_wait and min(waits) > step_secs,
    )


class Words(NamedTuple):
    """What a process is at, how long it may be at that, and the configuration value that says so."""

    what: str
    limit_secs: float
    setting: str


def in_words(doing: Doing, limit_secs: float, limits: HangConfig) -> Words:
    """Return in words what a member is at that may be at it for `limit_secs`.

    >>> in_words(Doing(READING), 600.0, HangConfig())
    Words(what='reading the data of one unit', limit_secs=600.0, setting='hang.read_secs')
    """
    what = {READING: "reading the data of one unit", COMPILING: "compiling", COMPUTING: "computing one unit"}
    return Words(what.get(doing.what, "at the same work"), limit_secs, f"hang.{limit_of(doing, limits)[1]}")


def silence_in_words(limit_secs: float) -> Words:
    """Return in words that a process sends no heartbeats."""
    return Words("silent", limit_secs, "hang.silent_secs")
