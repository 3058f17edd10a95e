"""Incarnations fence, leases expire; no clock is read."""

from __future__ import annotations

import pytest

from hybridsync.chief.membership import LEASE_SECS, Membership
from hybridsync.errors import StaleIncarnation
from hybridsync.messages import Hello


def hello(worker: int, pid: int = 1) -> Hello:
    return Hello("worker", worker, pid, "host", "address", "schema", "1")


def test_a_newer_process_fences_the_older_one_by_name():
    members = Membership("worker")
    first = members.join(hello(2, pid=10), now=0.0)
    second = members.join(hello(2, pid=11), now=1.0)
    assert second.incarnation > first.incarnation
    members.beat(2, second.incarnation, 1.5)
    with pytest.raises(StaleIncarnation, match=f"worker 2 .*{first.incarnation}.*{second.incarnation}"):
        members.beat(2, first.incarnation, 2.0)
    assert members.get(2) is not None
    assert members.get(2).hello.pid == 11


def test_a_process_that_left_is_refused_and_its_successor_gets_a_new_incarnation():
    members = Membership("worker")
    first = members.join(hello(0), now=0.0)
    assert members.leave(0) == first
    assert members.leave(0) is None
    with pytest.raises(StaleIncarnation, match="lease has expired"):
        members.beat(0, first.incarnation, 0.1)
    assert members.join(hello(0), now=0.2).incarnation == first.incarnation + 1


def test_a_lease_runs_out_without_beats_and_not_before():
    members = Membership("worker")
    quiet, lively = members.join(hello(0), now=0.0), members.join(hello(1), now=0.0)
    members.beat(1, lively.incarnation, LEASE_SECS)
    assert members.expired(LEASE_SECS, LEASE_SECS) == ()
    assert members.expired(LEASE_SECS + 0.1, LEASE_SECS) == (quiet,)
    assert members.ids() == (0, 1)


def test_an_unknown_role_is_refused():
    with pytest.raises(StaleIncarnation, match="worker 7"):
        Membership("worker").beat(7, 1, 0.0)
