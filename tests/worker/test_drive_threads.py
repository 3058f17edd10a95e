"""Requests that are carried out in threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridsync.config.run_config import MOST_HANG_SECS
from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import TRAINING_SECS
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.worker import drive_threads as drive_module
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.requests import IO, ComputeUnit, Join, LeaseUnits, Start

SECS = 20.0
LEASE = LeaseUnits(LeaseRequest(0, 1, PhaseId(1, 7), 0, 0))
REPLY = LeaseReply(((0, 4),), final=False)


def run(io: IO, carriers: Carriers) -> None:
    with ThreadPoolExecutor(1) as executor:
        drive(io, carriers, {LeaseUnits: executor}, lambda: 1.0)


def test_replies_come_back_and_an_engine_that_ends_is_over():
    trace: list[Any] = []

    def engine() -> IO:
        trace.append((yield ComputeUnit(3, "parameters")))

    run(engine(), {ComputeUnit: lambda request: (request.unit, request.parameters)})
    assert trace == [(3, "parameters")]


def test_what_a_call_raises_is_thrown_in_where_the_engine_waits():
    def engine() -> IO:
        with pytest.raises(RoleLost, match="gone"):
            yield ComputeUnit(3, None)
        yield LEASE

    def lost(request: Any) -> Any:
        raise RoleLost("gone")

    with pytest.raises(ZeroDivisionError):
        run(engine(), {ComputeUnit: lost, LeaseUnits: lambda request: 1 // 0})


def test_an_iterator_that_runs_dry_in_a_task_does_not_look_like_the_end():
    def engine() -> IO:
        yield ComputeUnit(3, None)

    with pytest.raises(StopIteration):
        run(engine(), {ComputeUnit: lambda request: next(iter(()))})


def test_what_kills_the_thread_closes_the_engine_which_asks_for_nothing_more():
    class Killed(BaseException):
        pass

    asked: list[Any] = []

    def engine() -> IO:
        try:
            yield ComputeUnit(3, None)
        except HybridSyncError:
            yield LEASE

    def kill(request: Any) -> Any:
        raise Killed

    with pytest.raises(Killed):
        run(engine(), {ComputeUnit: kill, LeaseUnits: asked.append})
    assert asked == []


def test_what_is_begun_goes_on_beside_the_engine_and_may_be_joined_again():
    may_answer, trace = threading.Event(), list[Any]()

    def engine() -> IO:
        ticket = yield Start(LEASE)
        trace.append((ticket.done(), ticket.peek()))
        trace.append((yield ComputeUnit(3, None)))
        trace.append((yield Join(ticket)))
        trace.append((yield Join(ticket)))
        trace.append((ticket.done(), ticket.peek(), ticket.span))

    def lease(request: LeaseUnits) -> LeaseReply:
        assert may_answer.wait(SECS)
        return REPLY

    run(engine(), {ComputeUnit: lambda request: may_answer.set(), LeaseUnits: lease})
    assert trace == [(False, None), None, REPLY, REPLY, (True, REPLY, (1.0, 1.0))]


def test_an_error_of_what_was_begun_is_heard_at_each_join_and_brings_nothing():
    def engine() -> IO:
        ticket = yield Start(LEASE)
        for _ in range(2):
            with pytest.raises(RoleLost):
                yield Join(ticket)
        assert ticket.done() and ticket.peek() is None

    def lost(request: Any) -> Any:
        raise RoleLost("gone")

    run(engine(), {LeaseUnits: lost})


def test_a_join_has_a_deadline(monkeypatch):
    monkeypatch.setattr(drive_module, "JOIN_SECS", 0.05)
    may_answer = threading.Event()

    def engine() -> IO:
        ticket = yield Start(LEASE)
        try:
            yield Join(ticket)
        finally:
            may_answer.set()

    with pytest.raises(WaitTimeout, match=r"0\.05 s"):
        run(engine(), {LeaseUnits: lambda request: may_answer.wait(SECS)})


def test_a_thread_gives_up_what_was_begun_before_a_watchdog_takes_it_for_hung():
    assert MOST_HANG_SECS < MEMBERS_SECS < drive_module.JOIN_SECS <= TRAINING_SECS - MEMBERS_SECS / 2
