"""Processes that are killed while they are lent memory: the kernel tells of it, and nothing of theirs is kept."""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridsync import protocols
from hybridsync.core.clock import pause
from hybridsync.protocols.asp import Asp
from hybridsync.server import primary as primary_module
from tests.roles import gradient_of
from tests.server.test_held_pushes import InTwos
from tests.transport.slab_primary import Callers, SlabPrimary, only, packed, tallied, until


class HeldInTwos(Asp):
    """Holds each push until there are two."""

    def server_rule(self, members: tuple[int, ...]) -> InTwos:
        return InTwos()


@pytest.fixture
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlabPrimary]:
    monkeypatch.setitem(protocols.REGISTRY, "intwos", HeldInTwos)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        primary = SlabPrimary(Path(folder), getattr(request, "param", "asp"))
        yield primary
        primary.close()


@pytest.fixture
def callers(served: SlabPrimary) -> Iterator[Callers]:
    callers = Callers(served)
    yield callers
    callers.close()


held = pytest.mark.parametrize("served", ["intwos"], indirect=True)


def kill(served: SlabPrimary, callers: Callers, pid: int, left: int = 0) -> None:
    callers.kill(pid)
    until(lambda: served.num_links() == left, "the link of a killed process is kept")


def push(served: SlabPrimary, unit: int, worker: int = 3) -> None:
    with served.link_for_one_call() as link:
        link.push_pull(served.push(unit, worker=worker), gradient_of(unit))


def test_what_a_killed_worker_was_lent_is_given_back_and_not_before(served: SlabPrimary, callers: Callers) -> None:
    pid = callers.start("pull")
    callers.until_done(pid, "pull")
    for _ in range(2):
        assert [copy.readers for copy in served.pool._copies] == [1]
        pause(0.05)
    kill(served, callers, pid)
    assert [copy.readers for copy in served.pool._copies] == [0]


def test_fifty_deaths_over_many_updates_leave_as_few_slabs_as_workers_need(
    served: SlabPrimary, callers: Callers
) -> None:
    living = served.parameters()
    living.pull(served.push(worker=3))
    for number in range(50):
        pid = callers.start("pull", "half", worker=number % 3)
        callers.until_done(pid, "half")
        living.contribution[:] = packed(number)
        assert sum(tallied(living.push_pull(served.push(number, worker=3))[1])) == min(number + 1, 8)
        kill(served, callers, pid, left=1)
    assert len(served.pool._copies) <= 2 + 2, "two readers at a time"


def test_what_a_killed_worker_had_half_written_is_never_applied(served: SlabPrimary, callers: Callers) -> None:
    pid = callers.start("pull", "half", unit=2)
    callers.until_done(pid, "half")
    kill(served, callers, pid)
    assert served.applied() == only()
    successor = callers.start("pull", "write", "push", unit=2)
    callers.until_done(successor, "push")
    assert served.applied() == only(2)


@held
def test_a_held_push_outlives_its_killed_caller_until_the_chief_says_that_it_is_gone(
    served: SlabPrimary, callers: Callers
) -> None:
    pid = callers.start("pull", "push", worker=0, unit=2)
    until(lambda: served.primary._sequencer.num_held == 1, "no push arrived")
    callers.kill(pid)
    pause(0.05)
    assert served.primary._sequencer.num_held == 1 and served.num_links() == 1, "its memory may be read yet"
    served.primary.fence(served.phase.id, worker=0, incarnation=1)
    until(lambda: served.num_links() == 0, "the link of a fenced process is kept")
    assert served.primary.take_report().applied == () and served.primary._sequencer.num_held == 0


@held
def test_a_push_that_is_held_on_is_applied_whole_though_its_caller_and_its_memory_are_gone(
    served: SlabPrimary, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.05)
    pid = callers.start("pull", "write", "push", worker=0, unit=2)
    while callers.next_of(pid).get("refused") != "StillHeld":
        pass
    kill(served, callers, pid)
    gc.collect()
    push(served, 4, worker=1)
    assert served.applied() == only(2, 4)


def test_a_reader_that_is_killed_in_the_middle_does_not_keep_the_next_snapshot_away(
    served: SlabPrimary, callers: Callers
) -> None:
    for units in range(3):
        snapshot = served.primary.take_snapshot(served.phase.id, final=False)
        assert snapshot.held.units == units
        pid = callers.start("read", snapshot_id=snapshot.snapshot_id, num_bytes=snapshot.num_bytes)
        callers.until_done(pid, "read")
        assert served.primary._snapshot_buffer._readers == 1
        kill(served, callers, pid)
        push(served, units)
    assert served.applied() == only(0, 1, 2)


def kept() -> Counter[str]:
    """Return how many descriptors this process has of each kind, and mappings of shared parameters."""
    found: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # that of the listing itself
            continue
        found[target.partition("[")[0].partition(" ")[0]] += 1
    found["mapped"] = Path("/proc/self/maps").read_text().count("memfd:hybridsync-parameters")
    found["shared kB"] = int(Path("/proc/self/status").read_text().partition("RssShmem:")[2].split()[0])
    return found


@pytest.mark.parametrize("deaths", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_no_slab_is_left_behind_after_kills_at_any_time(served: SlabPrimary, callers: Callers, deaths: int) -> None:
    """No collection of garbage is waited for: what a dead process had may be as large as the model."""
    rng = random.Random(7)
    living = served.parameters()
    living.pull(served.push(worker=3))
    for unit in range(3):
        push(served, unit)
    kill(served, callers, callers.start(), left=1)  # what the first one costs once
    before = kept()
    gc.disable()
    try:
        for number in range(deaths):
            pid = callers.start("contribution", "pull", "half", "write", "push", worker=number % 3, unit=number % 8)
            if rng.random() < 0.5:
                callers.until_done(pid, rng.choice(["contribution", "pull", "half", "write", "push"]))
            kill(served, callers, pid, left=1)
        assert kept() == before
    finally:
        gc.enable()
    assert len(served.pool._copies) <= 4
    assert tallied(living.pull(served.push(worker=3))[1])[:3] == [1, 1, 1]
