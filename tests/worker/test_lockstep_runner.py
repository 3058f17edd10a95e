"""A lock-step member whose unit is not fit for the total: everybody leaves it out alike."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.collectives.threads import ThreadCommunicator
from hybridsync.config import EmulationConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.step_assignment import StepAssignment, contribution_of
from hybridsync.emulation.device import Emulation
from hybridsync.interfaces.messages import GroupReply, GroupRequest, LeaseReply, LeaseRequest, PhaseReply, PhaseRequest
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import WorkPort
from hybridsync.protocols.bsp import Bsp
from hybridsync.storage.apply_log import FileApplyLog, read
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.state import initial_state
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.lockstep_runner import lockstep_runner
from hybridsync.worker.replica import Replica
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import Start, counts, phase_of, tally_programs
from tests.tasks import UNIT_SIZE, mlp_task, plain_sgd, programs_of

MEMBERS = (2, 0, 1)


class Chief(WorkPort):
    """Hands out units 0 to 7 at once: three steps, the last one of two."""

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        raise AssertionError("who runs a phase asks for no other")

    def lease(self, request: LeaseRequest) -> LeaseReply:
        return LeaseReply(((0, 8),)[request.known :], final=True)

    def join_group(self, request: GroupRequest) -> GroupReply:
        raise AssertionError("a lock-step phase has no groups")


class Spoiling:
    """The tally's programs, with an entry that is no number in the contributions of some units."""

    def __init__(self, programs: Programs, units: set[int]) -> None:
        self._programs, self._units = programs, units

    def __getattr__(self, name: str):
        return getattr(self._programs, name)

    def gradient(self, parameters, unit: int, wire: str = "float32", worker: int = 0, batch=None):
        contribution = self._programs.gradient(parameters, unit, wire, worker, batch)
        if unit not in self._units:
            return contribution
        floats = contribution["floats"]
        grads = {"tally": floats["grads"]["tally"].at[5].set(jnp.inf)}
        return {**contribution, "floats": {**floats, "grads": grads}}


def run(tmp_path, bad: set[int], shares: tuple[int, ...] = ()):
    """Run one phase of three members in threads; returns its snapshot, state, entries and the members' recorders."""
    start, programs = Start(), cast("Programs", Spoiling(tally_programs(), bad))  # it passes the rest on
    replica = Replica(programs, start.reader_at, SYSTEM_CLOCK, FileApplyLog(tmp_path / "log"))
    phase = phase_of(1, "bsp", members=MEMBERS, end=8, snapshot=start.snapshot, shares=shares)
    communicator = ThreadCommunicator(MEMBERS, programs.total, deadline_secs=30.0)
    recorders = [WorkerRecorder(worker, SYSTEM_CLOCK, False, keep_unit_secs=True) for worker in range(3)]
    emulation = Emulation(EmulationConfig(), 8)
    entered = threading.Barrier(3, timeout=120)

    def communicator_of(_: Phase) -> ThreadCommunicator:
        entered.wait()
        return communicator

    def member(worker: int) -> None:
        recorders[worker].enter(phase.id)
        context = WorkerContext(worker, Chief(), programs, recorders[worker], emulation)
        lockstep_runner(context, replica, communicator_of, ahead=None).run(phase)

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(member, worker) for worker in range(3)]:
            done.result(timeout=120)
    snapshot = replica.take_snapshot(phase.id, final=True)
    buffer = tally_programs().state_layout.empty()
    replica.read(snapshot.snapshot_id, buffer)
    return snapshot, tally_programs().state_layout.unpack(buffer), list(read(tmp_path / "log")), recorders


def test_a_unit_that_is_not_finite_is_left_out_and_the_rate_is_that_of_the_others(tmp_path):
    snapshot, state, entries, recorders = run(tmp_path, {0, 4})
    assert counts(state)[:9] == [0, 1, 1, 1, 0, 1, 1, 1, 0]
    assert (snapshot.applied, snapshot.dropped) == (((1, 4), (5, 8)), ((0, 1), (4, 5)))
    assert [(entry.units, entry.slots, entry.rate, entry.weight) for entry in entries] == [
        ((1, 2), (1, 2), 2.0, 2.0),
        ((3, 5), (0, 2), 2.0, 2.0),
        ((6, 7), (), 2.0, 2.0),
    ]
    reports = [recorder.take_report() for recorder in recorders]
    reason = "non_finite: leaf floats/grads/tally, first index [5]"
    assert reports[2].dropped == ((0, reason), (4, reason)), "worker 2 is the mesh's first member"
    assert reports[2].applied == ((1, 4), (5, 8))
    assert [(report.applied, report.dropped) for report in reports[:2]] == [((), ())] * 2
    assert [report.completed for report in reports] == [8] * 3


def test_a_step_without_any_finite_unit_changes_nothing_but_the_position(tmp_path):
    snapshot, state, entries, _ = run(tmp_path, {3, 4, 5})
    assert counts(state)[:9] == [1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert (snapshot.held.sequence, snapshot.held.units, snapshot.dropped) == (2, 5, ((3, 6),))
    assert [entry.sequence for entry in entries] == [1, 2]
    assert int(state.counters["units"]) == 5


@pytest.mark.parametrize("bad", [{7}, {6, 7}])
def test_a_short_last_step_can_lose_its_units_too(tmp_path, bad):
    snapshot, state, _, _ = run(tmp_path, bad)
    assert counts(state)[:9] == [int(unit not in bad) for unit in range(8)] + [0]
    assert snapshot.held.units == 8 - len(bad)


def test_a_member_takes_as_many_units_of_a_step_as_its_share_says(tmp_path):
    snapshot, state, entries, recorders = run(tmp_path, set(), shares=(3, 0, 2))
    assert counts(state)[:9] == [1] * 8 + [0]
    assert [(entry.units, entry.slots, entry.rate) for entry in entries] == [
        ((0, 1, 2, 3, 4), (), 5.0),
        ((5, 6, 7), (), 3.0),
    ]
    reports = [recorder.take_report() for recorder in recorders]
    assert [report.num_losses for report in reports] == [0, 3, 5], "worker 2 is first, worker 0 has none"
    assert [len(report.unit_secs) for report in reports] == [0, 2, 4], "each unit by itself; the last one is not told"
    assert [report.completed for report in reports] == [8] * 3
    assert snapshot.applied == ((0, 8),)


def test_of_a_members_units_only_those_that_are_not_finite_are_left_out(tmp_path):
    """With shares of 3, 0 and 2 the units of a step are those of members 0, 2, 0, 0, 2."""
    snapshot, state, entries, recorders = run(tmp_path, {2, 4, 5}, shares=(3, 0, 2))
    assert counts(state)[:9] == [1, 1, 0, 1, 0, 0, 1, 1, 0]
    assert [(entry.units, entry.slots, entry.rate, entry.weight) for entry in entries] == [
        ((0, 1, 3), (0, 1, 3), 3.0, 3.0),
        ((6, 7), (1, 2), 2.0, 2.0),
    ]
    assert [unit for unit, _ in recorders[2].take_report().dropped] == [2, 4, 5]
    assert snapshot.dropped == ((2, 3), (4, 6))


def test_a_step_by_shares_is_the_update_by_the_mean_of_its_units_gradients():
    """One step of 13 units of four members, against the same on one device."""
    programs = programs_of(mlp_task(), plain_sgd(0.01), unit_size=UNIT_SIZE, workload=64)
    start = jax.device_get(initial_state(programs.task, programs.optimizer, 0))
    parameters = Parameters(start.params, start.model_state)
    gradients = [programs.gradient(parameters, unit)["floats"]["grads"] for unit in range(13)]
    mean = jax.tree.map(lambda *leaves: np.mean(np.asarray(leaves, np.float64), axis=0), *gradients)
    expected = jax.tree.map(lambda p, g: p - 13 * 0.01 * g, start.params, mean)

    assignment = StepAssignment((4, 4, 1, 4))
    contributions = [contribution_of(programs, parameters, assignment.of(member, range(13))) for member in range(4)]
    total = programs.total(tuple(contributions))
    state = programs.update(jax.device_put(start), total, units=13, factor=Bsp().lr_factor(13, 4), blend=1.0)
    assert float(total["floats"]["weight"]) == 13.0
    for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
