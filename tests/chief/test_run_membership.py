"""Which processes of a run are alive, late, gone for good, and where they serve."""

from __future__ import annotations

import math

import pytest

from hybridsync.chief.membership import HEARTBEAT_SECS, LEASE_SECS, RunMembership
from hybridsync.core.errors import RoleLost
from hybridsync.interfaces.messages import RoleState
from tests.roles import hello, phase_of


def members_of(num_workers: int = 2, lease_secs: float = LEASE_SECS, **options) -> RunMembership:
    members = RunMembership(num_workers, 1, lease_secs, 0.0, **options)
    for worker in range(num_workers):
        members.join(hello(worker), 0.0)
    members.join(hello(0, role="server"), 0.0)
    return members


def test_leases_run_out_while_somebody_looks_at_them_often_enough():
    members, now, lost = members_of(), 0.0, list[tuple[str, int]]()
    while members.live():
        assert now <= LEASE_SECS and lost == []
        now += HEARTBEAT_SECS / 2
        for role, role_id in members.expire(now):
            members.leave(role, role_id)
            lost.append((role, role_id))
    assert lost == [("worker", 0), ("worker", 1), ("server", 0)]
    assert now == LEASE_SECS + HEARTBEAT_SECS / 2


def test_a_process_that_stands_still_for_half_a_minute_keeps_its_lease():
    members = members_of()
    for half in range(90):
        assert members.expire(half / 2) == []
    assert members.silent(45.0, 44.0) == [("worker", 0), ("worker", 1), ("server", 0)]


def test_a_chief_that_was_silent_itself_judges_nobody():
    members = members_of()
    assert members.expire(100.0) == []
    assert members.expire(100.5) == [], "every lease began anew"


def test_threads_have_leases_without_an_end():
    members = members_of(lease_secs=math.inf)
    assert not any(members.expire(at * HEARTBEAT_SECS) for at in range(100))


def test_a_process_that_leaves_takes_along_what_it_held_and_where_it_stood():
    members = members_of()
    role_state = RoleState(phase_of(1), True, ((0, 4),), 1)
    members.join(hello(1, pid=201, restart_count=1, role_state=role_state), 1.0)
    members.resting[1] = None
    members.entering.add(0)
    assert members.role_states() == {("worker", 1): role_state}
    members.leave("worker", 1)
    members.leave("server", 0)
    assert (members.role_states(), members.resting, members.entering) == ({}, {}, set())
    assert members.live() == [("worker", 0)] and members.missing_workers() == [1]
    with pytest.raises(RoleLost, match="server 0 is gone"):
        members.address_of("server", 0)


def test_late_and_quarantined_workers_are_not_waited_for():
    members = RunMembership(3, 1, LEASE_SECS, 0.0, late=(2,))
    assert members.num_awaited() == 2
    members.join(hello(2), 1.0)
    assert members.num_awaited() == 3, "it is there"
    members.quarantined[0] = "not finite"
    assert members.num_awaited() == 2 and members.all_quarantined() is None
    members.quarantined |= {1: "not finite", 2: "gone"}
    assert "worker 2: gone" in str(members.all_quarantined())
