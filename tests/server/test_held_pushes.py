"""Pushes that a protocol holds: the same units find them again, whoever gave up waiting, and are applied once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import grpc
import jax
import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.core.errors import StalePhase, StillHeld, WaitTimeout
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import Apply, Arrival, Release, ServerRule
from hybridsync.server import primary as primary_module
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.partition import partition
from hybridsync.server.publisher import DevicePublisher, ParameterPool
from hybridsync.server.server_core import HeldCall
from hybridsync.trainer import Trainer
from hybridsync.transport.grpc import parameter_server
from hybridsync.transport.grpc.channels import make_server
from hybridsync.transport.grpc.parameter_server import ParameterClient, ParameterServicer
from hybridsync.transport.grpc.transport import GrpcTransport
from hybridsync.worker.link import ServerLink
from tests.roles import Start, counts, gradient_of, phase_of, push_of, tally_programs
from tests.server.cluster import until_held
from tests.transport.copying import packed_link

UNITS = 8


class InTwos(ServerRule):
    """Holds a push until there are two, and makes one update of both; a worker's leaving applies what is left."""

    def __init__(self) -> None:
        self.held: list[Arrival] = []

    def on_push(self, arrival):
        self.held.append(arrival)
        return self.release() if len(self.held) == 2 else []

    def on_leave(self, worker):
        self.held = [arrival for arrival in self.held if arrival.worker != worker]
        return self.release() if self.held else []

    def release(self):
        pushes, self.held = tuple(arrival.push_id for arrival in self.held), []
        return [Apply(pushes, lr_factor=float(len(pushes))), *map(Release, pushes)]


class Gate(InTwos):
    """Applies on arrival, and holds the answer until two have pushed."""

    def on_push(self, arrival):
        return [Apply((arrival.push_id,), lr_factor=1.0), *super().on_push(arrival)]

    def release(self):
        return super().release()[1:]


class Early(InTwos):
    """Answers at once, and applies later."""

    def on_push(self, arrival):
        return [Release(arrival.push_id), *super().on_push(arrival)]

    def release(self):
        return super().release()[:1]


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (InTwos, Gate, Early):

        class HeldByRule(Asp):
            name: ClassVar[str] = made.__name__.lower()
            held_by: ClassVar[type[ServerRule]] = made

            def server_rule(self, members: tuple[int, ...]) -> ServerRule:
                return self.held_by()

        monkeypatch.setitem(protocols.REGISTRY, HeldByRule.name, HeldByRule)


class ServedPrimary:
    """A primary in a phase, and a way to it for each worker."""

    def __init__(self, spec: str, *, remote: bool) -> None:
        start = Start()
        programs = tally_programs()
        publisher = ParameterPool(programs.parameters_layout) if remote else DevicePublisher()
        self.primary = start.primary(publisher=publisher)
        self.phase: Phase = phase_of(1, spec, snapshot=start.snapshot, members=(0, 1, 2), end=UNITS)
        self.primary.enter(self.phase)
        self.server: grpc.Server | None = None
        self.address = ""
        self.links: dict[int, ServerLink] = {}
        if remote:
            endpoint = Endpoint(self.primary, programs.contribution_layout)
            servicer = ParameterServicer(endpoint, programs.contribution_layout.nbytes, num_buffers=5)
            self.server, self.address = make_server([servicer], max_workers=13)
            self.server.start()
            parts = partition(programs, 1)
            self.links = {worker: GrpcTransport().link((self.address,), parts) for worker in range(3)}

    def push(self, unit: int, worker: int) -> tuple[PushReply, list[int]]:
        """Push a unit as one worker; returns the reply and how often each unit was applied by then."""
        push = push_of(self.phase, unit, worker=worker)
        call: Callable[[Push, Any], tuple[PushReply, Any]]
        call = self.links[worker].push_pull if self.links else self.primary.push_pull
        reply, parameters = call(push, gradient_of(unit))
        return reply, [round(-float(value)) for value in np.asarray(parameters.params["tally"])[:UNITS]]

    def final(self) -> list[int]:
        snapshot = self.primary.take_snapshot(self.phase.id, final=True)
        return self.counts(snapshot.snapshot_id)

    def counts(self, snapshot_id: int) -> list[int]:
        layout = tally_programs().state_layout
        buffer = layout.empty()
        self.primary.read(snapshot_id, buffer)
        return counts(layout.unpack(buffer))[:UNITS]

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        if self.server is not None:
            assert self.server.stop(grace=None).wait(60)


@pytest.fixture(params=["threads", "messages", "chunks"])
def serve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ServedPrimary]]:
    if request.param == "chunks":
        monkeypatch.setattr(parameter_server, "SMALL_BYTES", 0)
    served: list[ServedPrimary] = []

    def start(spec: str) -> ServedPrimary:
        served.append(ServedPrimary(spec, remote=request.param != "threads"))
        return served[-1]

    yield start
    for each in served:
        each.close()


def applied(*units: int) -> list[int]:
    return [int(unit in units) for unit in range(UNITS)]


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.02)


def test_the_same_units_find_the_held_push_again_and_wait_for_its_release(serve, monkeypatch):
    impatient(monkeypatch)
    served = serve("intwos")
    for _ in range(7):  # more often than there are receive buffers
        with pytest.raises(StillHeld, match=r"worker 0 with units \(3,\) is still held by intwos"):
            served.push(3, worker=0)
    monkeypatch.setattr(primary_module, "HELD_SECS", 20.0)
    with ThreadPoolExecutor(1) as threads:
        again = threads.submit(served.push, 3, 0)
        assert served.push(4, worker=1) == (PushReply(1), applied(3, 4))
        assert again.result(timeout=120)[1] == applied(3, 4)
    assert served.push(3, worker=0)[0].duplicate
    assert served.final() == applied(3, 4)


def test_a_push_released_while_nobody_waits_is_answered_when_it_is_asked_for(serve, monkeypatch):
    impatient(monkeypatch)
    served = serve("intwos")
    with pytest.raises(StillHeld):
        served.push(3, worker=0)
    assert served.push(4, worker=1) == (PushReply(1), applied(3, 4))
    reply, seen = served.push(3, worker=0)
    assert (reply.sequence, reply.dropped, seen) == (1, "", applied(3, 4))
    assert served.primary._sequencer.num_held == 0


def test_what_others_push_meanwhile_does_not_spoil_what_is_held(serve, monkeypatch):
    """A receive buffer is filled again as soon as its call has ended."""
    impatient(monkeypatch)
    served = serve("intwos")
    for unit, worker in [(3, 0), (3, 1), (3, 2)]:
        with pytest.raises(StillHeld):
            served.push(unit, worker)
    assert served.push(5, worker=1)[1] == applied(3, 5)
    with pytest.raises(StillHeld):
        served.push(6, worker=1)
    assert served.push(7, worker=2)[1] == applied(3, 5, 6, 7)


def test_an_answer_that_is_held_stays_held_though_the_units_are_applied(serve, monkeypatch):
    impatient(monkeypatch)
    served = serve("gate")
    for _ in range(3):
        with pytest.raises(StillHeld):
            served.push(3, worker=0)
    reply, seen = served.push(3, worker=2)
    assert (reply.duplicate, seen) == (True, applied(3)), "another worker that had the unit too waits for nobody"
    assert served.push(4, worker=1) == (PushReply(2), applied(3, 4))
    assert served.push(3, worker=0)[0].sequence == 2
    assert served.final() == applied(3, 4)


def test_a_push_answered_before_it_is_applied_is_applied_once(serve):
    served = serve("early")
    assert served.push(3, worker=0) == (PushReply(0), applied())
    assert served.push(3, worker=0) == (PushReply(0), applied()), "the reply was lost"
    assert served.push(4, worker=0)[1] == applied(3, 4)
    assert served.push(3, worker=0)[0].duplicate
    assert served.final() == applied(3, 4)


def test_a_push_that_shares_a_unit_with_a_held_one_waits_for_its_fate():
    served = ServedPrimary("intwos", remote=False)
    both = push_of(served.phase, 3, 5, worker=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(served.push, 3, 0)
        until_held(served.primary, 1)
        second = threads.submit(served.primary.push_pull, both, jax.tree.map(np.add, gradient_of(3), gradient_of(5)))
        with pytest.raises(TimeoutError):
            second.result(timeout=0.1)
        served.push(4, worker=2)
        assert first.result(timeout=120)[1] == applied(3, 4)
        assert second.result(timeout=120)[0].duplicate
    assert served.final() == applied(3, 4)


def test_a_worker_lost_behind_the_final_snapshot_changes_the_state_no_more():
    served = ServedPrimary("intwos", remote=False)
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(served.push, 3, 0)
        until_held(served.primary, 1)
        snapshot = served.primary.take_snapshot(served.phase.id, final=True)
        with pytest.raises(StalePhase):
            held.result(timeout=120)
    served.primary.fence(served.phase.id, worker=1, incarnation=1)
    assert served.primary.take_report().applied == () == snapshot.applied
    assert served.final() == applied()


def test_a_client_that_gives_up_leaves_its_push_to_the_next_call(monkeypatch):
    monkeypatch.setattr(parameter_server, "SMALL_BYTES", 0)
    served = ServedPrimary("intwos", remote=True)
    hasty = ParameterClient(served.address, deadline_secs=0.3, who="server 0")
    link, served.links[0] = served.links[0], packed_link(partition(tally_programs(), 1), hasty)
    try:
        with pytest.raises(WaitTimeout) as gave_up:
            served.push(3, worker=0)
        assert not isinstance(gave_up.value, StillHeld)
        served.links[0].close()
        served.links[0] = link
        with ThreadPoolExecutor(1) as threads:
            again = threads.submit(served.push, 3, 0)
            assert served.push(4, worker=1)[1] == applied(3, 4)
            assert again.result(timeout=120)[1] == applied(3, 4)
        assert served.final() == applied(3, 4)
    finally:
        served.close()


def test_training_goes_on_over_pushes_that_are_held_longer_than_a_call(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.002)
    overrides = ["workers=2", "workload=60", "plan=intwos", "drain_secs=0.2"]
    Trainer.from_config("configs/tally.py", overrides, workdir=tmp_path, progress=False).fit()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["final"]["min_count"], summary["final"]["max_count"]) == (1, 1)
    assert summary["units"]["applied"] == 60


def test_a_held_push_whose_caller_wakes_up_in_the_next_phase_hears_that_its_own_is_over() -> None:
    """Parameters of the next phase, of another size with another wire, are not what it waits for."""
    start = Start()
    primary = start.primary()
    phase = phase_of(1, "bsp_server", members=(0, 1), snapshot=start.snapshot)
    primary.enter(phase)
    released = HeldCall(push_of(phase, 3), outcome=PushReply(1))
    primary.enter(phase_of(2, "asp", members=(0, 1), snapshot=start.snapshot))
    with primary._condition, pytest.raises(StalePhase):
        primary._await(released, "is held by", "push again")
