"""The schedules are shown able to find bugs of the worker's engines, which threads and processes run as well."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hybridsync.core.step_assignment import Outcome
from hybridsync.interfaces.messages import PushReply
from hybridsync.lab.testing.schedules import GROUP_PLANS, PLANS, plans_of
from hybridsync.server.sequencer import Sequencer
from hybridsync.worker import lockstep_engine as lockstep_module
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.local_engine import LocalEngine
from hybridsync.worker.requests import IO
from hybridsync.worker.server_calls import ServerCalls
from hybridsync.worker.server_engine import ServerEngine
from tests.lab.testing.drawn_schedules import try_seed

BUDGET = 100


def leaves_a_unit_out(patch: pytest.MonkeyPatch) -> None:
    """A worker takes two units and computes one of them."""
    original = LeaseQueue.next

    def take(self: LeaseQueue, count: int) -> IO:
        units = yield from original(self, count)
        return units[1:] + self.next_units(1) if self.position == 7 else units

    patch.setattr(LeaseQueue, "next", take)
    patch.setattr(LeaseQueue, "next_calmly", lambda self, count: ())


def offers_a_gradient_of_another_unit(patch: pytest.MonkeyPatch) -> None:
    """A worker computes one unit and pushes what it has under the number of the next."""
    original = ServerEngine._compute

    def compute(self: ServerEngine, effect: Any) -> IO:
        gradient = yield from original(self, effect)
        return gradient._replace(units=(gradient.units[0] + 1,))

    patch.setattr(ServerEngine, "_compute", compute)


def counts_a_unit_that_is_not_finite_as_applied(patch: pytest.MonkeyPatch) -> None:
    """A member does not look at why units of a step are missing."""
    patch.setattr(lockstep_module, "outcome_of", lambda units, reasons: Outcome(units))


def forgets_its_units_when_it_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """Whose push came to nothing does not compute its units again."""
    original = LocalEngine._ended_in_void

    def ended_in_void(self: LocalEngine, effects: Any) -> IO:
        is_void = yield from original(self, effects)
        self._again = []
        return is_void

    patch.setattr(LocalEngine, "_ended_in_void", ended_in_void)


def does_not_say_what_its_last_rate_was_made_by(patch: pytest.MonkeyPatch) -> None:
    """The log names no version that a push knew beside its base."""
    original = ServerCalls.push
    patch.setattr(ServerCalls, "push", lambda self, gradient, newest: original(self, gradient, 0))


def counts_a_push_that_is_under_way_as_its_own(patch: pytest.MonkeyPatch) -> None:
    """A version is said to hold one unit of its worker more than it does, so that its last push is not taken off it."""
    original = Sequencer.answer

    def answer(self: Sequencer, worker: int, reply: PushReply) -> PushReply:
        answered = original(self, worker, reply)
        return answered._replace(own=answered.own + (answered.sequence % 2))

    patch.setattr(Sequencer, "answer", answer)


def updates_its_copy_twice(patch: pytest.MonkeyPatch) -> None:
    """A worker in groups applies each of its units twice."""
    original = GroupEngine._local_update

    def local_update(self: GroupEngine, effect: Any) -> IO:
        yield from original(self, effect)
        if not effect.mean.unfit:
            yield from original(self, effect)

    patch.setattr(GroupEngine, "_local_update", local_update)


BUGS = [
    # bug, plans in which it shows, what finds it
    (leaves_a_unit_out, PLANS, "has not ended|it lacks"),
    (offers_a_gradient_of_another_unit, PLANS, "is said to hold"),
    (counts_a_unit_that_is_not_finite_as_applied, PLANS, "its contributions hold"),
    (forgets_its_units_when_it_begins_anew, plans_of("psplus"), "has not ended"),
    (does_not_say_what_its_last_rate_was_made_by, plans_of("psplus"), "does not lead to the final state"),
    (counts_a_push_that_is_under_way_as_its_own, plans_of("psplus"), "does not lead to the final state"),
    (updates_its_copy_twice, GROUP_PLANS, "somebody has done so"),
]


@pytest.mark.parametrize(("bug", "plans", "finding"), BUGS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_bug_of_an_engine_is_found_within_the_budget(bug: Any, plans: tuple[str, ...], finding: str) -> None:
    found, seed = "", 0
    for seed in range(BUDGET):
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            try:
                try_seed(seed, plans)
            except AssertionError as violation:
                print(f"{bug.__name__}: seed {seed}: {violation}")
                found = str(violation)
                break
    assert re.search(finding, found), found or f"{bug.__name__} was not found in {BUDGET} seeds"
    try_seed(seed, plans)
