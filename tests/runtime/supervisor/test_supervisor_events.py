"""What a supervisor tells reaches the chief: its own events too, whatever a role's last words were."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.chief.service import ChiefService
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.interfaces.messages import STARTED_FIRST, RoleEvent
from hybridsync.interfaces.ports import ChiefPort
from hybridsync.runtime.supervisor.supervisor import Outbox
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.codec import decode, encode, parse
from tests.chief.chiefs import Chief


class Wired(ChiefService):
    """A service that hears every event as it comes over the wire."""

    def role_started(self, event: RoleEvent) -> None:
        super().role_started(over_the_wire(event))

    def role_lost(self, event: RoleEvent) -> None:
        super().role_lost(over_the_wire(event))


def over_the_wire(event: RoleEvent) -> RoleEvent:
    return decode(RoleEvent, parse(pb.RoleEvent, encode(event).SerializeToString()))


def event_of(role: str, role_id: int, reason: str = STARTED_FIRST, unit: int = -1) -> RoleEvent:
    return RoleEvent(role, role_id, 17, reason, 1.0, unit)


def delivered(*lost: RoleEvent) -> tuple[Chief, list[str]]:
    """Return a chief to which a supervisor of a server and two workers has told what it started and lost."""
    chief, said = Chief(RunState(Ledger(20), 2, "schema", SYSTEM_CLOCK, RunStateSpec(lease_secs=math.inf))), list[str]()
    service = Wired(chief.state)
    outbox = Outbox(lambda address: service, said.append)
    for role, role_id in (("supervisor", 0), ("chief", 0), ("server", 0), ("worker", 0), ("worker", 1)):
        outbox.started(event_of(role, role_id))
    for event in lost:
        outbox.report_lost(event)
    outbox.deliver("somewhere")
    return chief, said


def test_every_event_of_a_supervisor_reaches_the_chief() -> None:
    chief, said = delivered(event_of("worker", 1, "signal SIGKILL"), event_of("chief", 0, "exit 70"))
    assert [(event.role, event.id) for event in chief.state.take_reports().lost] == [("worker", 1), ("chief", 0)]
    assert not said


def test_last_words_of_several_lines_and_of_any_length_are_told() -> None:
    chief, said = delivered(event_of("worker", 1, "exit 1: a trace\nof two lines\x1b[31m " + "x" * 9000))
    (lost,) = chief.state.take_reports().lost
    assert lost.reason.startswith("exit 1: a trace") and lost.reason.isprintable()
    assert not said


def test_an_event_that_the_chief_refuses_keeps_nothing_back() -> None:
    chief, said = delivered(event_of("worker", 9, "exit 1"), event_of("worker", 0, "exit 1", unit=3))
    assert [event.id for event in chief.state.take_reports().lost] == [0]
    assert len(said) == 1 and "worker 9" in said[0]


def test_a_chief_that_is_asked_to_stop_knows_the_refusal_by_then_and_nothing_else_delays_it() -> None:
    order: list[str] = []

    class Chief:
        def role_started(self, event: RoleEvent) -> None:
            order.append(f"{event.role} started")

        def role_lost(self, event: RoleEvent) -> None:
            order.append(f"{event.role} lost")

        def preempt(self) -> None:
            order.append("preempt")

    for is_refusal in (True, False):
        outbox = Outbox(lambda address: cast("ChiefPort", Chief()), print)
        outbox.report_lost(replace(event_of("worker", 0, "exit 1"), is_refusal=is_refusal))
        outbox.started(event_of("server", 0))
        outbox.preempt()
        outbox.deliver("somewhere")
    assert order == ["worker lost", "preempt", "server started", "preempt", "worker lost", "server started"]
