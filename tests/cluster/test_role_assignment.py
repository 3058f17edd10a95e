"""Which host runs a role, at home and where its host is away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.cluster.role_assignment import HEAD, RoleAssignment

THREE = RoleAssignment(num_hosts=3, num_workers=4, num_servers=2, patience_secs=20.0)
SLOTS = {0: 2, 1: 2, 2: 2}
AT_HOME = {("worker", worker): THREE.home("worker", worker) for worker in range(4)}


@given(st.integers(1, 20), st.integers(1, 40), st.integers(1, 8))
def test_each_host_has_its_share_of_the_workers_and_no_more_than_its_slots(
    hosts: int, workers: int, servers: int
) -> None:
    assignment = RoleAssignment(hosts, workers, servers)
    homes = [assignment.home("worker", worker) for worker in range(workers)]
    assert homes == sorted(homes), "neighbours lie on one host"
    counts = [homes.count(host) for host in range(hosts)]
    assert max(counts) - min(counts) <= 1 and max(counts) <= assignment.slots()
    on = [assignment.home("server", server) for server in range(servers)]
    assert len({*on}) == min(hosts, servers)
    assert assignment.home("chief", 0) == HEAD


def test_a_role_starts_at_home_whatever_runs_elsewhere() -> None:
    assert THREE.host("worker", 3, SLOTS, {}, AT_HOME) == 2
    assert THREE.host("server", 1, SLOTS, {}, {}) == 1


def test_a_role_waits_for_its_host_and_then_goes_to_a_free_slot() -> None:
    there = {0: 2, 1: 2}
    assert THREE.host("worker", 3, there, {2: 19.9}, AT_HOME) is None
    assert THREE.host("worker", 3, there, {2: 20.0}, AT_HOME) == 1, "host 0 has no free slot"


def test_a_worker_without_a_free_slot_waits_and_a_server_needs_none() -> None:
    there = {0: 2, 1: 1}
    assert THREE.host("worker", 3, there, {2: 99.0}, AT_HOME) is None
    assert THREE.host("server", 1, {0: 2, 2: 2}, {1: 99.0}, {("server", 0): 0}) == 2


def test_a_chief_is_started_nowhere_but_on_the_head() -> None:
    assert THREE.host("chief", 0, {1: 2, 2: 2}, {0: 99.0}, {}) is None
