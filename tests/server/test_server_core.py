"""The server's core: which calls are held, how each of them ends, and what its holder is asked for; pure."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.core.errors import StaleIncarnation, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.server.held_pushes import Decided
from hybridsync.server.server_core import HeldCall, ServerCore

PHASE_ID = PhaseId(3, 7)


class Listing:
    """A `StateHolder` that lists what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def check_base(self, push: Push) -> None:
        self.asked.append(("check_base", push.worker))

    def record_read(self, push: Push) -> None: ...

    def apply(self, update: Decided, sequence: int) -> None:
        self.asked.append(("apply", sequence, update.contributions))

    def discard(self, push: Push) -> None:
        self.asked.append(("discard", push.worker, push.units))

    def record_sent(self, push: Push, sequence: int) -> None:
        self.asked.append(("hand", push.worker, sequence))

    def forget(self, worker: int, incarnation: int) -> None:
        self.asked.append(("forget", worker, incarnation))

    def retain(self, contribution: Any) -> Any:
        return f"a copy of {contribution}"

    def take_uploads(self, left: tuple[tuple[int, int], ...], sequence: int) -> None:
        self.asked.append(("take_uploads", left, sequence))


def serving(spec: str, members: tuple[int, ...] = (0, 1)) -> tuple[ServerCore, Listing]:
    holder = Listing()
    core = ServerCore(holder, now=lambda: 0.0)
    core.enter(Phase(PHASE_ID, spec, members, 0, 100, (), (), 0, "", 1, "", (), "start"))
    return core, holder


def message(worker: int, *units: int, base: int = 0, incarnation: int = 1) -> Push:
    return Push(PHASE_ID, worker, incarnation, units, base)


def held(core: ServerCore, push: Push, contribution: str) -> HeldCall:
    call = core.push(push, contribution, "")
    assert isinstance(call, HeldCall)
    assert core.release() == []
    return call


def test_a_held_call_is_answered_when_it_is_sent_with_the_sequence_of_then() -> None:
    core, holder = serving("bsp_server")
    call = held(core, message(0, 4), "g4")
    core.push(message(1, 5), "g5", "")
    assert core.release() == [call]
    for worker, unit in ((0, 6), (1, 7)):
        core.push(message(worker, unit, base=1), f"g{unit}", "")
    assert core.answer(call) == PushReply(2)
    assert [what for what in holder.asked if what[0] == "apply"] == [
        ("apply", 1, ("g4", "g5")),
        ("apply", 2, ("g6", "g7")),
    ]


def test_a_call_that_is_given_up_leaves_a_copy_of_its_push() -> None:
    core, holder = serving("bsp_server")
    core.withdraw(held(core, message(0, 4), "g4"))
    again = held(core, message(0, 4), "g4 once more")
    core.push(message(1, 5), "g5", "")
    assert core.release() == [again]
    assert ("apply", 1, ("a copy of g4", "g5")) in holder.asked


def test_a_push_that_is_answered_before_its_update_outlives_its_call() -> None:
    core, holder = serving("gba(batch=2)")
    assert core.push(message(0, 4), "g4", "") == PushReply(0)
    core.push(message(0, 5), "g5", "")
    assert ("apply", 1, ("a copy of g4", "g5")) in holder.asked


def test_whoever_waits_for_anothers_push_with_its_units_is_offered_anew_when_that_is_void() -> None:
    core, holder = serving("bsp_server", members=(0, 1, 2))
    first = held(core, message(0, 4), "g4 of 0")
    second = held(core, message(1, 4), "g4 of 1")
    core.fence(PHASE_ID, 0, 1)
    assert core.release() == [first], "the other push takes its place, and is held"
    with pytest.raises(StaleIncarnation):
        core.answer(first)
    core.push(message(2, 5), "g5", "")
    assert core.release() == [second] and core.answer(second) == PushReply(1)
    assert ("apply", 1, ("g4 of 1", "g5")) in holder.asked


def test_whoever_waits_for_anothers_push_with_its_units_hears_of_a_duplicate_when_that_is_applied() -> None:
    core, holder = serving("bsp_server", members=(0, 1, 2))
    first, second = held(core, message(0, 4), "g4 of 0"), core.push(message(1, 4), "g4 of 1", "")
    assert isinstance(second, HeldCall)
    core.push(message(2, 5), "g5", "")
    assert core.release() == [first, second]
    assert core.answer(second).duplicate
    assert ("discard", 1, (4,)) in holder.asked


def test_a_held_push_of_a_closed_phase_is_refused_by_name() -> None:
    core, holder = serving("bsp_server")
    call = held(core, message(0, 4), "g4")
    core.close()
    assert core.release() == [call]
    with pytest.raises(StalePhase):
        core.answer(call)
    assert holder.asked == []


def test_a_transfer_that_is_not_granted_is_refused_by_name_when_the_phase_closes() -> None:
    core, _ = serving("hsp", members=(0, 1, 2))
    granted, waiting = core.ready(message(0, 4)), core.ready(message(1, 5))
    assert core.release() == [granted] and core.answer(granted) == PushReply(0)
    core.close()
    assert core.release() == [waiting]
    with pytest.raises(StalePhase):
        core.answer(waiting)


def test_a_fence_is_carried_out_before_the_holder_forgets_the_worker() -> None:
    core, holder = serving("bsp_server")
    held(core, message(0, 4), "g4")
    core.fence(PHASE_ID, 1, 1)
    assert [what[0] for what in holder.asked] == ["apply", "forget"]


def test_a_worker_out_of_date_is_refused_before_its_base_is_looked_at() -> None:
    core, holder = serving("asp(staleness_rule=dc)")
    core.fence(PHASE_ID, 0, 1)
    holder.asked.clear()
    with pytest.raises(StaleIncarnation):
        core.push(message(0, 4), "g4", "")
    assert holder.asked == []


def test_the_optimizer_states_of_last_pushes_are_taken_once() -> None:
    core, holder = serving("localsgd")
    first = held(core, message(0, 4), "moved 4")
    core.push(message(1, 5), "moved 5", "")
    assert core.release() == [first]
    assert core.missing_uploads == [0, 1]
    assert core.upload_opt_state(message(0, 4)) and core.upload_opt_state(message(1, 9)), (
        "the second one is behind another push"
    )
    core.close()
    assert core.missing_uploads == []
    assert core.take_uploads() == core.take_uploads() == (0,)
    assert [what for what in holder.asked if what[0] == "take_uploads"] == [("take_uploads", ((0, 1),), 1)]
