"""A worker's units in one phase, asked for early or late."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync.core.errors import HybridSyncError, StalePhase, WaitTimeout
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.worker import lease_queue as lease_queue_module
from hybridsync.worker.lease_queue import LeaseQueue
from hybridsync.worker.requests import IO, LeaseUnits
from tests.telemetry.clocks import ManualClock
from tests.worker.scripted import Script, member_of


def more(*ranges, final=False, join_group=False) -> LeaseReply:
    return LeaseReply(ranges, final, join_group)


class Queue:
    """A queue whose chief answers from a list, and whose worker completes each unit before it takes the next."""

    def __init__(self, *replies: LeaseReply | HybridSyncError, tells: bool = False, **options: Any) -> None:
        self.replies, self.requests, self.told = list(replies), list[LeaseRequest](), list[int]()
        self.clock = ManualClock()
        self._member = member_of(clock=self.clock)
        self.script = Script(self._answer)
        self.leases = LeaseQueue(
            self._member, **{"ahead": False, "say_idle": self._say_idle if tells else None, **options}
        )

    def next(self, count: int = 1) -> tuple[int, ...]:
        self._member.recorder.completed = self.leases.position
        return self.leases.next_calmly(count) or self.script.drive(self.leases.next(count))

    def _answer(self, request: Any) -> Any:
        if request == "idle":
            self.told.append(len(self.requests))
            return None
        assert isinstance(request, LeaseUnits)
        self.requests.append(request.request)
        reply = self.replies.pop(0)
        if isinstance(reply, HybridSyncError):
            raise reply
        return reply

    @staticmethod
    def _say_idle() -> IO:
        yield "idle"


def test_units_come_in_the_streams_order_and_end_when_it_is_final():
    queue = Queue(more((5, 7)), more((0, 2), final=True))
    assert [queue.next() for _ in range(6)] == [(5,), (6,), (0,), (1,), (), ()]
    assert len(queue.requests) == 2


def test_not_ahead_it_asks_only_when_nothing_is_left_and_says_what_is_done():
    queue = Queue(more((0, 3)), more((3, 4), final=True))
    for _ in range(3):
        queue.next()
        assert len(queue.requests) == 1, "units in hand do not wait for an answer"
    queue.next()
    assert [(request.known, request.completed) for request in queue.requests] == [(0, 0), (3, 3)]


def test_a_renewal_ahead_does_not_count_the_units_just_taken_as_done():
    queue = Queue(more((0, 8)), more((8, 16), final=True), ahead=True)
    for _ in range(3):
        queue.next(2)
        for ticket in queue.script.begun:
            ticket.end()
    assert [(request.known, request.completed) for request in queue.requests] == [(0, 0), (8, 2)]


def test_a_renewal_ahead_is_under_way_once_and_not_waited_for_while_units_last():
    queue = Queue(more((0, 8)), more((8, 10), final=True), ahead=True)
    taken = [queue.next() for _ in range(8)]
    assert (len(queue.script.begun), len(queue.requests)) == (1, 1)
    taken += [queue.next() for _ in range(3)]
    assert taken == [*((unit,) for unit in range(10)), ()]


def test_what_a_renewal_brought_is_told_before_anybody_has_looked_at_it():
    queue = Queue(more((0, 2)), more((4, 6)), ahead=True)
    queue.next()
    assert queue.leases.ranges == ((0, 2),)
    queue.script.begun[0].end()
    assert queue.leases.ranges == ((0, 2), (4, 6))
    queue.next()
    assert queue.leases.ranges == ((0, 2), (4, 6))


def test_a_renewal_that_was_refused_is_heard_with_the_next_lease():
    queue = Queue(more((0, 4)), StalePhase("over"), ahead=True)
    for _ in range(2):
        queue.next()
    queue.script.begun[0].end()
    assert queue.leases.ranges == ((0, 4),)
    with pytest.raises(StalePhase, match="over"):
        queue.next()


def test_a_short_last_step_gets_what_is_left():
    queue = Queue(more((0, 6), final=True))
    assert [queue.next(4), queue.next(4), queue.next(4)] == [(0, 1, 2, 3), (4, 5), ()]


def test_an_older_phase_is_passed_on():
    with pytest.raises(StalePhase):
        Queue(StalePhase("over")).next()


def test_a_chief_that_never_gives_anything_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(lease_queue_module, "MEMBERS_SECS", 3.0)
    queue = Queue()

    def empty(request: Any) -> LeaseReply:
        queue.clock.advance(1.0)
        return more()

    queue.script = Script(empty)
    with pytest.raises(WaitTimeout, match=r"worker 2 .* 3 s .*phase 1"):
        queue.next()


def test_idleness_is_told_once_and_only_then_may_the_chief_take_its_time():
    queue = Queue(more((0, 1)), more(), more(), more((3, 4)), more(), more(final=True), tells=True)
    assert [queue.next(), queue.next()] == [(0,), (3,)]
    assert (queue.told, [request.at_once for request in queue.requests]) == ([2], [True, True, False, False])
    assert queue.next() == ()
    assert queue.told == [2, 5], "and again the next time"


def test_a_renewal_ahead_of_time_that_brings_nothing_is_no_idleness():
    queue = Queue(more((0, 2)), more(), more((2, 3)), tells=True, ahead=True)
    assert queue.next() == (0,)
    queue.script.begun[0].end()
    assert (queue.next(), queue.next(), queue.told) == ((1,), (2,), [])


def test_a_renewal_that_is_waited_for_and_brings_nothing_is_asked_for_again_before_idleness_is_told():
    queue = Queue(more((0, 1)), more(), more((1, 2)), tells=True, ahead=True)
    assert queue.next() == (0,)
    assert not queue.script.begun[0].done()
    assert (queue.next(), queue.told) == ((1,), [])


def test_who_took_fewer_units_than_it_wanted_renews_ahead():
    queue = Queue(more((0, 3)), more(), more((3, 8)), takes_fewer=True, ahead=True)
    assert queue.next(8) == (0, 1, 2)
    assert len(queue.script.begun) == 1
    queue.script.begun[0].end()
    assert [(request.known, request.wanted) for request in queue.requests] == [(0, 8), (3, 8), (3, 8)]


def test_some_units_will_do_where_the_chief_has_no_more_to_give_now():
    queue = Queue(more((0, 3)), more((3, 5)), more(), more(final=True), takes_fewer=True)
    assert queue.next(8) == (0, 1, 2, 3, 4)
    assert [(request.wanted, request.at_once) for request in queue.requests] == [(8, False), (8, True), (8, True)]
    assert queue.next(8) == ()


def test_who_has_some_units_in_hand_is_not_idle():
    queue = Queue(more((0, 3)), more(), more(), more(final=True), tells=True, takes_fewer=True)
    assert queue.next(8) == (0, 1, 2)
    assert queue.told == []
    assert queue.next(8) == ()
    assert queue.told == [3]


def test_who_is_called_to_a_full_synchronisation_gets_no_units_and_goes_on_behind_it():
    queue = Queue(more((0, 1)), more(join_group=True), more((1, 2), final=True))
    assert (queue.next(), queue.leases.called) == ((0,), False)
    assert (queue.next(), queue.leases.called) == ((), True)
    assert (queue.next(), queue.leases.called) == ((1,), False)


def test_units_that_come_with_a_call_to_everybody_are_for_the_time_behind_it():
    queue = Queue(more((0, 2), join_group=True), more((2, 3), final=True))
    assert queue.next() == () and queue.leases.called
    assert [queue.next() for _ in range(4)] == [(0,), (1,), (2,), ()] and not queue.leases.called
    assert len(queue.requests) == 2
