"""A lock-step member whose unit is not fit for the total: everybody leaves it out alike."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from hybridsync.applylog import FileApplyLog, read
from hybridsync.clock import SYSTEM_CLOCK
from hybridsync.config import EmulationConfig
from hybridsync.messages import LeaseReply, LeaseRequest
from hybridsync.paths.collective import Rendezvous
from hybridsync.paths.emulation import Emulation
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.replica import Replica
from hybridsync.paths.sync import SyncEngine
from hybridsync.plan import Phase
from hybridsync.step import Programs
from tests.roles import Start, counts, phase_of, tally_programs

MEMBERS = (2, 0, 1)


class Chief:
    """Hands out units 0 to 7 at once: three steps, the last one of two."""

    def lease(self, request: LeaseRequest) -> LeaseReply:
        return LeaseReply(((0, 8),)[request.known :], final=True)


class Spoiling:
    """The tally's programs, with an entry that is no number in the contributions of some units."""

    def __init__(self, programs: Programs, units: set[int]) -> None:
        self._programs, self._units = programs, units

    def __getattr__(self, name: str):
        return getattr(self._programs, name)

    def gradient(self, parameters, unit: int):
        contribution = self._programs.gradient(parameters, unit)
        if unit not in self._units:
            return contribution
        floats = contribution["floats"]
        grads = {"tally": floats["grads"]["tally"].at[5].set(jnp.inf)}
        return {**contribution, "floats": {**floats, "grads": grads}}


def run(tmp_path, bad: set[int]):
    """Run one phase of three members in threads; returns its capture, state, entries and the members' recorders."""
    start, programs = Start(), Spoiling(tally_programs(), bad)
    replica = Replica(programs, start.reader_at, SYSTEM_CLOCK, FileApplyLog(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, end=8, capture=start.capture)
    rendezvous = Rendezvous(MEMBERS, programs.total, deadline_secs=30.0)
    recorders = [WorkerRecorder(worker, SYSTEM_CLOCK, False) for worker in range(3)]
    emulation = Emulation(EmulationConfig(), 8)
    entered = threading.Barrier(3, timeout=30.0)

    def collective_of(_: Phase) -> Rendezvous:
        entered.wait()
        return rendezvous

    def member(worker: int) -> None:
        recorders[worker].enter(phase.epoch)
        SyncEngine(
            worker, Chief(), programs, replica, collective_of, recorders[worker], emulation, ahead=None
        ).run(phase)

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(member, worker) for worker in range(3)]:
            done.result(timeout=60)
    capture = replica.capture(phase.epoch, final=True)
    buffer = tally_programs().state_layout.empty()
    replica.read(capture.capture_id, buffer)
    return capture, tally_programs().state_layout.unpack(buffer), list(read(tmp_path / "log")), recorders


def test_a_unit_that_is_not_finite_is_left_out_and_the_rate_is_that_of_the_others(tmp_path):
    capture, state, entries, recorders = run(tmp_path, {0, 4})
    assert counts(state)[:9] == [0, 1, 1, 1, 0, 1, 1, 1, 0]
    assert (capture.applied, capture.dropped) == (((1, 4), (5, 8)), ((0, 1), (4, 5)))
    assert [(entry.units, entry.slots, entry.rate, entry.weight) for entry in entries] == [
        ((1, 2), (1, 2), 2.0, 2.0),
        ((3, 5), (0, 2), 2.0, 2.0),
        ((6, 7), (), 2.0, 2.0),
    ]
    reports = [recorder.drain() for recorder in recorders]
    reason = "non_finite: leaf floats/grads/tally, first index [5]"
    assert reports[2].dropped == ((0, reason), (4, reason)), "worker 2 is the mesh's first member"
    assert reports[2].applied == ((1, 4), (5, 8))
    assert [(report.applied, report.dropped) for report in reports[:2]] == [((), ())] * 2
    assert [report.completed for report in reports] == [8] * 3


def test_a_step_without_any_finite_unit_changes_nothing_but_the_position(tmp_path):
    capture, state, entries, _ = run(tmp_path, {3, 4, 5})
    assert counts(state)[:9] == [1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert (capture.held.sequence, capture.held.units, capture.dropped) == (2, 5, ((3, 6),))
    assert [entry.sequence for entry in entries] == [1, 2]
    assert int(state.counters["units"]) == 5


@pytest.mark.parametrize("bad", [{7}, {6, 7}])
def test_a_short_last_step_can_lose_its_units_too(tmp_path, bad):
    capture, state, _, _ = run(tmp_path, bad)
    assert counts(state)[:9] == [int(unit not in bad) for unit in range(8)] + [0]
    assert capture.held.units == 8 - len(bad)
