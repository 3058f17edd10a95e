"""Finds the members of a phase that hang and keep others waiting. Pure.

A worker hangs that has been at one unit for longer than its limit, though its process lives and reports. No worker is
given up for being slow: the limit follows the worker's own units, and time in which the rule holds its push does not
count.

>>> from hybridsync.interfaces.phase import Phase
>>> from hybridsync.core.plan import PhaseId
>>> phase = Phase(PhaseId(3, 7), "ssp", (0, 1, 2), 0, 99, (), (), 0, "", 1, "", ("server-0",), "start")
>>> doing = {0: Doing(COMPUTING, 2.5, 0.05, phase.id), 1: Doing(WAITING, 2.2, 0.05, phase.id)}
>>> hung(phase, {**doing, 2: Doing(phase_id=phase.id)}, lambda usual_secs: max(2.0, 10 * usual_secs))
{0: 2.0}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridsync.chief.phase_membership import Doing
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import COMPUTING, WAITING


def hung(phase: Phase, doing: Mapping[int, Doing], limit_secs: Callable[[float], float]) -> dict[int, float]:
    """Return the members that hang and are waited for, each with its limit in seconds.

    Where servers hold the state, a member is waited for when the rule has made another member wait for as long as that
    limit, or when no member does anything but hang. A mesh and groups watch their own steps and group rounds; they
    begin with all members, so they wait for one that hangs in an older phase.

    Args:
      phase: the current phase.
      doing: activity of each live member that has not come back from the phase.
      limit_secs: usual seconds of a worker's units, 0 if unknown -> limit for one unit, in seconds.
    """
    late = {
        worker: limit
        for worker, each in doing.items()
        if each.what == COMPUTING and each.secs > (limit := limit_secs(each.usual_secs))
    }
    if not phase.mode.is_served:
        return {worker: limit for worker, limit in late.items() if doing[worker].phase_id != phase.id}
    if len(late) == len(doing):
        return late
    waits = [each.secs for each in doing.values() if each.what == WAITING and each.phase_id == phase.id]
    longest = max(waits, default=0.0) if phase.protocol.awaits_workers else 0.0
    return {worker: limit for worker, limit in late.items() if longest > limit}
