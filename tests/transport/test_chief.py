from __future__ import annotations

import statistics
import time

import pytest

from hybridsync.core.errors import SchemaMismatch, StaleIncarnation
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.commands import StopReply, StopRequest, SwitchReply, SwitchRequest
from hybridsync.interfaces.messages import (
    AppliedUnit,
    GroupReply,
    GroupRequest,
    Hello,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    RoleEvent,
    Welcome,
)
from hybridsync.interfaces.reports import Report, ReportReply, Span
from hybridsync.transport.grpc.chief import ChiefClient, ChiefServicer
from tests.transport.conftest import HELD, PHASE, PHASE_ID, STATUS, UPDATE, FakeChief


@pytest.fixture
def chief() -> FakeChief:
    return FakeChief()


@pytest.fixture
def client(chief: FakeChief, serve, closing) -> ChiefClient:
    return closing(ChiefClient(serve(ChiefServicer(chief)), deadline_secs=10))


def test_every_call_reaches_the_chief_and_brings_its_answer(client: ChiefClient, chief: FakeChief) -> None:
    hello = Hello("worker", 2, 4711, "node", "127.0.0.1:5000", "same", "0.1")
    event = RoleEvent("worker", 2, 4711, "exit 1", 1.5)
    span = Span("compute", "worker", 1.0, 0.25, 3, 8)
    report = Report(
        "server",
        0,
        6,
        PHASE_ID,
        applied=((0, 3),),
        dropped=((3, "late"),),
        staleness=(0, 2),
        loss_sum=1.5,
        spans=(span,),
    )
    asked = [PhaseRequest(2, 6, NO_PHASE, None), PhaseRequest(2, 6, PHASE_ID, HELD)]
    lease = LeaseRequest(2, 6, PHASE_ID, 12, 10)
    assert client.register(hello) == Welcome(2**64 - 2, 1.0, 3.0)
    assert client.next_phase(asked[0]) == PhaseReply(None, done=True)
    assert client.next_phase(asked[1]) == PhaseReply(PHASE)
    assert client.lease(lease) == LeaseReply(((4, 8), (9, 10)), final=True)
    group_round = GroupRequest(2, 6, PHASE_ID, 4, (AppliedUnit(3, 6),), ((9, "non_finite"),), last=True)
    assert client.join_group(group_round) == GroupReply((0, 2), (), 7, 30, True, True, ((0, 30),), ((4, 5),), (UPDATE,))
    assert client.report(report) == ReportReply(PHASE_ID, revoked=True)
    assert client.status() == STATUS
    assert client.switch(SwitchRequest("ssp", "why")) == SwitchReply("ssp", "bsp", 3, 30, True)
    assert client.stop(StopRequest("lunch")) == StopReply(30)
    assert chief.seen[-3:] == ["status", SwitchRequest("ssp", "why"), StopRequest("lunch")]
    del chief.seen[-3:]
    client.role_started(event)
    client.role_lost(event)
    client.preempt()
    assert chief.seen == [hello, *asked, lease, group_round, report, ("started", event), ("lost", event), "preempt"]


def test_errors_of_the_chief_arrive_by_name(client: ChiefClient) -> None:
    with pytest.raises(SchemaMismatch, match="other, the chief has 'same'"):
        client.register(Hello("worker", 2, 4711, "node", "127.0.0.1:5000", "other", "0.1"))
    with pytest.raises(StaleIncarnation, match=r"the run knows 4 — straße\nnew line$"):
        client.lease(LeaseRequest(1, 0, PHASE_ID, 0, 0))


def test_a_lease_takes_well_below_the_time_of_a_unit(client: ChiefClient) -> None:
    request = LeaseRequest(2, 6, PHASE_ID, 12, 10)
    times = []
    for _ in range(100):
        start = time.monotonic()
        client.lease(request)
        times.append(time.monotonic() - start)
    # About .3 ms on a free machine. Where others compute, most leases wait for a processor, and the quickest do not.
    assert statistics.quantiles(times, n=10)[0] < 0.01
