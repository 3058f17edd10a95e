"""Threads of one process: an ordered sum, whoever comes last, and a way out."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from hybridsync.collectives.threads import ThreadCommunicator
from hybridsync.core.errors import PhaseRevoked, WaitTimeout
from tests.transport.slab_primary import until


def test_contributions_are_summed_in_member_order_whatever_the_order_of_arrival():
    communicator = ThreadCommunicator((0, 1, 2, 3), "".join)
    with ThreadPoolExecutor(4) as threads:
        for step in range(20):
            order = random.Random(step).sample(range(4), 4)
            totals = [threads.submit(communicator.sum, index, f"{index}.{step} ") for index in order]
            results = [total.result(timeout=120) for total in totals]
            assert results == [f"0.{step} 1.{step} 2.{step} 3.{step} "] * 4
            assert all(result is results[0] for result in results), "one total for all of them"


def test_quick_members_never_overtake_a_slow_one():
    """Every member runs many steps without looking at the others; each must see every step once."""
    communicator = ThreadCommunicator((0, 1, 2), sum)

    def member(index: int) -> list[int]:
        return [communicator.sum(index, step if index == 0 else 0) for step in range(200)]

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(member, index) for index in range(3)]
        assert [run.result(timeout=120) for run in runs] == [list(range(200))] * 3


def test_a_single_member_meets_nobody():
    assert ThreadCommunicator((7,), sum).sum(0, "its own") == "its own"
    assert ThreadCommunicator((7,), sum).gather(0, ("its own", "")) == (("its own", ""),)


def test_everybody_hears_whose_contribution_is_missing_and_why():
    communicator = ThreadCommunicator((4, 9, 5), sum)

    def member(index: int) -> list:
        own = ("", "no number") if index == 1 else ("", "")
        return [communicator.sum(index, 1), communicator.gather(index, own), communicator.sum(index, 2)]

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(member, index) for index in range(3)]
        assert [run.result(timeout=120) for run in runs] == [[3, (("", ""), ("", "no number"), ("", "")), 6]] * 3


def test_breaking_off_frees_those_who_wait_and_refuses_those_who_come():
    communicator = ThreadCommunicator((0, 1, 2), sum)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(communicator.sum, index, 1) for index in (0, 1)]
        communicator.break_off("worker 2 failed")
        for future in waiting:
            with pytest.raises(PhaseRevoked, match="worker 2 failed"):
                future.result(timeout=120)
    with pytest.raises(PhaseRevoked, match="worker 2 failed"):
        communicator.sum(2, 1)


def test_a_member_that_does_not_deliver_is_named():
    communicator = ThreadCommunicator((4, 9, 5), sum, deadline_secs=0.05)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(communicator.sum, 0, 1)
        until(lambda: communicator._everybody._arrived == 1, "the first one did not deliver")
        with pytest.raises(WaitTimeout, match=r"workers \[9\] .*0.05 s"):
            communicator.sum(2, 1)
        with pytest.raises(WaitTimeout):
            first.result(timeout=60)
