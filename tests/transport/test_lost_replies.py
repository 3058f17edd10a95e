"""A push whose outcome the worker does not learn is asked for again until it does, and applied once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.ports import Answer, ParameterPort
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.publisher import ParameterPool
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.transport.grpc import dialling
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer
from tests.roles import Start, gradient_of, phase_of, push_of, tally_programs
from tests.transport.relay import Relay

SECS = 20.0


class HeldLog(NullApplyLog):
    """An apply log, which holds up the update that it is told of for as long as `go_on` is clear."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.reached.set()
        assert self.go_on.wait(SECS)


class Watched(ParameterPort):
    """A primary's endpoint; `carried_out` is called between a push and its reply."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.arrived = threading.Semaphore(0)
        self.replies: list[PushReply] = []
        self.carried_out: Callable[[], None] = lambda: None

    def pull(self, push: Push) -> Answer:
        return self._endpoint.pull(push)

    def idle(self, push: Push) -> None:
        self._endpoint.idle(push)

    def ready(self, push: Push) -> None:
        self._endpoint.ready(push)

    def begin_push(self, push: Push) -> Callable[[np.ndarray], Answer]:
        offer = self._endpoint.begin_push(push)

        def watched(contribution: np.ndarray) -> Answer:
            self.arrived.release()
            answer = offer(contribution)
            self.replies.append(answer.reply)
            self.carried_out()
            return answer

        return watched


class ServedPrimary:
    """A primary in an asynchronous phase, whose only worker reaches it through a relay."""

    def __init__(self, serve: Callable[..., str], closing: Callable[[Any], Any]) -> None:
        programs = tally_programs()
        start = Start()
        self.log = HeldLog()
        self.primary = start.primary(self.log, publisher=ParameterPool(programs.parameters_layout))
        self.phase = phase_of(snapshot=start.snapshot, members=(0,))
        self.primary.enter(self.phase)
        layout = programs.contribution_layout
        self.watched = Watched(Endpoint(self.primary, layout))
        self.relay = closing(Relay(serve(ParameterServicer(self.watched, layout.nbytes))))
        self.client = closing(ParameterClient(self.relay.address, deadline_secs=SECS))
        self.parameters = np.zeros(programs.parameters_layout.nbytes, np.uint8)

    def push(self, unit: int) -> PushReply:
        layout = tally_programs().contribution_layout
        contribution = layout.empty()
        layout.pack(gradient_of(unit), contribution)
        return self.client.push_pull(push_of(self.phase, unit), contribution, self.parameters)

    def applied(self) -> list[int]:
        """Return how often each of the first units is in the parameters that the worker got."""
        tally = tally_programs().parameters_layout.unpack(self.parameters).params["tally"]
        return [round(-float(value)) for value in tally[:4]]


@pytest.fixture(params=["one message", "frames"])
def served(request, serve, closing, monkeypatch) -> Iterator[ServedPrimary]:
    """Serve it with pushes that go in one message, and with such that go in frames."""
    if request.param == "frames":
        monkeypatch.setattr("hybridsync.transport.grpc.parameter_server.SMALL_BYTES", 0)
    made = ServedPrimary(serve, closing)
    yield made
    made.log.go_on.set()


def test_a_push_whose_reply_was_lost_with_its_connection_is_applied_once(served: ServedPrimary) -> None:
    def lose() -> None:
        served.watched.carried_out = lambda: None
        served.relay.cut()

    served.watched.carried_out = lose
    reply = served.push(2)
    assert (reply.sequence, reply.duplicate) == (1, True)
    assert [(each.sequence, each.duplicate) for each in served.watched.replies] == [(1, False), (1, True)]
    assert served.applied() == [0, 0, 1, 0] and [entry.units for entry in served.log.entries] == [(2,)]
    assert (served.push(3).duplicate, served.applied()) == (False, [0, 0, 1, 1])


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Let channels wait for a ping's answer for a second only."""
    options = dict(dialling._CHANNEL_OPTIONS) | {"grpc.http2.ping_timeout_ms": 1000}
    monkeypatch.setattr(dialling, "_CHANNEL_OPTIONS", list(options.items()))


def test_a_push_whose_reply_never_comes_over_a_silent_connection_is_asked_for_again(
    impatient: None, served: ServedPrimary
) -> None:
    def lose() -> None:
        served.watched.carried_out = lambda: None
        served.relay.lose_replies()

    served.watched.carried_out = lose
    assert served.push(2).duplicate
    assert served.applied() == [0, 0, 1, 0] and len(served.log.entries) == 1
    assert served.relay.num_callers >= 2  # one more for each second that a busy machine answers no ping


def test_a_retry_waits_for_the_result_of_the_push_that_is_being_applied(served: ServedPrimary) -> None:
    served.log.go_on.clear()
    with ThreadPoolExecutor(1) as threads:
        pushed = threads.submit(served.push, 2)
        assert served.log.reached.wait(SECS) and served.watched.arrived.acquire(timeout=SECS)
        served.relay.cut()
        assert served.watched.arrived.acquire(timeout=SECS), "the worker did not ask again"
        assert not pushed.done() and served.watched.replies == []
        served.log.go_on.set()
        reply = pushed.result(timeout=SECS)
    assert (reply.sequence, reply.duplicate) == (1, True)
    assert served.applied() == [0, 0, 1, 0] and [entry.units for entry in served.log.entries] == [(2,)]
