"""A worker's stream of units, asked for early or late."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from hybridsync.errors import StaleEpoch, WaitTimeout
from hybridsync.messages import LeaseReply, LeaseRequest, PhaseReply, PhaseRequest
from hybridsync.paths import leases as leases_module
from hybridsync.paths.leases import LeaseStream
from hybridsync.ports import WorkPort
from tests.roles import phase_of
from tests.telemetry.clocks import ManualClock


class ScriptedChief(WorkPort):
    """Answers from a list; notes what it was asked."""

    def __init__(self, *replies) -> None:
        self.replies, self.requests = list(replies), []

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        raise AssertionError("a stream of units asks for no phase")

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Later(Executor):
    """Runs what is submitted when told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future, Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        self.jobs.append((future, fn, args))
        return future

    def run(self) -> None:
        for future, fn, args in self.jobs:
            future.set_result(fn(*args))
        self.jobs = []


def stream_of(chief, ahead=None, clock=None) -> LeaseStream:
    return LeaseStream(chief, 2, 1, phase_of(), clock or ManualClock(), ahead)


def more(*ranges, final=False) -> LeaseReply:
    return LeaseReply(ranges, final)


def test_units_come_in_the_streams_order_and_end_when_it_is_final():
    chief = ScriptedChief(more((5, 7)), more((0, 2), final=True))
    stream = stream_of(chief)
    assert [stream.next(1) for _ in range(6)] == [(5,), (6,), (0,), (1,), (), ()]
    assert len(chief.requests) == 2


def test_without_a_helper_it_asks_only_when_nothing_is_left_and_says_what_is_done():
    chief = ScriptedChief(more((0, 3)), more((3, 4), final=True))
    stream = stream_of(chief)
    for _ in range(3):
        stream.next(1)
        assert len(chief.requests) == 1, "units in hand do not wait for an answer"
    stream.next(1)
    assert [(request.known, request.completed) for request in chief.requests] == [(0, 0), (3, 3)]


def test_a_renewal_ahead_does_not_count_the_units_just_taken_as_done():
    chief, later = ScriptedChief(more((0, 8)), more((8, 16), final=True)), Later()
    stream = stream_of(chief, later)
    for _ in range(3):
        stream.next(2)
        later.run()
    assert [(request.known, request.completed) for request in chief.requests] == [(0, 0), (8, 2)]


def test_a_renewal_ahead_is_under_way_once_and_not_waited_for_while_units_last():
    chief, later = ScriptedChief(more((0, 8)), more((8, 10), final=True)), Later()
    stream = stream_of(chief, later)
    taken = [stream.next(1) for _ in range(8)]
    assert len(later.jobs) == 1
    later.run()
    taken += [stream.next(1) for _ in range(3)]
    assert taken == [*((unit,) for unit in range(10)), ()]


def test_a_short_last_step_gets_what_is_left():
    stream = stream_of(ScriptedChief(more((0, 6), final=True)))
    assert [stream.next(4), stream.next(4), stream.next(4)] == [(0, 1, 2, 3), (4, 5), ()]


def test_an_older_epoch_is_passed_on():
    with pytest.raises(StaleEpoch):
        stream_of(ScriptedChief(StaleEpoch("over"))).next(1)


def test_a_chief_that_never_gives_anything_is_not_waited_for_forever(monkeypatch):
    clock = ManualClock()

    class Empty(ScriptedChief):
        def lease(self, request):
            clock.advance(1.0)
            return more()

    monkeypatch.setattr(leases_module, "LEASE_DEADLINE_SECS", 3.0)
    with pytest.raises(WaitTimeout, match=r"worker 2 .* 3 s .*epoch 1"):
        stream_of(Empty(), clock=clock).next(1)


def test_idleness_is_told_once_and_only_then_may_the_chief_take_its_time():
    chief, told = ScriptedChief(more((0, 1)), more(), more(), more((3, 4)), more(), more(final=True)), []
    stream = LeaseStream(chief, 2, 1, phase_of(), ManualClock(), None, idle=lambda: told.append(len(chief.requests)))
    assert stream.next(1) == (0,)
    assert stream.next(1) == (3,)
    assert (told, [request.at_once for request in chief.requests]) == ([2], [True, True, False, False])
    assert stream.next(1) == ()
    assert told == [2, 5], "and again the next time"


def test_a_renewal_ahead_of_time_that_brings_nothing_is_no_idleness():
    chief, ahead, told = ScriptedChief(more((0, 2)), more(), more((2, 3))), Later(), []
    stream = LeaseStream(chief, 2, 1, phase_of(), ManualClock(), ahead, idle=lambda: told.append("idle"))
    assert stream.next(1) == (0,)
    ahead.run()
    assert (stream.next(1), stream.next(1), told) == ((1,), (2,), [])


def test_some_units_will_do_where_the_chief_has_no_more_to_give_now():
    chief = ScriptedChief(more((0, 3)), more((3, 5)), more(), more(final=True))
    stream = stream_of(chief)
    assert stream.next(8, some=True) == (0, 1, 2, 3, 4)
    assert [(request.wanted, request.at_once) for request in chief.requests] == [(8, False), (8, True), (8, True)]
    assert stream.next(8, some=True) == ()


def test_who_has_some_units_in_hand_is_not_idle():
    chief, told = ScriptedChief(more((0, 3)), more(), more(), more(final=True)), []
    stream = LeaseStream(chief, 2, 1, phase_of(), ManualClock(), None, lambda: told.append("idle"))
    assert stream.next(8, some=True) == (0, 1, 2)
    assert told == []
    assert stream.next(8, some=True) == ()
    assert told == ["idle"]
