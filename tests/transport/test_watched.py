"""A call that a role serves is a piece of its work as long as its handler runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.runtime.role.watchdog import Watchdog
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from hybridsync.transport.grpc.interceptors import WATCHED_CALL_SECS, watched_calls
from tests.telemetry.clocks import ManualClock
from tests.transport.conftest import FakeChief

STATE_BYTES = 400_000_000
LIMIT_SECS = WATCHED_CALL_SECS + 4 * transfer_secs(STATE_BYTES)
END_SECS = 60.0


class HangingChief(FakeChief):
    def __init__(self) -> None:
        super().__init__()
        self.called, self.go_on = threading.Event(), threading.Event()

    def lease(self, request: LeaseRequest) -> LeaseReply:
        self.called.set()
        self.go_on.wait(END_SECS)
        return super().lease(request)


def test_a_handler_that_hangs_is_overdue_and_one_that_has_answered_is_not(closing: Callable[[Any], Any]) -> None:
    chief, clock = HangingChief(), ManualClock()
    watchdog = Watchdog("chief 0", clock=clock)
    server, address = make_server([ChiefServicer(chief)], interceptors=[watched_calls(watchdog, STATE_BYTES)])
    server.start()
    client = closing(ChiefClient(address, deadline_secs=END_SECS))
    caller = threading.Thread(target=client.lease, args=(LeaseRequest(1, 1, NO_PHASE, 0, 0),))
    caller.start()
    try:
        assert chief.called.wait(END_SECS)
        for _ in range(round(LIMIT_SECS)):
            assert watchdog.find_overdue() == []
            clock.advance(1.0)
        assert watchdog.find_overdue() == []
        clock.advance(1.0)
        assert [each.name for each in watchdog.find_overdue()] == ["the call /hybridsync.Chief/Lease"]
        chief.go_on.set()
        caller.join(END_SECS)
        assert not caller.is_alive() and watchdog.find_overdue() == []
    finally:
        chief.go_on.set()
        server.stop(grace=None).wait(END_SECS)
