"""Sums over shared memory among threads that have joined one service each as a worker would: bits, groups, ways out."""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.collectives.shared_memory import communicator as module
from hybridsync.collectives.shared_memory import slab
from hybridsync.collectives.shared_memory.communicator import (
    SharedMemoryCollectives,
    SharedMemoryCommunicator,
    slice_of,
)
from hybridsync.collectives.shared_memory.service import MOST_WORKERS, SumService, join
from hybridsync.core.addresses import at_socket
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import ConfigError, HybridSyncError, PhaseRevoked, TaskError, WaitTimeout
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import GroupReply
from hybridsync.runtime.wiring import choose_collective
from hybridsync.training.averaging import AveragedPart, mean, part_of
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.compiled_programs import _total
from hybridsync.training.state import initial_state
from tests.roles import phase_of
from tests.tasks import adamw, batchnorm_task

STATE = initial_state(batchnorm_task(), adamw(), 0)
SHAPES = {"floats": {"grads": (1000, 37), "weight": ()}, "ints": [(3,)]}


def contribution(seed: int) -> Any:
    """Return one of many magnitudes, so that another order of the sum has other bits."""
    random = np.random.default_rng(seed)
    grads = random.standard_normal((1000, 37)).astype(np.float32) * np.float32(10) ** random.integers(-6, 7, (1000, 37))
    floats = {"grads": grads.astype(np.float32), "weight": np.float32(1.0)}
    return {"floats": floats, "ints": [random.integers(0, 9, 3).astype(np.int32)]}


class Workers:
    """Workers of one service, each with a thread of its own."""

    def __init__(self, address: str, slots: tuple[int, ...]) -> None:
        programs: Any = SimpleNamespace(
            contribution_layout=Layout.of(contribution(0)), state=STATE, moving=lambda state: state
        )
        self.slots = slots
        self.collectives = {
            worker: SharedMemoryCollectives(join(address, place, worker, 10.0), slots, worker, programs)
            for place, worker in enumerate(slots)
        }
        self.threads = ThreadPoolExecutor(len(slots))

    def phase(self, number: int, members: tuple[int, ...]) -> dict[int, SharedMemoryCommunicator]:
        """Return the communicators of a phase, by worker."""
        phase = dataclasses.replace(phase_of(members=members), id=PhaseId(number, 3))
        return {worker: self.collectives[worker].communicator(phase) for worker in members}

    def all(self, call: Callable[[int], Any], workers: tuple[int, ...] | None = None) -> list[Any]:
        """Return what `call` returns for each worker, each in a thread."""
        calls = [self.threads.submit(call, worker) for worker in workers or self.slots]
        return [each.result(timeout=120) for each in calls]


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield at_socket(Path(folder) / "slab")


@pytest.fixture
def workers(address: str) -> Iterator[Workers]:
    service = SumService(4, address)
    found = Workers(address, (0, 1, 4, 7))
    yield found
    found.threads.shutdown()
    service.stop()


@pytest.mark.parametrize("members", [(0, 1, 4, 7), (7, 0, 4), (4, 1)])
def test_the_sum_has_the_bits_of_the_threads_sum_in_the_members_order(workers: Workers, members: tuple[int, ...]):
    communicators = workers.phase(1, members)
    brought = {worker: contribution(worker) for worker in members}
    expected = jax.device_get(jax.jit(_total)(tuple(brought[worker] for worker in members)))

    def member(worker: int) -> Any:
        communicators[worker].enter()
        return communicators[worker].sum(members.index(worker), brought[worker])

    for total in workers.all(member, members):
        jax.tree.map(np.testing.assert_array_equal, total, expected)


def test_every_member_tells_when_the_last_one_had_come(workers: Workers):
    phase = workers.phase(1, (0, 1))
    early = workers.threads.submit(phase[0].sum, 0, contribution(0))
    began = SYSTEM_CLOCK.monotonic()
    phase[1].sum(1, contribution(1))
    early.result(timeout=120)
    ended = SYSTEM_CLOCK.monotonic()
    assert all(began <= communicator.met_at <= ended for communicator in phase.values())
    assert phase[0].met_at == phase[1].met_at, "not when the one that waited was woken"


def test_many_rounds_without_a_pause_and_phases_behind_each_other_mix_nothing_up(workers: Workers):
    """Each member goes on as soon as it has a total; one of them dawdles in places of its own."""
    for number in range(1, 4):
        communicators = workers.phase(number, workers.slots)

        def member(worker: int, communicators=communicators, number=number) -> list[float]:
            communicators[worker].enter()
            index, dawdles, sums = workers.slots.index(worker), random.Random(worker), []
            for step in range(60):
                if dawdles.random() < 0.05:
                    threading.Event().wait(0.002)
                grads = np.full((1000, 37), 10.0 * number + step + index, np.float32)
                brought = {"floats": {"grads": grads, "weight": np.float32(1.0)}, "ints": [np.zeros(3, np.int32)]}
                total = communicators[worker].sum(index, brought)["floats"]["grads"]
                assert (total == total[0, 0]).all()
                sums.append(float(total[0, 0]))
                if step % 20 == 7:
                    told = communicators[worker].gather(index, (f"worker {worker} ü", ""))
                    assert told == tuple((f"worker {each} ü", "") for each in workers.slots)
            return sums

        expected = [4 * (10.0 * number + step) + 6 for step in range(60)]
        assert workers.all(member) == [expected] * 4


def test_groups_of_any_members_have_the_mean_of_theirs(workers: Workers):
    """Each worker hurries from group to group; who dawdles in one still reads it while others are in the next."""
    chosen = random.Random(5)
    groups = [tuple(sorted(chosen.sample(workers.slots, chosen.choice([2, 2, 3, 4])))) for _ in range(80)]
    communicators = workers.phase(1, workers.slots)
    parts = {
        worker: jax.tree.map(lambda leaf, by=worker: np.asarray(leaf) * 0 + by, part_of(STATE, optimizer=True))
        for worker in workers.slots
    }
    expected = {group: jax.device_get(mean(tuple(parts[worker] for worker in group))) for group in set(groups)}

    def member(worker: int) -> None:
        for sequence, group in enumerate(groups, 1):
            if worker in group:
                optimizer = sequence % 3 == 0
                reply = GroupReply(sequence=sequence, members=group, optimizer=optimizer)
                part = parts[worker] if optimizer else parts[worker]._replace(opt_state=())
                average: AveragedPart = communicators[worker].group_mean(reply, worker, part)
                wanted = expected[group] if optimizer else expected[group]._replace(opt_state=())
                jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-6), average, wanted)

    workers.all(member)


def test_a_phase_that_is_broken_off_lets_everybody_out_and_the_next_one_sums(workers: Workers):
    communicators = workers.phase(1, workers.slots)
    waiting = [workers.threads.submit(communicators[worker].enter) for worker in workers.slots[1:]]  # 0 does not come
    for worker, entering in zip(workers.slots[1:], waiting, strict=True):
        communicators[worker].break_off("the test says so")
        with pytest.raises(PhaseRevoked, match=r"the test says so|has left the phase"):
            entering.result(timeout=120)
    with pytest.raises(PhaseRevoked, match="worker 1 has left the phase"):
        communicators[0].enter()
    later = workers.phase(2, workers.slots)
    workers.all(lambda worker: later[worker].enter())
    totals = workers.all(lambda worker: later[worker].sum(workers.slots.index(worker), contribution(1)))
    assert [total["floats"]["weight"] for total in totals] == [4.0] * 4


def test_a_member_that_fails_in_a_round_is_not_waited_for(workers: Workers):
    communicators = workers.phase(1, (0, 1))
    workers.all(lambda worker: communicators[worker].enter(), (0, 1))
    waiting = workers.threads.submit(communicators[1].sum, 1, contribution(1))
    with pytest.raises(TaskError, match="is a int, not an array"):
        communicators[0].sum(0, {"floats": 1})
    with pytest.raises(PhaseRevoked, match="worker 0 has left the phase"):
        waiting.result(timeout=120)


def test_who_is_missing_is_named(workers: Workers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ENTER_SECS", 0.1)
    with pytest.raises(WaitTimeout, match=r"workers \[1, 4\] did not come"):
        workers.phase(1, (0, 1, 4))[0].enter()


def test_a_member_alone_meets_nobody_and_is_revoked_like_any_other(workers: Workers):
    (communicator,) = workers.phase(1, (4,)).values()
    communicator.enter()
    own = contribution(1)
    assert communicator.sum(0, own) is own and communicator.gather(0, ("why",)) == (("why",),)
    communicator.break_off("the test says so")
    for call in (communicator.enter, lambda: communicator.sum(0, own), lambda: communicator.gather(0, ("",))):
        with pytest.raises(PhaseRevoked, match="the test says so"):
            call()


def test_a_total_lies_where_the_last_one_lay_and_programs_read_it_there(workers: Workers):
    communicators = workers.phase(1, workers.slots)

    def member(worker: int) -> list[Any]:
        communicators[worker].enter()
        index = workers.slots.index(worker)
        totals = [communicators[worker].sum(index, contribution(10 * step + index)) for step in range(4)]
        assert all(total is totals[0] for total in totals)
        return [jax.tree.map(np.array, jax.jit(lambda total: total)(totals[0]))]

    expected = jax.device_get(jax.jit(_total)(tuple(contribution(30 + index) for index in range(4))))
    for (total,) in workers.all(member):
        jax.tree.map(np.testing.assert_array_equal, total, expected)


def test_what_is_packed_ahead_is_summed_unless_another_contribution_is_delivered(workers: Workers):
    communicators = workers.phase(1, (0, 1))
    spoilt = contribution(9)
    spoilt["floats"]["grads"][7, 3] = np.nan

    def member(worker: int) -> list[Any]:
        communicator = communicators[worker]
        communicator.enter()
        ahead = contribution(worker)
        assert communicator.pack(ahead)
        first = jax.tree.map(np.array, communicator.sum(worker, ahead))
        assert not communicator.pack(spoilt)
        return [first, communicator.sum(worker, contribution(2 + worker))]

    for step, totals in enumerate(zip(*workers.all(member, (0, 1)), strict=True)):
        expected = jax.device_get(jax.jit(_total)((contribution(2 * step), contribution(2 * step + 1))))
        for total in totals:
            jax.tree.map(np.testing.assert_array_equal, total, expected)


def test_every_number_is_in_one_slice():
    for size in (0, 1, 15, 16, 17, 100, 37_001):
        for members in (1, 2, 3, 7):
            slices = [slice_of(size, index, members) for index in range(members)]
            assert [n for each in slices for n in range(size)[each]] == list(range(size))


def test_memory_of_sums_is_taken_before_the_first_phase_of_a_plan_that_has_sums(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
):
    for collectives in workers.collectives.values():
        collectives.prepare(sums=False, groups=False)
    taken = [worker for worker, each in workers.collectives.items() if each.contributions.area._map is not None]
    assert taken == [], "an area that no phase needs costs nothing"
    for collectives in workers.collectives.values():
        collectives.prepare(sums=True, groups=False)

    def taken_late(*_: int) -> None:
        raise AssertionError("memory was taken while training waited")

    monkeypatch.setattr(slab.os, "posix_fallocate", taken_late)
    communicators = workers.phase(1, (0, 1))
    workers.all(lambda worker: communicators[worker].sum(0, contribution(worker)), (0, 1))


def test_a_worker_that_rests_keeps_no_memory_of_sums_and_sums_again_later(workers: Workers):
    members = (0, 1)
    expected = _total(tuple(map(contribution, members)))
    for number in (1, 2):
        communicators = workers.phase(number, members)
        totals = workers.all(
            lambda worker, at=communicators: jax.tree.map(np.array, at[worker].sum(worker, contribution(worker))),
            members,
        )
        for total in totals:
            jax.tree.map(np.testing.assert_array_equal, total, expected)
        for worker in members:
            collectives = workers.collectives[worker]
            collectives.rest()
            sums = collectives.contributions
            assert sums.area._map is None and sums.results._free == [] and sums._views is None
            assert "total" not in vars(sums)


@pytest.mark.parametrize("advice", [slab._POPULATE_WRITE, 9999], ids=["populates", "old kernel"])
def test_a_worker_takes_the_memory_of_its_own_regions_alone(advice: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slab, "_POPULATE_WRITE", advice)
    file, nbytes = slab.create(8), 1 << 16
    before = os.fstat(file).st_blocks * 512
    try:
        area = slab.Area.after_words(file, 8, nbytes)
        area.reserve(3)
        assert os.fstat(file).st_blocks * 512 - before == 2 * nbytes
        area.contribution(3)[:] = 7
        successor = slab.Area.after_words(file, 8, nbytes)
        successor.reserve(3)
        assert np.all(successor.contribution(3) == 7), "peers may read it still"
    finally:
        os.close(file)


def test_memory_that_the_host_has_not_is_refused_with_what_to_do(workers: Workers, monkeypatch: pytest.MonkeyPatch):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slab.os, "posix_fallocate", full)
    communicators = workers.phase(1, (0, 1))
    with pytest.raises(HybridSyncError, match=r"no shared memory for .* MB.*--collective=host"):
        communicators[0].sum(0, contribution(1))


def test_what_cannot_be_served_is_refused_with_what_to_do(address: str):
    with pytest.raises(HybridSyncError, match="251 workers, of 250 at most; run with --collective=host"):
        SumService(MOST_WORKERS + 1, address)
    with pytest.raises(HybridSyncError, match=r"127\.0\.0\.1:0, which is no socket; run with --collective=host"):
        SumService(2, "127.0.0.1:0")


def test_a_service_that_lacks_descriptors_for_a_moment_is_asked_again(address: str, monkeypatch: pytest.MonkeyPatch):
    service, times, really = SumService(2, address), iter(range(2)), os.pidfd_open

    def lacking(pid: int) -> int:
        if next(times, None) is not None:
            raise OSError(24, "Too many open files")
        return really(pid)

    monkeypatch.setattr("hybridsync.collectives.shared_memory.service.os.pidfd_open", lacking)
    assert join(address, 1, 1, 10.0).words.session(1) == 1
    service.stop()


def test_a_worker_that_may_not_open_all_files_is_told(address: str, monkeypatch: pytest.MonkeyPatch):
    service = SumService(4, address)
    monkeypatch.setattr("hybridsync.collectives.shared_memory.service.MOST_WORKERS", 2)
    with pytest.raises(HybridSyncError, match="raise `ulimit -n`"):
        join(address, 1, 1, 10.0)
    service.stop()


def test_shared_memory_that_does_not_suit_is_refused_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    assert choose_collective("auto", 4, sockets=True) == "shm" and choose_collective("host", 4, sockets=True) == "host"
    assert choose_collective("auto", 251, sockets=True) == choose_collective("auto", 4, sockets=False) == "host"
    monkeypatch.setattr("hybridsync.collectives.shared_memory.backend.platform.machine", lambda: "aarch64")
    assert choose_collective("auto", 4, sockets=True) == "host"
    with pytest.raises(ConfigError, match=r"--collective=shm does not suit 4 workers here"):
        choose_collective("shm", 4, sockets=True)


def test_a_service_without_memory_is_refused_with_what_to_do(address: str, monkeypatch: pytest.MonkeyPatch):
    def full(*_: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slab.os, "posix_fallocate", full)
    with pytest.raises(HybridSyncError, match="Cannot allocate memory; mend that, or run with --collective=host"):
        SumService(2, address)


def test_a_reason_is_never_shortened_to_none(workers: Workers):
    communicators, reasons = workers.phase(1, (0, 1)), ("not finite", "") * 1100
    told = workers.all(lambda worker: communicators[worker].gather(0, reasons), (0, 1))
    assert told == [(("n", "") * 1100,) * 2] * 2


def test_a_service_that_is_gone_or_has_no_such_place_is_named(address: str):
    with pytest.raises(WaitTimeout, match="worker 3 gets no shared memory"):
        join(address, 0, 3, 0.2)
    service = SumService(2, address)
    with pytest.raises(HybridSyncError, match="refuses worker 3: it is of another user, or has no place 2"):
        join(address, 2, 3, 5.0)
    service.stop()
    service.stop()
