"""Incarnations fence, leases expire, and a phase knows who is inside; no clock is read."""

from __future__ import annotations

import math

import pytest

from hybridsync.chief.membership import HEARTBEAT_SECS, LEASE_SECS, Membership, PhaseMembership, RunMembership
from hybridsync.core.errors import NotRegistered, RoleLost, StaleIncarnation
from hybridsync.interfaces.messages import Hello, RoleState, StateVersion
from hybridsync.interfaces.reports import Report
from tests.roles import hello, phase_of


def process(worker: int, restart_count: int = 0) -> Hello:
    return Hello("worker", worker, 10 + restart_count, "host", "address", "schema", "1", restart_count)


def test_a_newer_process_fences_the_older_one_by_name():
    members = Membership("worker")
    first = members.join(process(2), now=0.0)
    second = members.join(process(2, restart_count=1), now=1.0)
    assert (first.incarnation, second.incarnation) == (1, 2)
    members.beat(2, second.incarnation, 1.5)
    with pytest.raises(StaleIncarnation, match=f"worker 2 .*{first.incarnation}.*{second.incarnation}"):
        members.beat(2, first.incarnation, 2.0)
    member = members.get(2)
    assert member is not None and member.hello.pid == 11


def test_a_process_that_left_is_refused_and_its_successor_gets_a_new_incarnation():
    members = Membership("worker")
    first = members.join(process(0), now=0.0)
    assert members.leave(0) == first
    assert members.leave(0) is None
    with pytest.raises(StaleIncarnation, match="lease has expired"):
        members.beat(0, first.incarnation, 0.1)
    with pytest.raises(StaleIncarnation, match="lease has expired"):
        members.join(process(0), now=0.2)
    assert members.join(process(0, restart_count=1), now=0.2).incarnation == first.incarnation + 1


def test_a_process_that_was_replaced_cannot_register_again():
    members = Membership("worker")
    members.join(process(0, restart_count=3), now=0.0)
    with pytest.raises(StaleIncarnation, match="worker 0 speaks as incarnation 2, but incarnation 4"):
        members.join(process(0, restart_count=1), now=0.1)


def test_a_process_that_is_newer_than_all_that_a_chief_knows_is_asked_to_register():
    """An earlier chief has let it in; to this one a process came first whose place it has taken."""
    members = Membership("worker")
    members.join(process(1), now=0.0)
    with pytest.raises(NotRegistered, match="worker 1"):
        members.beat(1, incarnation=2, now=0.1)
    assert members.join(process(1, restart_count=1), now=0.2).incarnation == 2
    with pytest.raises(StaleIncarnation):
        members.beat(1, incarnation=1, now=0.3)


def test_incarnations_are_lives_so_that_another_chief_counts_on():
    before, after = Membership("worker"), Membership("worker")
    assert (
        before.join(process(1, restart_count=2), now=0.0).incarnation
        == after.join(process(1, restart_count=2), now=9.0).incarnation
        == 3
    )


def test_registering_again_in_the_same_life_counts_as_a_sign_of_life():
    members = Membership("worker")
    members.join(process(0), now=0.0)
    assert members.join(process(0), now=5.0).incarnation == 1
    assert members.expired(5.0, LEASE_SECS) == ()


def test_after_a_silence_of_the_chiefs_own_everybody_counts_as_just_heard_of():
    members = Membership("worker")
    members.join(process(0), now=0.0)
    members.refresh(50.0)
    assert members.expired(50.0 + LEASE_SECS, LEASE_SECS) == ()


def test_a_lease_runs_out_without_beats_and_not_before():
    members = Membership("worker")
    quiet, lively = members.join(process(0), now=0.0), members.join(process(1), now=0.0)
    members.beat(1, lively.incarnation, LEASE_SECS)
    assert members.expired(LEASE_SECS, LEASE_SECS) == ()
    assert members.expired(LEASE_SECS + 0.1, LEASE_SECS) == (quiet,)
    assert members.ids() == (0, 1)


def test_who_never_registered_is_asked_to():
    with pytest.raises(NotRegistered, match="worker 7 has not registered with this chief; register and call again"):
        Membership("worker").beat(7, 1, 0.0)


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


PHASE_ID = phase_of(1).id
LIVE = (0, 1, 2)


def report(worker: int, completed: int = 0, **fields) -> Report:
    return Report("worker", worker, 1, PHASE_ID, completed=completed, **fields)


def note(here: PhaseMembership, told: Report) -> None:
    here.record_heartbeat(told, (told.first_applied, told.last_applied))
    if told.role == "worker":
        here.record_activity(told)


def test_who_entered_is_missing_until_it_is_back_or_gone():
    here = PhaseMembership(admitted={0: 1, 1: 1})
    assert here.missing(LIVE) == [0, 1], "worker 2 never entered"
    here.back[0] = None
    assert here.missing(LIVE) == [1]
    assert here.missing((0, 2)) == [], "worker 1 is gone"


def test_a_worker_that_is_lost_is_forgotten_with_what_it_held():
    here = PhaseMembership(admitted={0: 1, 1: 1}, back={1: StateVersion(PHASE_ID, 4, 2, "f00d")})
    note(here, report(1, 4, doing="average"))
    here.remove_worker(1)
    assert here.positions == {} and here.doing == {} and here.admitted == {0: 1}
    assert here.back == {1: None}, "it has done its part, but what it held is gone"


def test_a_worker_that_is_lost_before_it_came_back_never_comes_back():
    here = PhaseMembership(admitted={1: 1})
    here.remove_worker(1)
    assert here.back == {} and here.missing(LIVE) == []


def test_the_workers_with_the_fewest_units_done_are_behind():
    here = PhaseMembership()
    for worker, completed in [(0, 6), (1, 4), (2, 6)]:
        note(here, report(worker, completed))
    assert here.behind(LIVE) == [1]
    assert here.behind((0, 1, 2, 3)) == [3], "who said nothing has done nothing"
    assert here.behind(()) == []


def test_the_first_and_the_last_update_are_those_of_any_role():
    here = PhaseMembership()
    assert here.first_and_last() == (0.0, 0.0)
    note(here, report(0, first_applied=7.0, last_applied=7.5))
    note(here, report(1))
    note(here, Report("server", 0, 1, PHASE_ID, first_applied=5.0, last_applied=9.0))
    assert here.first_and_last() == (5.0, 9.0)
    note(here, Report("server", 0, 1, PHASE_ID, first_applied=5.0, last_applied=11.0))
    assert here.first_and_last() == (5.0, 11.0), "a later word takes the earlier one's place"


def test_what_a_server_reports_is_no_workers_position():
    here = PhaseMembership()
    note(here, Report("server", 0, 1, PHASE_ID, completed=9))
    assert here.positions == {} and here.doing == {}
