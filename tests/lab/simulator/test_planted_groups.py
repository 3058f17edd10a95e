"""The schedules of group plans are shown able to find bugs, as `test_planted.py` shows it of the others."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from hybridsync.chief.group_rounds import GroupRounds
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.simulated_replica import Replica
from hybridsync.lab.testing.schedules import GROUP_PLANS, draw
from hybridsync.lab.testing.trials import try_schedule
from hybridsync.phases.housekeeping import ProgressWatchdog
from hybridsync.protocols.group_generators import GroupRule
from hybridsync.protocols.group_queue import Queued
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.requests import IO, StoreFullSync
from tests.lab.testing.drawn_schedules import runs, try_seed

BUDGET = 100


def waits_for_workers_without_units(patch: pytest.MonkeyPatch) -> None:
    """Who gets no unit stays in the group that was made with it."""
    patch.setattr(GroupRule, "on_idle", lambda self, worker, at: [])


def forgets_the_lock_vector(patch: pytest.MonkeyPatch) -> None:
    """A group starts though a member is in an earlier one, and takes it away from that."""

    def ready(self: Queued, at: float) -> list[Any]:
        ready = [group for group in self._pending if all(map(self._is_there, group))]
        self._pending = [group for group in self._pending if group not in ready]
        return [self._begun(group, at) for group in ready]

    patch.setattr(Queued, "_ready", ready)


def takes_a_repeated_request_for_another_group_round(patch: pytest.MonkeyPatch) -> None:
    """What was told once counts again."""
    original = GroupRounds.join_group

    def join_group(self: GroupRounds, request: Any, now: float) -> bool:
        self._answers.pop(request.worker, None)
        return original(self, request, now)

    patch.setattr(GroupRounds, "join_group", join_group)


def holds_its_own_replica_for_others(patch: pytest.MonkeyPatch) -> None:
    """A worker takes every average for a full synchronisation."""
    original = GroupEngine._average_replicas

    def mix(self: GroupEngine, effect: Any) -> IO:
        yield from original(self, effect)
        if not effect.group.is_full_sync:
            yield StoreFullSync(effect.group, self._state, self._factor)

    patch.setattr(GroupEngine, "_average_replicas", mix)


def forgets_what_was_told_before(patch: pytest.MonkeyPatch) -> None:
    """A full synchronisation names the units of its own round alone."""
    original = GroupRounds._full_sync

    def whole(self: GroupRounds, reply: Any) -> Any:
        told = original(self, reply)
        return dataclasses.replace(told, applied=told.applied[:-1])

    patch.setattr(GroupRounds, "_full_sync", whole)


def settles_on_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a full synchronisation has made is not held for others."""
    patch.setattr(Replica, "store_full_sync", lambda self, reply, state, factor: None)


def captures_without_a_synchronisation(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint takes what a worker holds, and the end of a phase what it held when somebody was lost."""
    patch.setattr(ProgressWatchdog, "await_together", lambda self, phase, tick, final: None)


def try_calm(seed: int) -> None:
    """Try a schedule in which nothing fails: then nobody is given up either, which would hide who waits in vain."""
    drawn = draw(seed, GROUP_PLANS)
    schedule = dataclasses.replace(drawn, scenario=Scenario(drawn.scenario.cluster), unfit=frozenset())
    outcome = try_schedule(schedule, runs())
    assert outcome.rolled_back == 0, f"{outcome.rolled_back} units were rolled back, though nothing failed"
    assert outcome.num_phases == schedule.plan.count(":") + (not schedule.plan.endswith("%")), (
        f"{outcome}: {schedule.plan}"
    )


def test_where_nothing_fails_nobody_is_given_up() -> None:
    for seed in range(40):
        try_calm(seed)


def test_a_wait_in_vain_is_found_where_nothing_fails() -> None:
    found = ""
    for seed in range(BUDGET):
        with pytest.MonkeyPatch.context() as patch:
            waits_for_workers_without_units(patch)
            try:
                try_calm(seed)
            except AssertionError as violation:
                found = str(violation)
                break
    assert "nothing failed" in found or "has not ended" in found


def forgets_an_average_while_it_computes(patch: pytest.MonkeyPatch) -> None:
    """A worker goes on from the copy that its gradient was computed on."""
    original = GroupEngine._end_serving

    def end(self: GroupEngine) -> IO:
        yield from original(self)
        self._state = self._computed_on  # pyright: ignore[reportAttributeAccessIssue]

    def compute(self: GroupEngine, effect: Any) -> IO:
        self._computed_on = self._state  # pyright: ignore[reportAttributeAccessIssue]
        return (yield from begin(self, effect))

    begin = GroupEngine._compute
    patch.setattr(GroupEngine, "_compute", compute)
    patch.setattr(GroupEngine, "_end_serving", end)


def tells_of_units_once(patch: pytest.MonkeyPatch) -> None:
    """A part beside the computing tells of units once, though its message may be lost."""
    original = GroupEngine._request

    def tell(self: GroupEngine, number: int, **fields: Any) -> Any:
        told = original(self, number, **fields)
        if fields.get("serves"):
            self._applied, self._dropped = [], []
        return told

    patch.setattr(GroupEngine, "_request", tell)


BUGS = [
    # bug, what finds it
    (forgets_the_lock_vector, "KeyError|ValueError|has not ended|run failed|in that state|not in list"),
    (takes_a_repeated_request_for_another_group_round, "meets twice|has not ended|run failed"),
    (holds_its_own_replica_for_others, "settles phase"),
    (forgets_what_was_told_before, "settles phase"),
    (settles_on_nothing, "the ledger counts"),
    (forgets_an_average_while_it_computes, "settles phase"),
    (tells_of_units_once, "settles phase"),
    (captures_without_a_synchronisation, "the ledger counts"),
]


@pytest.mark.parametrize(("bug", "finding"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_bug_in_groups_is_found_within_the_budget(bug: Any, finding: str) -> None:
    found, seed = "", 0
    for seed in range(BUDGET):
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            try:
                try_seed(seed, GROUP_PLANS)
            except (AssertionError, KeyError, ValueError) as violation:
                print(f"{bug.__name__}: seed {seed}: {violation}")
                found = f"{type(violation).__name__}: {violation}"
                break
    assert re.search(finding, found), found or f"{bug.__name__} was not found in {BUDGET} seeds"
    try_seed(seed, GROUP_PLANS)
