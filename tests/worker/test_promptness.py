"""A thread that is blocked in any wait of its phase leaves it soon after the phase was revoked."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.collectives.threads import ThreadCommunicator
from hybridsync.config import EmulationConfig
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, PhaseRevoked, RoleLost
from hybridsync.core.plan import PhaseId
from hybridsync.emulation.device import Emulation
from hybridsync.interfaces.messages import (
    GroupReply,
    GroupRequest,
    LeaseReply,
    LeaseRequest,
    PhaseReply,
    PhaseRequest,
    Push,
    PushReply,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.storage.apply_log import NullApplyLog
from hybridsync.training.compiled_programs import Parameters
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.drive_threads import drive
from hybridsync.worker.group_runner import group_runner
from hybridsync.worker.lockstep_runner import lockstep_runner
from hybridsync.worker.replica import Replica
from hybridsync.worker.requests import IO, CallServer, Join
from hybridsync.worker.requests import Start as StartRequest
from hybridsync.worker.server_runner import ServerRunner, carriers_of
from hybridsync.worker.stats import WorkerRecorder
from tests.roles import Start, phase_of, push_of, tally_programs, tally_state

SECS = 20.0
"""Within which a blocked thread leaves; nothing else would end its wait for ten minutes."""


class Chief:
    """Gives units at once; a group is complete, or never."""

    def __init__(self, group: GroupReply | None = None) -> None:
        self._group = group
        self.asked = threading.Event()

    def next_phase(self, request: PhaseRequest) -> PhaseReply:
        raise AssertionError("who runs a phase asks for no other")

    def lease(self, request: LeaseRequest) -> LeaseReply:
        return LeaseReply(((0, 32),)[request.known :], final=True)

    def join_group(self, request: GroupRequest) -> GroupReply:
        self.asked.set()
        if self._group is not None:
            return self._group
        threading.Event().wait(0.01)
        return GroupReply((), missing=(1,))


class Link:
    """Answers the first push, and holds the second until it is closed."""

    def __init__(self, held: str) -> None:
        self._held, self._closed, self.is_held = held, threading.Event(), threading.Event()
        self._num_pushes = self._num_pulls = 0
        self.uploads: list[tuple[int, ...]] = []

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        self._num_pulls += 1
        if self._num_pulls > 2:
            self._hold("pull")
        return PushReply(0), Parameters(tally_state().params, tally_state().model_state)

    def prepare(self, contribution: Any) -> None:
        pass

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        self._num_pushes += 1
        if self._num_pushes > 1:
            self._hold("push_pull")
        return self.pull(push)

    def push(self, push: Push, contribution: Any) -> PushReply:
        assert push.push_only
        self._num_pushes += 1
        if self._num_pushes > 1:
            self._hold("push")
        return PushReply(0)

    def ready(self, push: Push) -> None:
        self._hold("ready")

    def idle(self, push: Push) -> None:
        self._hold("idle")

    def download_opt_state(self, push: Push) -> Any:
        return tally_state().opt_state

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        self.uploads.append(push.units)

    def close(self) -> None:
        self._closed.set()

    def _hold(self, what: str) -> None:
        if what == self._held:
            self.is_held.set()
            assert self._closed.wait(600.0)
            raise RoleLost("the link was closed")


def context_of(chief: Chief) -> WorkerContext:
    recorder = WorkerRecorder(0, SYSTEM_CLOCK, keep_spans=False)
    return WorkerContext(0, chief, tally_programs(), recorder, Emulation(EmulationConfig(), 32))


def failure_of(
    runner: Any, phase: Phase, is_blocked: Callable[[], bool], give_up: Callable[[], None]
) -> BaseException | None:
    """Return what ends a thread that runs `phase` when that is revoked, once the thread is blocked."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(runner.run, phase)
        try:
            assert is_blocked(), running.exception(0.0) if running.done() else "it is not blocked"
            runner.revoke(PhaseId(99, 77), "another phase")
            assert not running.done(), "another phase is none of its business"
            runner.revoke(phase.id, "worker 1 was lost")
            return running.exception(SECS)
        finally:
            give_up()


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        ("asp", "push_pull"),
        ("hsp", "ready"),
        ("ssp", "push_pull"),
        ("localsgd(steps=4)", "push_pull"),
        ("psplus", "push"),
        ("psplus", "pull"),
    ],
)
def test_a_push_that_is_held_ends_with_its_phase(spec: str, held: str) -> None:
    link = Link(held)
    runner = ServerRunner(context_of(Chief()), lambda phase: link, None)
    failure = failure_of(runner, phase_of(1, spec, members=(0, 1)), lambda: link.is_held.wait(SECS), link.close)
    assert isinstance(failure, (RoleLost, PhaseRevoked)), failure
    assert len(link.uploads) == (spec.startswith(("localsgd", "psplus"))), "a revoked worker uploads what it holds"


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        ("asp", "push_pull"),
        ("localsgd(steps=4)", "push_pull"),
        ("psplus", "push"),
        ("psplus", "pull"),
        ("psplus(overlap=false)", "push_pull"),
    ],
)
def test_a_link_goes_with_its_phase(spec: str, held: str) -> None:
    """A link has memory for a contribution. In a cycle it would stay until Python looks for such, phases later."""
    links = [Link(held)]
    runner = ServerRunner(context_of(Chief()), lambda phase: links[0], None)
    phase = phase_of(1, spec, members=(0, 1))
    gc.disable()
    try:
        is_held, close = links[0].is_held, links[0].close
        failure = failure_of(runner, phase, lambda: is_held.wait(SECS), close)
        assert isinstance(failure, (RoleLost, PhaseRevoked)), failure
        link = weakref.ref(links[0])
        links.clear()
        del failure, close
        assert link() is None, gc.get_referrers(link())
    finally:
        gc.enable()


@pytest.mark.parametrize("begun", [False, True], ids=["done at once", "begun"])
def test_what_carries_out_a_request_goes_with_the_error_that_ends_its_engine(begun: bool) -> None:
    """In lock-step and in groups, too: there it has a communicator's memory."""

    class Carrier:
        def call(self, request: CallServer) -> None:
            raise RoleLost("a member died")

    def engine() -> IO:
        request = CallServer("pull", push_of(phase_of(1, "asp", members=(0, 1)), 0, worker=0))
        yield (Join((yield StartRequest(request))) if begun else request)

    carrier, is_ended = Carrier(), False
    left = weakref.ref(carrier)
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as threads:
            try:
                drive(engine(), {CallServer: carrier.call}, {CallServer: threads}, SYSTEM_CLOCK.monotonic)
            except RoleLost:
                is_ended = True
        del carrier
        assert is_ended and left() is None, gc.get_referrers(left())
    finally:
        gc.enable()


@pytest.mark.parametrize("spec", ["psplus(overlap=false)", "localsgd(steps=4)"])
def test_what_a_worker_with_local_updates_was_brought_stays_while_its_link_is_used_again(spec: str) -> None:
    """A unit in place of one that was dropped is computed on it, behind the push that dropped it."""
    lent = np.zeros(4, np.float32)
    link: Any = SimpleNamespace(pull=lambda push: (PushReply(0), Parameters({"w": lent}, {})), idle=None, ready=None)
    link.push = None
    link.push_pull = lambda push, body: (PushReply(1), Parameters({"w": lent}, {}))
    link.download_opt_state = link.upload_opt_state = None
    calls = carriers_of(context_of(Chief()), (link,), protocols.parse(spec))
    push = Push(PhaseId(1, 77), 0, 1, (), 0)
    _, brought = calls[CallServer](CallServer("pull", push))
    lent[:] = 7.0
    assert brought.params["w"].tolist() == [0.0] * 4
    _, brought = calls[CallServer](CallServer("push_pull", push))
    lent[:] = 8.0
    assert brought.params["w"].tolist() == [7.0] * 4


def test_a_member_that_waits_for_the_others_of_a_step_ends_with_its_phase() -> None:
    start = Start()
    members = (0, 1)
    communicator = ThreadCommunicator(members, tally_programs().total, deadline_secs=600.0)
    waits = threading.Event()
    sum_up = communicator.sum

    def told(index: int, contribution: Any) -> Any:
        waits.set()
        return sum_up(index, contribution)

    communicator.sum = told
    replica = Replica(tally_programs(), start.reader_at, SYSTEM_CLOCK, NullApplyLog())
    runner = lockstep_runner(context_of(Chief()), replica, lambda phase: communicator, None)
    phase = phase_of(1, "bsp", members=members, snapshot=start.snapshot)
    failure = failure_of(runner, phase, lambda: waits.wait(SECS), lambda: communicator.break_off("over"))
    assert isinstance(failure, PhaseRevoked) and "worker 1 was lost" in str(failure)


@pytest.mark.parametrize("is_complete", [True, False], ids=["average", "group"])
def test_a_worker_that_waits_for_its_group_ends_with_its_phase(is_complete: bool) -> None:
    start = Start()
    chief = Chief(GroupReply((0, 1), sequence=1) if is_complete else None)
    replica = Replica(tally_programs(), start.reader_at, SYSTEM_CLOCK, NullApplyLog())
    communicator = ThreadCommunicator((0, 1), tally_programs().total)
    runner = group_runner(context_of(chief), chief, replica, lambda phase: communicator)
    phase = phase_of(1, "preduce", members=(0, 1), snapshot=start.snapshot)
    failure = failure_of(runner, phase, lambda: chief.asked.wait(SECS), lambda: communicator.break_off("over"))
    assert isinstance(failure, PhaseRevoked) and "worker 1 was lost" in str(failure)


@pytest.mark.parametrize("held", ["push", "pull"])
def test_a_revoked_engine_still_waits_for_what_it_began(held: str) -> None:
    """Its pool would otherwise be joined while a transfer goes on, and a late reply would be nobody's."""
    link = Link(held)
    runner = ServerRunner(context_of(Chief()), lambda phase: link, None)
    failure = failure_of(runner, phase_of(1, "psplus", members=(0, 1)), lambda: link.is_held.wait(SECS), link.close)
    assert isinstance(failure, HybridSyncError)
    transfers = [thread for thread in threading.enumerate() if thread.name.startswith("transfer")]
    for thread in transfers:  # they have nothing left to do, and end by themselves
        thread.join(SECS)
    assert not [thread for thread in transfers if thread.is_alive()]
