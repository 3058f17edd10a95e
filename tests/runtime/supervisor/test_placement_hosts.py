"""For how long workers wait for a host: before they have met, and in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from hybridsync.cluster.role_assignment import RoleAssignment
from hybridsync.collectives.backend import NO_GROUP
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.supervisor.placement import Beginning, Placement, RunningRole, Step
from hybridsync.runtime.supervisor.process_group_service import ProcessGroupService
from hybridsync.runtime.supervisor.run_hosts import RunHosts
from hybridsync.runtime.supervisor.supervisor import SupervisorSpec
from hybridsync.runtime.wiring import HOST

SLOTS = (0, 1, 2)
PATIENCE_SECS, ATTACH_SECS, BEFORE_SECS = 20.0, 300.0, 10.0


class Hosts:
    """Three hosts, as far as a placement asks."""

    def __init__(self, slots: int, now: float) -> None:
        self.there = dict.fromkeys(range(3), slots)
        self.away_since: dict[int, float] = {}
        self.now = now

    def slots(self) -> Mapping[int, int]:
        return self.there

    def away_secs(self) -> Mapping[int, float]:
        return {host: self.now - since for host, since in self.away_since.items()}


class Scene:
    """A run of three workers on three hosts, one each, all of which run and have met at the time 1000 s."""

    def __init__(self, addresses: RoleAddresses, slots: int = 1, min_workers: int = 0) -> None:
        spec = SupervisorSpec((), cast(Any, None), 3, num_hosts=3, min_workers=min_workers, head="10.0.0.1:4711")
        assignment = RoleAssignment(3, 3, patience_secs=PATIENCE_SECS)
        self.now, self.hosts = 1000.0, Hosts(slots, 1000.0)
        self.running = {("worker", worker): RunningRole("worker", worker, 0, 100 + worker, worker) for worker in SLOTS}
        self.beginning = Beginning(spec, assignment, self.now - BEFORE_SECS)
        hosts = cast(RunHosts, self.hosts)
        self.placement = Placement(assignment, hosts, self.running, self.beginning.absent)
        self.group = ProcessGroupService(HOST, addresses, is_needed=False)
        for host in (1, 2):
            self.beginning.host_joined(host, self.now)
        assert self.step() is Step.BEGIN
        self.meet()

    def meet(self) -> None:
        self.serve()
        self.group.joined(NO_GROUP)
        assert self.step() is Step.WAIT

    def serve(self) -> None:
        """Serve a group of the workers that are there; they have not met in it."""
        self.beginning.group_renewed(self.now)
        self.group.serve(self.placement.present(SLOTS))

    def lose(self, host: int) -> None:
        del self.hosts.there[host]
        self.hosts.away_since[host] = self.now
        self.beginning.host_lost(host, self.now)
        del self.running["worker", host]
        self.placement.want(("worker", host), "restart")

    def come_back(self, host: int) -> None:
        """Have the host there again, and its worker with it, which has not met the others."""
        self.hosts.there[host] = 1
        del self.hosts.away_since[host]
        self.beginning.host_joined(host, self.now)
        ((key, at, _),) = self.placement.due(workers=True)
        self.placement.settle(key)
        self.running[key] = RunningRole("worker", host, 1, 200 + host, at)

    def after(self, secs: float) -> Step:
        self.now += secs
        self.hosts.now = self.now
        return self.step()

    def step(self) -> Step:
        return self.beginning.step(self.now, SLOTS, self.group, self.placement)


@pytest.fixture
def addresses() -> Iterator[RoleAddresses]:
    with closing(RoleAddresses("127.0.0.1", num_hosts=3)) as addresses:
        yield addresses


def test_a_group_that_lacks_a_host_in_the_middle_of_a_run_goes_on_without_it_when_patience_is_over(addresses):
    scene = Scene(addresses)
    scene.after(500.0)
    scene.serve()
    scene.lose(2)
    assert scene.after(PATIENCE_SECS - 0.5) is Step.WAIT
    assert scene.after(0.5) is Step.GO_ON_WITHOUT
    assert scene.beginning.take_said() == "the run goes on without host 2: it is away"
    scene.serve()
    assert scene.group.slots == (0, 1)
    assert scene.after(2 * ATTACH_SECS) is Step.WAIT, "nobody waits for it in there"


def test_a_group_that_is_renewed_long_after_a_host_was_lost_does_not_end_the_run(addresses):
    scene = Scene(addresses)
    scene.lose(2)
    assert scene.after(ATTACH_SECS + 1.0) is Step.WAIT
    scene.serve()
    assert scene.group.slots == (0, 1)
    assert scene.after(1.0) is Step.WAIT
    scene.lose(1)
    assert scene.after(PATIENCE_SECS) is Step.GO_ON_WITHOUT
    assert scene.beginning.take_said() == "the run goes on without host 1: it is away"


def test_a_host_that_is_lost_again_and_again_is_waited_for_once_in_a_group(addresses):
    scene = Scene(addresses)
    scene.serve()
    scene.lose(2)
    assert scene.after(14.0) is Step.WAIT
    scene.come_back(2)
    assert scene.after(3.0) is Step.WAIT
    scene.lose(2)
    assert scene.after(2.5) is Step.WAIT
    assert scene.after(0.5) is Step.GO_ON_WITHOUT, "and not 20 s after each loss"
    scene.serve()
    scene.come_back(2)
    scene.serve()
    scene.lose(2)
    assert scene.after(PATIENCE_SECS - 0.5) is Step.WAIT, "in another group it is waited for anew"


def test_another_host_that_is_lost_meanwhile_is_waited_for_as_well(addresses):
    scene = Scene(addresses)
    scene.serve()
    scene.lose(2)
    scene.after(10.0)
    scene.lose(1)
    assert scene.after(PATIENCE_SECS - 0.5) is Step.WAIT
    assert scene.after(0.5) is Step.GO_ON_WITHOUT
    assert scene.beginning.take_said() == "the run goes on without host 1, 2: it is away"


def test_workers_that_have_met_go_on_in_their_group_whoever_is_lost(addresses):
    scene = Scene(addresses)
    scene.lose(2)
    assert scene.after(PATIENCE_SECS) is Step.WAIT
    assert scene.after(ATTACH_SECS) is Step.WAIT


def test_a_worker_that_finds_a_slot_elsewhere_keeps_its_place_in_the_group(addresses):
    scene = Scene(addresses, slots=2)
    scene.serve()
    scene.lose(2)
    assert scene.after(PATIENCE_SECS) is Step.WAIT
    assert list(scene.placement.due(workers=True)) == [(("worker", 2), 0, "restart")]


def test_fewer_workers_than_the_run_needs_are_waited_for_as_long_as_before_the_first_step(addresses):
    scene = Scene(addresses, min_workers=3)
    scene.after(500.0)
    scene.serve()
    scene.lose(2)
    assert scene.after(ATTACH_SECS - 0.5) is Step.WAIT
    assert scene.after(0.5) is Step.FAIL
    assert "host 2 has not attached to the head at 10.0.0.1:4711 within 300 s" in scene.beginning.take_said()


def test_a_renewal_with_too_few_workers_waits_anew(addresses):
    scene = Scene(addresses, min_workers=3)
    scene.serve()
    scene.lose(2)
    assert scene.after(ATTACH_SECS - 1.0) is Step.WAIT
    scene.beginning.group_renewed(scene.now)
    assert scene.after(ATTACH_SECS - 1.0) is Step.WAIT
    assert scene.after(1.0) is Step.FAIL


def test_a_host_that_never_came_gives_its_roles_up_also_when_the_others_have_met(addresses):
    scene = Scene(addresses)
    scene.beginning.absent.add(2)
    assert scene.after(ATTACH_SECS - BEFORE_SECS - 1.0) is Step.WAIT and scene.beginning.absent == {2}
    assert scene.after(1.0) is Step.WAIT and scene.beginning.absent == set()
