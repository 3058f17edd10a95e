"""Collectives that take as long as over the emulated links, on a clock that stands still but for their waiting."""

from __future__ import annotations

from typing import Any

import pytest

from hybridsync import EmulationConfig
from hybridsync.core.errors import ConfigError
from hybridsync.emulation.ring_delays import CollectiveSizes, DelayedCommunicator, check_rings
from hybridsync.emulation.ring_model import Rings
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart
from tests.telemetry.clocks import ManualClock

PART = AveragedPart((), (), ())
SIZES = CollectiveSizes(contribution=200, parameters=100, state=300)


class Members:
    """A communicator whose members come at a given moment, and whose sums take a while themselves."""

    joint_gradient = None

    def __init__(self, clock: ManualClock, took: float = 0.0) -> None:
        self._clock, self._took, self.met_at, self.calls = clock, took, 0.0, list[str]()

    def enter(self) -> None:
        self.calls.append("enter")

    def pack(self, contribution: Any) -> bool:
        return self._met("pack", True)

    def sum(self, index: int, contribution: Any) -> Any:
        return self._met("sum", contribution)

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        return self._met("gather", (reasons,))

    def group_mean(self, reply: GroupReply, worker: int, part: Any) -> Any:
        return self._met("group_mean", part)

    def break_off(self, reason: str) -> None:
        self.calls.append(f"break_off {reason}")

    def _met(self, what: str, result: Any) -> Any:
        self.calls.append(what)
        self.met_at = self._clock.now
        self._clock.advance(self._took)
        return result


def delayed(clock: ManualClock, communicator: Members, members: tuple[int, ...] = (0, 1)) -> DelayedCommunicator:
    rings = Rings(bytes_per_sec=100.0, latency_secs=0.25)
    return DelayedCommunicator(communicator, members, rings, SIZES, clock, clock.advance)


def group(members: tuple[int, ...], *, optimizer: bool = False) -> GroupReply:
    return GroupReply(members=members, sequence=1, optimizer=optimizer)


def test_a_sum_is_here_when_the_ring_from_the_last_members_coming_has_ended() -> None:
    clock = ManualClock(now=5.0)
    communicator = Members(clock, took=0.125)
    assert delayed(clock, communicator).sum(0, "total") == "total"
    assert clock.now == pytest.approx(5.0 + 2 * (0.25 + 1.0)), "the real sum lies beside the emulated one"


@pytest.mark.parametrize(("optimizer", "secs"), [(False, 2 * (0.25 + 0.5)), (True, 2 * (0.25 + 1.5))])
def test_a_group_mean_takes_a_ring_of_what_is_averaged(optimizer: bool, secs: float) -> None:
    clock = ManualClock(now=0.0)
    delayed(clock, Members(clock), (0, 1, 2, 3)).group_mean(group((1, 3), optimizer=optimizer), 1, PART)
    assert clock.now == pytest.approx(secs)


def test_a_sum_that_takes_longer_than_the_emulated_ring_waits_for_nothing() -> None:
    clock = ManualClock(now=0.0)
    delayed(clock, Members(clock, took=9.0)).sum(0, None)
    assert clock.now == 9.0


def test_one_member_alone_and_what_has_no_bytes_worth_counting_wait_for_nothing() -> None:
    clock = ManualClock(now=0.0)
    communicator = Members(clock)
    delayed(clock, communicator, (3,)).sum(0, None)
    both = delayed(clock, communicator)
    both.enter()
    assert both.gather(0, ("",)) == (("",),)
    both.break_off("over")
    assert clock.now == 0.0
    assert communicator.calls == ["sum", "enter", "gather", "break_off over"]


def test_links_on_which_members_would_be_given_up_are_refused() -> None:
    check_rings(EmulationConfig(link_bytes_per_sec=1e3), 4, 20_000)
    with pytest.raises(ConfigError, match=r"a ring all-reduce of 30,000 bytes among 4 workers would take 45 s"):
        check_rings(EmulationConfig(link_bytes_per_sec=1e3), 4, 30_000)
