"""Where the roles of a run start that are wanted at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from hybridsync.chief.bad_units import PoisonUnits
from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.runtime.supervisor.placement import Placement, RunningRole
from hybridsync.runtime.supervisor.run_hosts import RunHosts


class Hosts:
    """Three hosts of two workers each, as far as a placement asks."""

    def __init__(self) -> None:
        self.there = {0: 2, 1: 2, 2: 2}
        self.away: dict[int, float] = {}

    def slots(self) -> Mapping[int, int]:
        return self.there

    def away_secs(self) -> Mapping[int, float]:
        return self.away


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
def running() -> dict[tuple[str, int], RunningRole]:
    assignment = RoleAssignment(3, 6)
    keys = [("worker", worker) for worker in range(6)]
    return {key: RunningRole(*key, 0, 100 + key[1], assignment.home(*key)) for key in keys}


@pytest.fixture
def placement(hosts: Hosts, running: dict[tuple[str, int], RunningRole]) -> Placement:
    return Placement(RoleAssignment(3, 6, patience_secs=20.0), cast(RunHosts, hosts), running, ())


def lose_host(host: int, hosts: Hosts, running: dict[tuple[str, int], RunningRole], placement: Placement) -> None:
    del hosts.there[host]
    hosts.away[host] = 21.0
    for key in [key for key, role in running.items() if role.host == host]:
        del running[key]
        placement.want(key, "restart")


def test_a_slot_is_its_owners_while_that_one_starts_again(
    hosts: Hosts, running: dict[tuple[str, int], RunningRole], placement: Placement
) -> None:
    lose_host(2, hosts, running, placement)
    assert list(placement.due(workers=True)) == [], "nobody has a free slot"
    del running["worker", 2]
    placement.want(("worker", 2), "restart")
    assert list(placement.due(workers=True)) == [(("worker", 2), 1, "restart")]
    assert placement.missing(tuple(range(6))) == [("worker", 4), ("worker", 5)]


def test_owners_that_wait_for_a_group_keep_their_slots(
    hosts: Hosts, running: dict[tuple[str, int], RunningRole], placement: Placement
) -> None:
    lose_host(2, hosts, running, placement)
    del running["worker", 3]
    placement.want(("worker", 3), "restart")
    assert placement.present(tuple(range(6))) == (0, 1, 2, 3)


def test_a_slot_that_nobody_wants_any_more_is_free(
    hosts: Hosts, running: dict[tuple[str, int], RunningRole], placement: Placement
) -> None:
    lose_host(2, hosts, running, placement)
    del running["worker", 2]  # it is quarantined
    assert list(placement.due(workers=True)) == [(("worker", 4), 1, "restart")]


@pytest.mark.parametrize("reason", ["signal SIGKILL", "signal SIGTERM", "signal SIGSEGV", "exit 1"])
def test_a_process_that_the_run_has_ended_proves_nothing_against_its_unit(reason: str) -> None:
    suspects = PoisonUnits()
    for restart_count in range(5):
        role = RunningRole("worker", 1, restart_count, 100 + restart_count, 0, is_given_up=True)
        assert suspects.record(role.lost(reason, 17, 0.0)) is None
    assert RunningRole("worker", 1, 0, 100, 0).lost(reason, 17, 0.0).unit == 17
