"""The engine of a phase with local updates, driven by hand: when it begins anew."""

from __future__ import annotations

from typing import Any

from hybridsync.interfaces.messages import LeaseReply, PushReply
from hybridsync.lab.simulator.arithmetic import Counting, Sizes
from hybridsync.worker.local_engine import LocalEngine
from hybridsync.worker.requests import CallServer, ComputeUnit, LeaseUnits
from tests.worker.scripted import Script, member_of


def test_a_worker_that_was_idle_in_place_of_a_dropped_unit_begins_anew() -> None:
    leases = [((0, 1),), (), ((1, 2),), ()]
    numerics = Counting(Sizes(1, 1, 1), unfit=frozenset({0}))
    called: list[tuple[str, int]] = []
    computed: list[tuple[int, Any]] = []

    def answer(request: Any) -> Any:
        if isinstance(request, LeaseUnits):
            ranges = leases.pop(0)
            return LeaseReply(ranges, final=not leases)
        if isinstance(request, ComputeUnit):
            computed.append((request.unit, request.parameters))
            return numerics.gradient(request.parameters, request.unit)
        assert isinstance(request, CallServer)
        called.append((request.verb, request.push.restart_count))
        if request.verb == "download_opt_state":
            return PushReply(0), 1
        return PushReply(request.push.restart_count), 100 + request.push.restart_count

    engine = LocalEngine(member_of("psplus(overlap=false)"), numerics, ahead=False)
    Script(answer).drive(engine.run())
    assert computed == [(0, 100), (1, 101)], "on what it pulled after its idleness"
    assert called.index(("idle", 0)) < called.index(("pull", 1))
    assert called[-2:] == [("push_pull", 1), ("upload_opt_state", 1)]
