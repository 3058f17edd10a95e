"""Follows what remains of a run: its plan's stages, and the detours that were taken from them. Pure.

A detour leaves a lock-step stage for an asynchronous protocol for a while. Its units count towards the asynchronous
stage that follows, and the lock-step share is completed after it: the stage's end moves on by as many units, to the end
of that next stage at most. The workload stays. Where no asynchronous stage follows, the end stays, too: then the units
of the detour are ones that are not done in lock-step.

    >>> schedule = StageSchedule((StageSpan("bsp", 400, lock_step=True), StageSpan("asp", 1000, asynchronous=True)))
    >>> away = schedule.begin_detour(100)
    >>> away.at(100)
    Segment(spec='asp', end_units=1000, stage=0, detour=True, order=0)
    >>> back = away.end_detour(250)
    >>> back.at(250), back.at(550)
    (Segment(spec='bsp', end_units=550, stage=0, detour=False, order=0), Segment(spec='asp', end_units=1000, stage=1,
    detour=False, order=0))

A lock-step stage may also end before its share is done, for good: then the next, asynchronous stage begins there.

    >>> early = schedule.end_stage_early(250)
    >>> early.at(250), early.saved_detours(250)
    (Segment(spec='asp', end_units=1000, stage=1, detour=False, order=0), ((250, 250),))

A checkpoint keeps the detours so far, and such an end as a detour of no units; where the run stands follows from them
and the units applied. A resume may ask for something else (`resumed`): a detour has been made and stays, an early end
is only what was decided under the trigger and the plan of then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridsync import protocols
from hybridsync.config.run_config import RunConfig
from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.core.plan import Plan
from hybridsync.core.units import Range
from hybridsync.interfaces.commands import Order
from hybridsync.policies.plan_checks import CheckOrder, checked_order

DETOUR = "asp"
"""The protocol of a detour when the plan names no asynchronous protocol next."""


@dataclass(frozen=True)
class StageSpan:
    """A stage of the plan.

    Args:
      spec: protocol, as written in the plan.
      end_units: units applied at which the stage ends, if there is no detour.
      lock_step: whether detours may leave it.
      asynchronous: whether a detour may be one of its units.
    """

    spec: str
    end_units: int
    lock_step: bool = False
    asynchronous: bool = False


@dataclass(frozen=True)
class Segment:
    """Describes what to enter: a protocol, up to a number of applied units, for a stage of the plan, or as a detour.

    `order` is the number of the user's order that has it entered; 0 for none.
    """

    spec: str
    end_units: int
    stage: int
    detour: bool = False
    order: int = 0


@dataclass(frozen=True)
class StageSchedule:
    """The stages, and the detours.

    Args:
      spans: the plan's stages, in order.
      detours: detours that have ended, ascending: units applied at their begin and end.
      since: units applied at the beginning of the detour in progress; None if absent.
      ends: units applied where lock-step stages ended early.
    """

    spans: tuple[StageSpan, ...]
    detours: tuple[Range, ...] = ()
    since: int | None = None
    ends: tuple[int, ...] = ()

    def at(self, units: int) -> Segment:
        """Return what is to be entered when `units` are applied, less than the workload."""
        stage = self.stage(units)
        if self._is_away(stage):
            return Segment(self.detour_of(stage), self._limit(stage), stage, detour=True)
        return Segment(self.spans[stage].spec, self.end(stage), stage)

    def stage(self, units: int) -> int:
        """Return the number of the stage whose work is to be done when `units` are applied; at the end, of the last."""
        last = len(self.spans) - 1
        return next((stage for stage in range(last) if self._now(stage, units) > units), last)

    def end(self, stage: int) -> int:
        """Return the applied units at which a stage ends, by the detours that have ended."""
        low, limit = self._low(stage), self._limit(stage)
        if early := [end for end in self.ends if low <= end < limit and self.can_end_early(stage)]:
            return early[0]
        moved = sum(stop - start for start, stop in self.detours if low <= start < limit)
        return min(self.spans[stage].end_units + moved, limit) if self.spans[stage].lock_step else limit

    def detour_of(self, stage: int) -> str:
        """Return the protocol that takes the place of a lock-step stage."""
        after = self.spans[stage + 1] if stage + 1 < len(self.spans) else None
        return after.spec if after is not None and after.asynchronous else DETOUR

    def begin_detour(self, units: int) -> StageSchedule:
        """Return the schedule on which a detour begins, if none is under way."""
        return self if self.since is not None else replace(self.rolled_back(units), since=units)

    def end_detour(self, units: int) -> StageSchedule:
        """Return the schedule on which the detour, if one is under way, has ended."""
        known = self.rolled_back(units)
        if known.since is None:
            return known
        ended = ((known.since, units),) if units > known.since else ()
        return replace(known, detours=(*known.detours, *ended), since=None)

    def can_end_early(self, stage: int) -> bool:
        """Return whether a stage is one of lock-step that an asynchronous one follows."""
        return self._limit(stage) > self.spans[stage].end_units

    def end_stage_early(self, units: int) -> StageSchedule:
        """Return the schedule on which the current lock-step stage has ended at `units`, if it can end early."""
        known = self.end_detour(units)
        return replace(known, ends=(*known.ends, units)) if known.can_end_early(known.stage(units)) else known

    def rolled_back(self, units: int) -> StageSchedule:
        """Return the schedule of a run that was set back to `units`, if it was further."""
        detours = tuple((start, min(stop, units)) for start, stop in self.detours if start < units)
        ends = tuple(end for end in self.ends if end <= units)
        return replace(self, detours=detours, since=None if self.since is None else min(self.since, units), ends=ends)

    def saved_detours(self, units: int) -> tuple[Range, ...]:
        """Return what a checkpoint of `units` keeps: the detours up to there, and the early ends."""
        known = self.end_detour(units)
        return (*known.detours, *((end, end) for end in known.ends))

    def with_saved_detours(self, saved: Iterable[Range]) -> StageSchedule:
        """Return the schedule with what a checkpoint has kept."""
        kept = [(start, stop) for start, stop in saved]
        detours = tuple(each for each in kept if each[0] < each[1])
        return replace(self, detours=detours, ends=tuple(start for start, stop in kept if start == stop))

    def _limit(self, stage: int) -> int:
        """Return up to where detours may move a stage's end, which is where one of them ends at the latest."""
        after = self.spans[stage + 1] if stage + 1 < len(self.spans) else None
        follows = self.spans[stage].lock_step and after is not None and after.asynchronous
        return after.end_units if follows and after is not None else self.spans[stage].end_units

    def _now(self, stage: int, units: int) -> int:
        """Return a stage's end as the current detour has moved it."""
        return self.end_detour(max(units, self.since or 0)).end(stage) if self._is_away(stage) else self.end(stage)

    def _is_away(self, stage: int) -> bool:
        """Return whether the current detour is one of this stage."""
        return self.spans[stage].lock_step and self.since is not None and self._low(stage) <= self.since

    def _low(self, stage: int) -> int:
        return self.spans[stage - 1].end_units if stage else 0


def resumed(told: Iterable[Sequence[int]], saved: Mapping[str, Any], config: RunConfig) -> tuple[Range, ...]:
    """Return what a run goes on with, perhaps under another configuration, of what a checkpoint has kept.

    An early end stays while `policy.trigger` is on and the plan is the same up to the stage that ended, that one
    included: the following stages may have another protocol. Else the new configuration decides how long lock-step
    lasts, and the end is left out: the plan counts as it is now, by the units applied, so that lock-step comes back
    where its share is not reached. With the trigger on and another share, the knee is looked for again.

    Args:
      told: detours in the form of `StageSchedule.saved_detours`.
      saved: configuration of the run that kept it, as JSON.
      config: configuration that the run continues with.

    >>> from hybridsync.config.policy_config import PolicyConfig
    >>> before = {"plan": "bsp:60%,asp", "workload": 2000}
    >>> knee = RunConfig(workload=2000, plan="bsp:60%,ssp", policy=PolicyConfig(trigger="knee"))
    >>> resumed([[100, 140], [700, 700]], before, knee)
    ((100, 140), (700, 700))
    >>> resumed([[100, 140], [700, 700]], before, RunConfig(workload=2000, plan="bsp:60%,asp"))
    ((100, 140),)
    """
    before, now = (_ends(Plan.parse(plan), saved["workload"]) for plan in (saved["plan"], config.plan))

    def stays(start: int, stop: int) -> bool:
        stage = min(sum(end <= start for _, end in before), len(before) - 1)
        if not protocols.parse(before[stage][0]).mode.moves_together:
            stage -= 1  # detours have moved the end of the stage before it up to here
        return start < stop or (config.policy.trigger != "off" and before[: stage + 1] == now[: stage + 1])

    return tuple((start, stop) for start, stop in told if stays(start, stop))


def kept_orders(
    orders: Iterable[Order], plan_then: str, config: RunConfig, check: CheckOrder = checked_order
) -> tuple[tuple[Order, ...], tuple[tuple[Order, str], ...]]:
    """Return the orders of a run's user that go on, perhaps under another configuration, and the others, each with why.

    An order is for a stage. It stays while the plan is the same up to that stage, that one included, and while a user
    could give it anew: what it needs may have been prepared by a later stage that is gone. A pending order is for
    whatever stage is entered next.

    Args:
      orders: as they were kept.
      plan_then: plan in which the orders' stages count.
      config: configuration that the run continues with.
      check: function that checks an order.

    >>> orders = (Order(1, "asp", 40, stage=0), Order(2, "ssp", 700, stage=1), Order(3, "diloco", 800))
    >>> kept, dropped = kept_orders(orders, "bsp:50%,diloco", RunConfig(workload=2000, plan="bsp:50%,gba"))
    >>> [order.number for order in kept], [order.number for order, _ in dropped]
    ([1], [2, 3])
    """
    then, now = Plan.parse(plan_then).stages, Plan.parse(config.plan).stages
    kept: list[Order] = []
    dropped: list[tuple[Order, str]] = []
    for order in orders:
        if then[: order.stage + 1] != now[: order.stage + 1]:
            dropped.append((order, f"it was for stage {order.stage + 1} of the plan {plan_then}"))
            continue
        try:
            kept.append(replace(order, spec=check(order.spec, config)))
        except (PlanError, ConfigError) as error:
            dropped.append((order, str(error)))
    return tuple(kept), tuple(dropped)


def _ends(plan: Plan, workload: int) -> list[tuple[str, int]]:
    return [(stage.spec, end) for stage, end in zip(plan.stages, plan.ends(workload), strict=True)]


def rescaled(told: Iterable[Sequence[int]], rescale: Callable[[int], int]) -> tuple[Range, ...]:
    """Return what a checkpoint has kept, in units of another size.

    A detour of less than such a unit is dropped: it would read as an early end.

    Args:
      told: detours in the form of `StageSchedule.saved_detours`.
      rescale: units of the old size -> units of the new size.
    """
    moved = [(start < stop, rescale(start), rescale(stop)) for start, stop in told]
    return tuple((start, stop) for is_detour, start, stop in moved if start < stop or not is_detour)
