"""A hand-over over a slow link: it takes longer than the server's lease, and costs nothing but its time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest

from hybridsync.chief.ledger import Ledger
from hybridsync.chief.run_state import RunState, RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import RoleLost
from hybridsync.core.plan import NO_PHASE
from hybridsync.interfaces.messages import Hello
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.phases import entry as entering_module
from hybridsync.phases.entry import ServerEntry
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import LentView, SnapshotBuffer
from hybridsync.training.state import initial_state
from hybridsync.transport.directory import Readers
from hybridsync.transport.grpc.parameter_server import ParameterClient, PhaseServicer
from hybridsync.transport.grpc.snapshot_source import SnapshotServicer
from tests.chief.chiefs import Chief
from tests.roles import phase_of
from tests.tasks import plain_sgd, programs_of, tally_task
from tests.telemetry.clocks import ManualClock
from tests.transport.conftest import holder_at
from tests.transport.relay import Relay

UNITS = 250_000
"""Of a tally: a state of a megabyte."""
HAND_OVER_SECS, LEASE_SECS, BEAT_SECS = 1.0, 1.5, 0.05
BEATS_SECS = 0.1
"""Of the chief's clock, which goes on with each heartbeat: a heartbeat's thread that is late ends no lease."""
SECS = 60.0


@functools.cache
def programs() -> Programs:
    return programs_of(tally_task(UNITS), plain_sgd(1.0), unit_size=1, workload=UNITS)


class ServedPrimary:
    """A primary, and the holder of its starting state behind a slow link, who lends it when `go_on` is set."""

    def __init__(self, serve: Callable[..., str], closing: Callable[[Any], Any], hand_over_secs: float) -> None:
        layout = programs().state_layout
        snapshot_buffer = SnapshotBuffer(layout)
        snapshot_buffer.pack(jax.device_get(initial_state(programs().task, programs().optimizer, 0)))
        snapshot = snapshot_buffer.finalize(NO_PHASE, sequence=0, applied=())
        self.go_on = threading.Event()
        holder = serve(SnapshotServicer(_Holder(snapshot_buffer, self.go_on)))
        self.relay = closing(Relay(holder, layout.nbytes / hand_over_secs))
        self.readers = closing(Readers(holder_at))
        pool = ParameterPool(programs().parameters_layout)
        log, completed = NullApplyLog(), threading.Event()
        self.primary = Primary(programs(), pool, self.readers, SYSTEM_CLOCK, log, completed)
        self.address = serve(PhaseServicer(self.primary))
        self.client = closing(ParameterClient(self.address, state_bytes=layout.nbytes))
        self.num_bytes = layout.nbytes
        self.phase = phase_of(snapshot=snapshot, source=self.relay.address, servers=(self.address,), end=UNITS)


class _Holder:
    """A snapshot's holder as a role: it captures nothing."""

    def __init__(self, snapshot_buffer: SnapshotBuffer, go_on: threading.Event) -> None:
        self._lend, self.read, self._go_on = snapshot_buffer.lend, snapshot_buffer.read, go_on

    def lend(self, snapshot_id: int) -> LentView:
        assert self._go_on.wait(SECS), "no heartbeat was answered for as long as a lease"
        return self._lend(snapshot_id)

    def take_snapshot(self, phase_id: Any, final: bool, place: int = 0) -> Any:
        raise AssertionError("nothing is captured here")


def test_a_hand_over_that_takes_longer_than_the_lease_costs_no_server(
    serve: Callable[..., str], closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entering_module, "SAY_SECS", 0.2)
    served = ServedPrimary(serve, closing, HAND_OVER_SECS)
    evicted: list[Any] = []
    clock = ManualClock()
    chief = Chief(
        RunState(Ledger(UNITS), 1, "schema", clock, RunStateSpec(lease_secs=LEASE_SECS, evict=evicted.append))
    )
    chief.service.register(Hello("server", 0, 99, "host", served.address, "schema", "0.1.0.dev0"))
    over = threading.Event()

    def beat() -> None:
        began: float | None = None
        while not over.wait(BEAT_SECS):
            told = served.primary.take_report()
            clock.advance(BEATS_SECS)
            chief.service.report(Report("server", 0, 1, told.phase_id, doing=told.doing))
            if told.doing == ENTERING:
                began = began or clock.now
                if clock.now - began > LEASE_SECS:
                    served.go_on.set()

    def expire() -> None:
        with chief.control.turn() as state:
            state.expire()

    notes: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        heartbeat = threads.submit(beat)
        try:
            servers = {served.address: served.client}
            entering = ServerEntry(chief.control, SYSTEM_CLOCK, expire, notes.append)
            entering.enter(served.phase, servers, served.num_bytes)
        finally:
            over.set()
        heartbeat.result(SECS)
    assert evicted == [] and served.primary.phase_id == served.phase.id
    assert any("servers [0] are fetching it" in note for note in notes)


def test_a_server_that_ends_breaks_off_the_hand_over(serve: Callable[..., str], closing: Callable[[Any], Any]) -> None:
    served = ServedPrimary(serve, closing, hand_over_secs=SECS)
    served.go_on.set()
    with ThreadPoolExecutor(1) as threads:
        entering = threads.submit(served.client.enter, served.phase)
        deadline = SYSTEM_CLOCK.monotonic() + SECS
        while not served.relay.num_callers:
            assert SYSTEM_CLOCK.monotonic() < deadline
        while not entering.done():
            served.readers.close()
        with pytest.raises(RoleLost):
            entering.result(SECS)
    assert served.primary.phase_id == NO_PHASE and served.primary.take_report().doing == ""
