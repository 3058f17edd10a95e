"""A group phase as the chief sees it: numbers, units, repeats, who is called and who is waited for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hybridsync import protocols
from hybridsync.chief.group_rounds import GroupRounds
from hybridsync.chief.message_checks import check_group
from hybridsync.core.errors import RefusedInput, StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import AppliedUnit, GroupReply, GroupRequest, GroupUpdate, LeaseReply, LeaseRequest
from tests.chief.chiefs import enter_all, lease, make_chief
from tests.roles import phase_of

ALL = "preduce(size=9,slowdown=0)"


def grouping_of(spec: str = ALL, num_workers: int = 2, **fields) -> GroupRounds:
    phase = replace(phase_of(3, spec, members=tuple(range(num_workers))), **fields)
    return GroupRounds(phase, protocols.parse(spec).group_rule(phase.members, 0))


def request(worker: int, number: int, *applied: tuple[int, int], **fields) -> GroupRequest:
    news = tuple(AppliedUnit(*each) for each in applied)
    return GroupRequest(worker, 1, PhaseId(3, 3), number, news, **fields)


def meet(grouping: GroupRounds, *args, now: float = 0.0, **fields) -> GroupReply | None:
    asked = request(*args, **fields)
    grouping.join_group(asked, now)
    return grouping.answer(asked)


def test_group_rounds_are_numbered_in_one_order_and_say_what_was_applied_by_then() -> None:
    grouping = grouping_of(sequence=10, applied=((0, 4),))
    assert meet(grouping, 0, 1, (4, 10)) is None
    reply = meet(grouping, 1, 1, (5, 10))
    assert reply == GroupReply((0, 1), (), 11, 6)
    assert meet(grouping, 0, 1, (4, 10)) == reply


def test_units_of_a_worker_that_still_serves_count_with_its_group() -> None:
    grouping = grouping_of("adpsgd", num_workers=4, applied=((0, 4),))
    for worker in (1, 2, 3):
        meet(grouping, worker, 1, (4 + worker, 0), serves=1)
    reply = meet(grouping, 0, 1, (4, 0))
    assert reply is not None and (len(reply.members), reply.units) == (2, 4 + 2)


def test_a_repeated_request_changes_nothing_whenever_it_comes() -> None:
    grouping = grouping_of()
    for _ in range(3):
        assert meet(grouping, 0, 1, (0, 0)) is None
    first = meet(grouping, 1, 1, (1, 0))
    assert meet(grouping, 0, 2, (2, 1)) is None
    assert grouping.answer(request(0, 1)) == first, "the next one has not been answered yet"
    assert meet(grouping, 1, 1, (1, 0)) == first
    second = meet(grouping, 1, 2, (3, 1))
    assert second is not None and second.sequence == 2 and second.units == 4
    assert meet(grouping, 0, 1, (0, 0)) is None, "nobody asks for an answer that it has gone on from"


def test_a_full_synchronisation_tells_all_units_and_every_update_since_the_last_one() -> None:
    grouping = grouping_of(applied=((0, 2),), dropped=((7, 8),))
    meet(grouping, 0, 1, (2, 0), logs=True)
    meet(grouping, 1, 1, (3, 0), logs=True)
    grouping.synchronise(1.0)
    assert grouping.calls_everybody and not grouping.is_synchronised(0)
    meet(grouping, 0, 2, logs=True)
    reply = meet(grouping, 1, 2, (5, 1), dropped=((4, "non_finite: w"),), logs=True)
    assert reply is not None and reply.is_full_sync and reply.optimizer
    assert (reply.applied, reply.dropped, reply.units) == (((0, 4), (5, 6)), ((4, 5), (7, 8)), 5)
    assert reply.updates == (
        GroupUpdate(1, (2, 3), (0, 1), (0, 0), (0, 1), False),
        GroupUpdate(2, (5,), (1,), (1,), (0, 1), True),
    )
    assert not grouping.is_synchronised(0), "it may still average"
    grouping.end_average(0)
    assert grouping.is_synchronised(0) and not grouping.is_synchronised(1)


def test_updates_are_kept_only_where_somebody_wants_them() -> None:
    grouping = grouping_of(num_workers=1)
    for number in range(1, 4):
        meet(grouping, 0, number, (number, number - 1))
    reply = meet(grouping, 0, 4, last=True)
    assert reply is not None and reply.is_full_sync and reply.updates == ()


def test_a_member_whose_own_group_stands_behind_is_told_to_come_again() -> None:
    grouping = grouping_of("preduce(buffer=false,division=false,slowdown=0)")
    assert meet(grouping, 0, 1) is None
    reply = meet(grouping, 1, 1)
    assert reply is not None and reply == GroupReply((0, 1), (), 1, 0, again=True)
    assert grouping.answer(request(0, 1)) == replace(reply, again=False)


PAIRS = "adpsgd"


def test_a_worker_that_serves_averages_with_who_asks_until_it_has_come_itself() -> None:
    grouping = grouping_of(PAIRS)
    serving = request(1, 1, (3, 0), serves=1)
    assert meet(grouping, 1, 1, (3, 0), serves=1) is None
    reply = meet(grouping, 0, 1)
    assert reply == GroupReply((0, 1), (), 1, 1) == grouping.answer(serving)
    assert meet(grouping, 1, 1, serves=2) is None
    assert meet(grouping, 1, 1) is None, "its own group"
    assert grouping.answer(request(1, 1, serves=2)) == GroupReply((), over=True)
    assert meet(grouping, 1, 1, serves=3) == GroupReply((), over=True), "begun too late"
    assert grouping.answer(serving) == reply, "a lost answer is given again"


def test_what_a_worker_tells_twice_is_logged_once_and_in_its_order() -> None:
    grouping = grouping_of(PAIRS)
    meet(grouping, 1, 1, (3, 0), serves=1, logs=True)
    meet(grouping, 1, 1, (3, 0), logs=True)
    meet(grouping, 1, 1, (3, 0), serves=1, logs=True)
    meet(grouping, 0, 1, (7, 0), (5, 0), logs=True)
    grouping.synchronise(1.0)
    meet(grouping, 1, 2, (4, 1), logs=True)
    reply = meet(grouping, 0, 2, logs=True)
    assert reply is not None and reply.updates[0].units == (7, 5, 3) and reply.updates[0].slots == (0, 0, 1)
    assert sorted(unit for update in reply.updates for unit in update.units) == [3, 4, 5, 7]


def begin(chief, spec: str = ALL, end: int = 20):
    phase = phase_of(1, spec, end=end, members=tuple(range(chief.state.members.num_workers)))
    with chief.control.turn() as state:
        state.begin(phase)
        state.open_leases()
    enter_all(chief, phase)
    return phase


def come(chief, phase, worker: int, number: int, *units: int, **fields) -> GroupReply | None:
    news = tuple(AppliedUnit(unit, 0) for unit in units)
    return chief.service.group_for(GroupRequest(worker, 1, phase.id, number, news, **fields))


def test_what_is_told_at_a_group_round_counts_as_applied() -> None:
    chief = make_chief()
    phase = begin(chief)
    ((first, _),) = lease(chief, phase, 0).ranges
    assert come(chief, phase, 0, 1, first) is None
    assert chief.state.ledger.num_applied == 1
    chief.state.ledger.counts()


def test_nobody_waits_for_a_worker_that_gets_no_unit() -> None:
    chief = make_chief()
    phase = begin(chief, end=3)
    for worker in range(3):
        assert lease(chief, phase, worker).ranges
    *_, last = [come(chief, phase, worker, 1) for worker in range(3)]
    assert last is None, "worker 3 may get a unit yet"
    assert chief.service.units_for(LeaseRequest(3, 1, phase.id, 0, 0)) is None
    reply = come(chief, phase, 2, 1)
    assert reply is not None and reply.members == (0, 1, 2)


def test_a_worker_without_units_is_called_to_a_full_synchronisation() -> None:
    chief = make_chief()
    phase = begin(chief, end=3)
    for worker in range(3):
        lease(chief, phase, worker)
    with chief.control.turn() as state:
        state.call_together()
    assert lease(chief, phase, 3) == LeaseReply((), False, join_group=True)
    for worker in (3, 0, 1):
        assert come(chief, phase, worker, 1) is None
    reply = come(chief, phase, 2, 1)
    assert reply is not None and reply.is_full_sync and reply.members == (0, 1, 2, 3)


def test_a_worker_that_gets_units_is_called_before_it_computes_them() -> None:
    chief = make_chief()
    phase = begin(chief)
    with chief.control.turn() as state:
        state.call_together()
    reply = lease(chief, phase, 0)
    assert reply.ranges and reply.join_group


def test_a_broken_phase_ends_a_wait_for_a_group() -> None:
    chief = make_chief()
    phase = begin(chief)
    assert come(chief, phase, 0, 1) is None
    with chief.control.turn() as state:
        state.break_phase("test")
    with pytest.raises(StalePhase, match="test"):
        come(chief, phase, 0, 1)


def test_whoever_is_told_to_wait_hears_for_whom() -> None:
    chief = make_chief()
    phase = begin(chief, "preduce(groups=arrival,patience=0)")
    reply = chief.service.join_group(GroupRequest(0, 1, phase.id, 1))
    assert reply.members == (0,), "there was no gap to wait for"
    grouping = grouping_of()
    meet(grouping, 0, 1)
    assert grouping.waiting(0).missing == (1,) and grouping.due == math.inf


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"worker": 7}, "takes no part"),
        ({"number": 0}, "group round 0; count from 1"),
        ({"applied": (AppliedUnit(99, 0),)}, "unit 99"),
        ({"dropped": ((-1, "non_finite"),)}, "unit -1"),
        ({"average_secs": -1.0}, "took -1 s"),
        ({"serves": -1}, "serves -1 groups of others; count from 1"),
        ({"serves": 2, "last": True}, "serves 2 groups of others though it is done"),
    ],
)
def test_a_group_round_that_cannot_be_is_refused_with_what_it_says(fields, named: str) -> None:
    phase = phase_of(1, ALL)
    asked = replace(GroupRequest(0, 1, phase.id, 1), **fields)
    with pytest.raises(RefusedInput, match=named):
        check_group(asked, phase, limit=20)
