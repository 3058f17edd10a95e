"""The group generators: whatever happens in whatever order, nobody waits in a circle, or for one who never comes."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync import protocols
from hybridsync.core.errors import ConfigError
from hybridsync.protocols.group_generators import Arrivals, Group, GroupRule
from hybridsync.protocols.group_queue import Queued
from hybridsync.protocols.group_size import GroupSize
from hybridsync.protocols.preduce import static_schedule

SPECS = (
    *("preduce(buffer=false,division=false,slowdown=0)", "preduce(buffer=false,division=false,size=4,slowdown=2)"),
    *("preduce(division=false,size=3)", "preduce(buffer=false,size=3)", "preduce(groups=inter,node=3,slowdown=1)"),
    *("preduce(size=auto)", "preduce(groups=inter,size=auto,node=4)"),
    *("preduce", "preduce(size=3)", "preduce(size=9)", "preduce(slowdown=0)", "preduce(slowdown=1,size=3)"),
    *("preduce(groups=arrival)", "preduce(groups=arrival,size=3,period=2)", "preduce(groups=arrival,period=0)"),
    *("preduce(groups=static)", "preduce(groups=static,node=3)", "preduce(groups=inter,node=2)", "adpsgd"),
)


class Cluster:
    """Workers as a generator sees them, and what must hold after each of its answers."""

    def __init__(self, rule: GroupRule) -> None:
        self.rule, self.at = rule, 0.0
        self.computing: list[int] = []
        self.waiting: list[int] = []
        self.idle: list[int] = []
        self.back: list[int] = []
        self.serving: set[int] = set()
        self.over: list[int] = []
        self.started: list[Group] = []
        for worker in rule.members:
            rule.on_join(worker)
            self.computing.append(worker)

    def join_group(self, worker: int, *, last: bool = False) -> None:
        home = next(each for each in (self.computing, self.back, self.idle) if worker in each)
        home.remove(worker)
        self.serving.discard(worker)
        self.waiting.append(worker)
        self._take(self.rule.on_arrival(worker, self.at, last=last))

    def serve(self, worker: int) -> None:
        self.serving.add(worker)
        self._take(self.rule.on_serving(worker, self.at))

    def rest(self, worker: int) -> None:
        self.computing.remove(worker)
        self.serving.discard(worker)
        self.idle.append(worker)
        self._take(self.rule.on_idle(worker, self.at))

    def wake(self, worker: int) -> None:
        self.idle.remove(worker)
        self.computing.append(worker)

    def leave(self, worker: int) -> None:
        self.serving.discard(worker)
        for known in (self.computing, self.waiting, self.idle, self.back):
            if worker in known:
                known.remove(worker)
        self._take(self.rule.on_leave(worker, self.at))

    def wait(self) -> None:
        if self.rule.due < math.inf:
            self.at = max(self.at, self.rule.due)
            self._take(self.rule.on_time(self.at))

    def call(self) -> None:
        self._take(self.rule.synchronise(self.at))

    def _take(self, started: list[Group]) -> None:
        for group in started:
            assert len(set(group.members)) == len(group.members)
            for member in group.members:
                if member in self.serving:  # it goes on computing
                    self.serving.remove(member)
                    continue
                assert member in self.waiting, f"{member} is in {group}, but has not come or is in another one"
                self.waiting.remove(member)
                (self.back if member in group.again else self.computing).append(member)
            if group.is_full_sync:
                assert not self.idle and not self.waiting, f"{group} lacks {self.idle + self.waiting}"
        self.started += started
        self.check()

    def check(self) -> None:
        waits = self.rule.waits_for()
        assert sorted(waits) == sorted(self.waiting)
        here = {*self.computing, *self.waiting, *self.idle, *self.back}
        for worker, missing in waits.items():
            assert worker not in missing and here.issuperset(missing), f"{worker} waits for {missing}"
            if not self.rule.calls_everybody and not self.rule._closing:
                assert not set(missing) & set(self.idle), f"{worker} waits for idle {missing}"
        while free := [worker for worker, missing in waits.items() if not set(missing) & waits.keys()]:
            for worker in free:
                del waits[worker]
        assert not waits, f"these wait in a circle: {waits}"

    def finish(self, random: Random) -> None:
        """Let everybody come to the end in any order; nobody may be left waiting."""
        steps = 0
        while self.computing or self.back or self.rule.calls_everybody:
            steps += 1
            assert steps < 2_000, "the group rounds never end"
            if self.rule.calls_everybody and self.idle:
                self.join_group(random.choice(self.idle))
            elif self.back and random.random() < 0.5:
                self.join_group(random.choice(self.back))
            elif self.computing and (random.random() < 0.7 or self.waiting):
                worker = random.choice(self.computing)
                if random.random() < 0.2 and not self.rule.calls_everybody:
                    self.rest(worker)
                else:
                    self.join_group(worker)
            elif self.computing:
                self.rest(random.choice(self.computing))
        self.wait()
        assert not self.waiting, f"{self.rule.waits_for()} wait, and nobody is left to come"
        for worker in random.sample(self.idle, len(self.idle)):
            self.join_group(worker, last=True)
        assert not self.waiting
        if self.started and self.rule._present:
            assert self.started[-1].is_full_sync and set(self.started[-1].members) == set(self.rule._present)


def act(cluster: Cluster, random: Random) -> None:
    """Let one thing happen, of those that can."""
    cluster.at += random.choice((0.0, 0.1, 1.0))
    called = cluster.rule.calls_everybody
    things: list[Callable[[], None]] = []
    if cluster.computing:
        things += [lambda: cluster.join_group(random.choice(cluster.computing))] * 6
        things += [] if called else [lambda: cluster.rest(random.choice(cluster.computing))]
        if isinstance(cluster.rule, Queued):
            things += [lambda: cluster.serve(random.choice(cluster.computing))] * 2
    if cluster.back:
        things += [lambda: cluster.join_group(random.choice(cluster.back))] * 4
    if cluster.idle:
        wake = cluster.join_group if called else cluster.wake
        things += [lambda: wake(random.choice(cluster.idle))] * 2
    present = cluster.computing + cluster.waiting + cluster.idle + cluster.back
    if len(present) > 1 and random.random() < 0.1:
        things += [lambda: cluster.leave(random.choice(present))]
    if random.random() < 0.1:
        things += [cluster.call]
    things += [cluster.wait]
    random.choice(things)()


@pytest.mark.parametrize("spec", SPECS)
@given(num_workers=st.integers(1, 9), seed=st.integers(0, 2**32), num_acts=st.integers(0, 60))
def test_nobody_waits_for_ever_or_in_a_circle_whatever_happens(
    spec: str, num_workers: int, seed: int, num_acts: int
) -> None:
    random = Random(seed)
    cluster = Cluster(protocols.parse(spec).group_rule(tuple(range(num_workers)), seed))
    for _ in range(num_acts):
        act(cluster, random)
    cluster.finish(random)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "arrival" not in spec and "static" not in spec])
@given(num_workers=st.integers(2, 9), seed=st.integers(0, 2**32))
def test_every_workers_groups_start_in_the_one_order_in_which_they_were_made(
    spec: str, num_workers: int, seed: int
) -> None:
    random = Random(seed)
    rule = protocols.parse(spec).group_rule(tuple(range(num_workers)), seed)
    assert isinstance(rule, Queued)
    order: list[list[int]] = []
    make, begun, last = rule._make, rule._begun, dict.fromkeys(range(num_workers), -1)

    def numbered(worker: int) -> list[list[int]]:
        order.extend(made := make(worker))
        return made

    def in_order(group: list[int], at: float) -> Group:
        number = next(index for index, each in enumerate(order) if each is group)
        for member in group:
            assert last[member] < number, f"worker {member} was in group {last[member]} before, now in {number}"
            last[member] = number
        return begun(group, at)

    rule._make, rule._begun = numbered, in_order
    cluster = Cluster(rule)
    for _ in range(60):
        act(cluster, random)
    cluster.finish(random)
    assert not rule._pending and not rule._asked


def test_the_naive_generator_draws_who_is_taken_and_a_worker_goes_on_behind_its_own_group() -> None:
    rule = Queued((0, 1), 0, 2, buffer=False, division=False)
    cluster = Cluster(rule)
    cluster.join_group(0)
    cluster.join_group(1)
    assert cluster.started == [Group((0, 1), again=(1,))], "worker 1 has asked for another one"
    cluster.join_group(1)
    assert rule.waits_for() == {1: (0,)} and rule._counts == {0: 1, 1: 1}
    cluster.join_group(0)
    assert cluster.started[1:] == [Group((0, 1), again=(0,))], "worker 0 did not ask for this one"


def test_with_the_buffer_alone_a_worker_takes_the_group_that_another_has_drawn_it_into() -> None:
    cluster = Cluster(Queued((0, 1), 0, 2, buffer=True, division=False))
    for worker in (0, 1) * 3:
        cluster.join_group(worker)
    assert cluster.started == [Group((0, 1))] * 3


def test_two_phases_meet_across_the_nodes_and_then_inside_them() -> None:
    rule = protocols.parse("preduce(groups=inter,node=3)").group_rule(tuple(range(6)), 1)
    cluster = Cluster(rule)
    for worker in (*range(6), *range(6)):
        cluster.join_group(worker)
    pairs = [
        group.members for group in cluster.started if {0, 1, 2} & {*group.members} and {3, 4, 5} & {*group.members}
    ]
    assert len(pairs) == 1 and len(pairs[0]) == 2, "one head of each node"
    assert [group.members for group in cluster.started[-2:]] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize("slow", [1, 3, 10])
def test_two_phases_on_one_node_are_its_random_groups(slow: int) -> None:
    """Phases would have left most workers alone, as soon as one had been the head too often."""
    started = []
    for spec in ("preduce", "preduce(groups=inter,node=4)"):
        cluster = Cluster(protocols.parse(spec).group_rule(tuple(range(4)), 0))
        for turn in range(100):
            for worker in range(1 if turn % slow else 0, 4):
                if worker in cluster.computing:
                    cluster.join_group(worker)
        started.append([group.members for group in cluster.started])
    assert started[0] == started[1]
    assert sum(len(group) == 1 for group in started[0]) < 0.1 * sum(map(len, started[0]))


def fewest_rounds(spec: str) -> int:
    """Return the fewest group rounds of three workers in a hundred turns, beside one that takes ten turns for each."""
    cluster = Cluster(protocols.parse(spec).group_rule(tuple(range(4)), 0))
    for turn in range(100):
        for worker in range(1 if turn % 10 else 0, 4):
            if worker in cluster.computing:
                cluster.join_group(worker)
    return min(sum(worker in group.members for group in cluster.started) for worker in (1, 2, 3))


def test_a_slow_worker_stalls_neither_its_node_nor_the_heads() -> None:
    assert fewest_rounds("preduce(groups=static,node=2)") < 30
    assert fewest_rounds("preduce(groups=inter,node=2,slowdown=0)") < 30
    assert fewest_rounds("preduce(groups=inter,node=2,slowdown=4)") > 80


def rounds_of(sizes: GroupSize, average_secs: Callable[[int], float], count: int) -> list[int]:
    """Return the size behind each group round of two workers that compute for a second between two of them."""
    found, at = [], 0.0
    for _ in range(count):
        for worker in (0, 1):
            sizes.on_request(worker, at, average_secs(sizes.size))
            sizes.on_start(worker, at, sizes.size)
        at += 1.0 + average_secs(sizes.size)
        found.append(sizes.size)
    return found


def test_a_measured_size_grows_while_an_average_costs_little_and_does_not_try_again_what_was_too_dear() -> None:
    assert rounds_of(GroupSize(2, 8), lambda size: 0.01 * size, 60)[-1] == 8
    dear = rounds_of(GroupSize(2, 8), lambda size: 0.04 * size, 200)
    assert max(dear) == 7 and dear.index(7) > dear.index(6), "0.28 s of 1.28"
    assert set(dear[dear.index(7) + 20 :]) == {6}
    assert set(rounds_of(GroupSize(2, 8), lambda size: 1.0, 60)) == {2}
    assert set(rounds_of(GroupSize(3, 3), lambda size: 1.0, 60)) == {3}


@given(seed=st.integers(0, 2**32), num_workers=st.integers(2, 9), size=st.integers(2, 5))
def test_whoever_waits_for_a_made_group_is_answered_when_its_members_have_come_once(
    seed: int, num_workers: int, size: int
) -> None:
    random, cluster = Random(seed), Cluster(Queued(tuple(range(num_workers)), seed, size, slowdown=3))
    for _ in range(random.randrange(40)):
        act(cluster, random)
    cluster.finish(random) if cluster.rule.calls_everybody else None
    before = list(cluster.waiting)
    assert not cluster.back
    for worker in random.sample(cluster.computing, len(cluster.computing)):
        cluster.join_group(worker)
    assert not set(before) & set(cluster.waiting)


@given(seed=st.integers(0, 2**32), slowdown=st.integers(1, 5))
def test_nobody_waits_for_a_worker_that_the_filter_leaves_out(seed: int, slowdown: int) -> None:
    random, cluster = Random(seed), Cluster(Queued(tuple(range(6)), seed, 3, slowdown=slowdown))
    for _ in range(200):
        worker = random.choice(cluster.computing)
        if worker == 0 and random.random() < 0.9:  # a straggler
            continue
        pending = [*cluster.rule._pending]  # pyright: ignore[reportAttributeAccessIssue]
        cluster.join_group(worker)
        if not any(worker in group for group in pending):
            counts = cluster.rule._counts
            for missing in cluster.rule.waits_for().get(worker, ()):
                assert counts[worker] - counts[missing] < slowdown


def test_a_slow_worker_is_joined_by_others_and_holds_nobody_up() -> None:
    cluster = Cluster(Queued((0, 1, 2, 3), 0, 2, slowdown=2))
    for _ in range(20):
        for worker in (1, 2, 3):
            if worker in cluster.computing:
                cluster.join_group(worker)
    fast = [group for group in cluster.started[6:] if 0 in group.members]
    assert not fast
    cluster.join_group(0)
    for worker in (1, 2, 3):
        if worker in cluster.computing:
            cluster.join_group(worker)
    assert any(0 in group.members and len(group.members) > 1 for group in cluster.started)


def test_groups_are_as_random_as_their_seed() -> None:
    def groups_drawn(seed: int) -> list[Group]:
        cluster = Cluster(Queued(tuple(range(8)), seed, 2, slowdown=4))
        for round_ in range(20):
            for worker in range(8):
                if worker in cluster.computing:
                    cluster.join_group((worker + round_) % 8) if (worker + round_) % 8 in cluster.computing else None
        return cluster.started

    assert groups_drawn(1) == groups_drawn(1) != groups_drawn(2)
    partners = {
        frozenset(group.members) for seed in range(20) for group in groups_drawn(seed) if len(group.members) == 2
    }
    assert len(partners) == 28, "every pair of eight workers is drawn"


def test_one_group_of_all_is_everybody_at_every_group_round() -> None:
    cluster = Cluster(Queued((0, 1, 2), 0, 3, slowdown=0))
    for _ in range(3):
        for worker in (2, 0, 1):
            cluster.join_group(worker)
    assert cluster.started == [Group((0, 1, 2))] * 3


def test_a_partner_takes_part_while_it_computes_and_then_asks_for_one_of_its_own() -> None:
    rule = protocols.parse("adpsgd").group_rule((0, 1, 2), 0)
    cluster = Cluster(rule)
    cluster.join_group(0)
    (partner,) = rule.waits_for()[0]
    cluster.serve(partner)
    assert cluster.started == [Group(tuple(sorted((0, partner))))] and not rule.waits_for()
    cluster.join_group(partner)
    (other,) = rule.waits_for()[partner]
    assert other in (0, next(worker for worker in (1, 2) if worker != partner))


def test_an_arrival_group_waits_a_mean_gap_or_for_enough() -> None:
    rule = Arrivals((0, 1, 2, 3), 0, size=3, patience=1.0, period=0)
    for worker in range(4):
        rule.on_join(worker)
    assert rule.on_arrival(0, 0.0) == [Group((0,))], "there is no gap yet to wait for"
    assert rule.on_arrival(1, 1.0) == [] and rule.due == 2.0
    assert rule.on_time(1.5) == []
    assert rule.on_time(2.0) == [Group((1,))] and rule.due == math.inf
    assert rule.on_arrival(2, 2.0) == [] and rule.on_arrival(3, 2.5) == []
    assert rule.on_arrival(1, 2.6) == [Group((1, 2, 3))]


def test_arrival_groups_meet_all_together_every_so_often() -> None:
    cluster = Cluster(Arrivals((0, 1), 0, size=2, patience=0.0, period=3))
    for _ in range(20):
        for worker in list(cluster.computing):
            cluster.at += 0.5
            cluster.join_group(worker)
            cluster.wait()
    assert [group.is_full_sync for group in cluster.started].count(True) == 5


@pytest.mark.parametrize(("num_workers", "node"), [(8, 4), (4, 4), (5, 4), (6, 2), (3, 1), (9, 3), (16, 4)])
def test_a_schedule_has_every_worker_in_one_group_of_each_group_round_and_connects_all(
    num_workers: int, node: int
) -> None:
    known = {worker: {worker} for worker in range(num_workers)}
    for groups in static_schedule(num_workers, node) * num_workers:
        assert sorted(w for group in groups for w in group) == list(range(num_workers))
        for group in groups:
            union = set().union(*(known[worker] for worker in group))
            known.update(dict.fromkeys(group, union))
    assert all(len(heard) == num_workers for heard in known.values())


def test_the_static_schedule_of_nodes_of_four_is_the_published_one() -> None:
    first, second, third, fourth = static_schedule(8, 4)
    assert set(first) == {(0, 4), (1,), (5,), (2, 3), (6, 7)}
    assert second == fourth == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert set(third) == {(0, 3), (4, 7), (1, 5), (2,), (6,)}


def test_a_full_synchronisation_takes_also_who_has_no_work_and_dissolves_what_was_made() -> None:
    cluster = Cluster(Queued((0, 1, 2), 3, 2, division=False))
    cluster.join_group(0)
    cluster.rest(next(w for w in (1, 2) if w not in cluster.rule.waits_for().get(0, ())))
    cluster.call()
    assert cluster.rule.calls_everybody and 0 in cluster.waiting
    for worker in (1, 2):
        cluster.join_group(worker)
    assert cluster.started == [Group((0, 1, 2), is_full_sync=True)] and not cluster.rule.calls_everybody


def test_the_last_group_round_waits_for_all_and_whoever_has_work_left_goes_on_alone() -> None:
    cluster = Cluster(Queued((0, 1), 0, 2, slowdown=0))
    cluster.join_group(0)
    cluster.join_group(1)
    cluster.join_group(0, last=True)
    cluster.join_group(1)
    assert cluster.started[1:] == [Group((1,))]
    cluster.join_group(1, last=True)
    assert cluster.started[-1] == Group((0, 1), is_full_sync=True)


def test_more_units_between_two_group_rounds_than_a_message_tells_of_are_refused() -> None:
    protocols.parse("preduce(every=5000)").group_rule((0, 1), 0)
    with pytest.raises(ConfigError, match=r"every=5000\) of 3 workers tells of 15,000 units .* above the 10,000"):
        protocols.parse("preduce(every=5000)").group_rule((0, 1, 2), 0)


REFUSED = (
    ("preduce(groups=static,size=auto)", "groups=static,size=auto"),
    ("preduce(groups=inter,buffer=false)", "buffer=false"),
    ("preduce(size=some)", "size='some'"),
)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("preduce(groups=any)", "groups=any"),
        ("preduce(size=1)", "size=1"),
        ("preduce(period=-1)", "period=-1"),
        *REFUSED,
    ],
)
def test_what_makes_no_groups_is_refused_with_the_value(spec: str, named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        protocols.parse(spec)
    assert named in str(refusal.value)
