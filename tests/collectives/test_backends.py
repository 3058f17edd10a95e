"""A backend of collectives is a package and a line of wiring: a toy takes the place of the threads' own."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import hybridsync
from hybridsync import trainer as trainer_module
from hybridsync.collectives.backend import Collectives
from hybridsync.collectives.threads import ThreadCollectives
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.runtime.inprocess import InProcess
from hybridsync.training.averaging import mean, part_of
from hybridsync.training.compiled_programs import Programs
from tests.collectives.toy import ToyCollectives
from tests.roles import gradient_of, phase_of, tally_programs, tally_state
from tests.trainers import is_exact, mlp_trainer, tally_trainer

PACKAGE = Path(hybridsync.__file__).parent
MEMBERS = (2, 0, 1)

in_all = pytest.mark.parametrize("backend", [ThreadCollectives, ToyCollectives])


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[ToyCollectives]:
    """Have trainers use the toy: this is the line of wiring."""
    monkeypatch.setattr(trainer_module, "InProcess", functools.partial(InProcess, collectives=ToyCollectives))
    ToyCollectives.calls.clear()
    return ToyCollectives


@in_all
def test_a_phase_sums_gathers_and_averages_in_the_members_order(backend: Callable[[Programs], Collectives]) -> None:
    communicator = backend(tally_programs()).communicator(phase_of(members=MEMBERS))
    contributions, part = tuple(map(gradient_of, range(3))), part_of(tally_state(), optimizer=True)
    group = GroupReply((0, 2), sequence=1)

    def member(index: int) -> tuple:
        communicator.enter()
        total = communicator.sum(index, contributions[index])
        reasons = communicator.gather(index, ("no number" if index == 1 else "",))
        worker = MEMBERS[index]
        return total, reasons, communicator.group_mean(group, worker, part) if worker in group.members else None

    with ThreadPoolExecutor(3) as threads:
        found = [future.result(60) for future in [threads.submit(member, index) for index in range(3)]]
    expected = tally_programs().total(contributions)
    for total, reasons, average in found:
        jax.tree.map(np.testing.assert_array_equal, total, expected)
        assert reasons == (("",), ("no number",), ("",))
        if average is not None:
            jax.tree.map(np.testing.assert_array_equal, average, mean((part, part)))
    assert [average is None for _, _, average in found] == [False, False, True]


@in_all
def test_a_communicator_tells_when_its_last_member_had_come(backend: Callable[[Programs], Collectives]) -> None:
    communicator = backend(tally_programs()).communicator(phase_of(members=(0, 1)))
    part = part_of(tally_state(), optimizer=False)

    def met(call: Callable[[int], object]) -> list[float]:
        def member(index: int) -> float:
            call(index)
            return communicator.met_at

        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(member, 0)
            began = SYSTEM_CLOCK.monotonic()
            return [began, member(1), other.result(60), SYSTEM_CLOCK.monotonic()]

    for times in (
        met(lambda index: communicator.sum(index, gradient_of(index))),
        met(lambda index: communicator.group_mean(GroupReply((0, 1), sequence=1), index, part)),
    ):
        assert times[0] <= min(times[1:3]) and max(times[1:3]) <= times[3], "neither before the last one came nor later"


@in_all
def test_whoever_waits_is_freed_when_the_phase_is_broken_off(backend: Callable[[Programs], Collectives]) -> None:
    communicator = backend(tally_programs()).communicator(phase_of(members=(0, 1)))
    part, begun = part_of(tally_state(), optimizer=False), threading.Barrier(3, timeout=120)

    def wait_in(call: Callable[[], object]) -> None:
        begun.wait()
        call()

    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(wait_in, lambda: communicator.sum(0, gradient_of(0))),
            threads.submit(wait_in, lambda: communicator.group_mean(GroupReply((0, 1), sequence=1), 0, part)),
        ]
        begun.wait()
        communicator.break_off("worker 1 was lost")
        for future in waiting:
            with pytest.raises(PhaseRevoked, match="worker 1 was lost"):
                future.result(60)


@in_all
def test_a_member_alone_is_revoked_too(backend: Callable[[Programs], Collectives]) -> None:
    communicator = backend(tally_programs()).communicator(phase_of(members=(3,)))
    communicator.sum(0, gradient_of(0))
    communicator.break_off("the plan ends")
    with pytest.raises(PhaseRevoked, match="the plan ends"):
        communicator.sum(0, gradient_of(0))
    with pytest.raises(PhaseRevoked, match="the plan ends"):
        communicator.gather(0, ("",))


def test_a_run_over_the_toy_applies_every_unit_once(toy: type[ToyCollectives]) -> None:
    result = tally_trainer("bsp:40%,asp:20%,preduce", 64).fit()
    assert is_exact(result.summary.final)
    assert toy.calls["enter"] == 4 and toy.calls["sum"] >= 4 and toy.calls["group_mean"] >= 2


def test_a_run_over_the_toy_has_the_bits_of_one_over_the_threads_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = mlp_trainer("bsp", 32).fit().state
    monkeypatch.setattr(trainer_module, "InProcess", functools.partial(InProcess, collectives=ToyCollectives))
    jax.tree.map(np.testing.assert_array_equal, mlp_trainer("bsp", 32).fit().state, own)


def test_private_names_of_jax_stand_in_one_file() -> None:
    private = re.compile(r"jax\._src|jaxlib\._|import jaxlib|from jaxlib")
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if private.search(path.read_text("utf-8"))]
    assert found == [Path("core/jax_internals.py")]
