"""Incarnations fence, leases expire; no clock is read."""

from __future__ import annotations

import pytest

from hybridsync.chief.membership import LEASE_SECS, Membership
from hybridsync.core.errors import NotRegistered, StaleIncarnation
from hybridsync.interfaces.messages import Hello


def hello(worker: int, restart_count: int = 0) -> Hello:
    return Hello("worker", worker, 10 + restart_count, "host", "address", "schema", "1", restart_count)


def test_a_newer_process_fences_the_older_one_by_name():
    members = Membership("worker")
    first = members.join(hello(2), now=0.0)
    second = members.join(hello(2, restart_count=1), now=1.0)
    assert (first.incarnation, second.incarnation) == (1, 2)
    members.beat(2, second.incarnation, 1.5)
    with pytest.raises(StaleIncarnation, match=f"worker 2 .*{first.incarnation}.*{second.incarnation}"):
        members.beat(2, first.incarnation, 2.0)
    member = members.get(2)
    assert member is not None and member.hello.pid == 11


def test_a_process_that_left_is_refused_and_its_successor_gets_a_new_incarnation():
    members = Membership("worker")
    first = members.join(hello(0), now=0.0)
    assert members.leave(0) == first
    assert members.leave(0) is None
    with pytest.raises(StaleIncarnation, match="lease has expired"):
        members.beat(0, first.incarnation, 0.1)
    with pytest.raises(StaleIncarnation, match="lease has expired"):
        members.join(hello(0), now=0.2)
    assert members.join(hello(0, restart_count=1), now=0.2).incarnation == first.incarnation + 1


def test_a_process_that_was_replaced_cannot_register_again():
    members = Membership("worker")
    members.join(hello(0, restart_count=3), now=0.0)
    with pytest.raises(StaleIncarnation, match="worker 0 speaks as incarnation 2, but incarnation 4"):
        members.join(hello(0, restart_count=1), now=0.1)


def test_a_process_that_is_newer_than_all_that_a_chief_knows_is_asked_to_register():
    """An earlier chief has let it in; to this one a process came first whose place it has taken."""
    members = Membership("worker")
    members.join(hello(1), now=0.0)
    with pytest.raises(NotRegistered, match="worker 1"):
        members.beat(1, incarnation=2, now=0.1)
    assert members.join(hello(1, restart_count=1), now=0.2).incarnation == 2
    with pytest.raises(StaleIncarnation):
        members.beat(1, incarnation=1, now=0.3)


def test_incarnations_are_lives_so_that_another_chief_counts_on():
    before, after = Membership("worker"), Membership("worker")
    assert (
        before.join(hello(1, restart_count=2), now=0.0).incarnation
        == after.join(hello(1, restart_count=2), now=9.0).incarnation
        == 3
    )


def test_registering_again_in_the_same_life_counts_as_a_sign_of_life():
    members = Membership("worker")
    members.join(hello(0), now=0.0)
    assert members.join(hello(0), now=5.0).incarnation == 1
    assert members.expired(5.0, LEASE_SECS) == ()


def test_after_a_silence_of_the_chiefs_own_everybody_counts_as_just_heard_of():
    members = Membership("worker")
    members.join(hello(0), now=0.0)
    members.refresh(50.0)
    assert members.expired(50.0 + LEASE_SECS, LEASE_SECS) == ()


def test_a_lease_runs_out_without_beats_and_not_before():
    members = Membership("worker")
    quiet, lively = members.join(hello(0), now=0.0), members.join(hello(1), now=0.0)
    members.beat(1, lively.incarnation, LEASE_SECS)
    assert members.expired(LEASE_SECS, LEASE_SECS) == ()
    assert members.expired(LEASE_SECS + 0.1, LEASE_SECS) == (quiet,)
    assert members.ids() == (0, 1)


def test_who_never_registered_is_asked_to():
    with pytest.raises(NotRegistered, match="worker 7 has not registered with this chief; register and call again"):
        Membership("worker").beat(7, 1, 0.0)
