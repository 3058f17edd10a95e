"""Several servers as one: each unit once, each pull a cut of all of them, each snapshot whole, bit for bit as one."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import jax
import numpy as np
import pytest

from hybridsync import protocols
from hybridsync.core.errors import HybridSyncError, RoleLost, StaleIncarnation, StalePhase, StillHeld
from hybridsync.interfaces.messages import Push, Update
from hybridsync.interfaces.phase import Phase
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.lab.replay.phases import on_one_device
from hybridsync.protocols.asp import Asp
from hybridsync.protocols.base import Apply, Arrival, Release, ServerRule
from hybridsync.server import primary as primary_module
from hybridsync.server.secondary import Secondary
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from tests.roles import push_of
from tests.server.cluster import Cluster
from tests.tasks import adamw, batchnorm_task, mlp_task, momentum_sgd, programs_of
from tests.transport.copying import Block, aligned_copy

WORKERS = 4
UNITS = 60


@functools.cache
def programs() -> Programs:
    return programs_of(mlp_task(), momentum_sgd())


@functools.cache
def with_statistics() -> Programs:
    return programs_of(batchnorm_task(), adamw())


def trained_by_threads(cluster: Cluster, phase, units: int = UNITS, num_workers: int = WORKERS) -> None:
    """Let every worker pull, compute and push until the units are used up."""
    left = iter(range(units))
    lock = threading.Lock()

    def work(worker: int) -> None:
        link = cluster.link()
        reply, parameters = link.pull(push_of(phase, worker=worker))
        while True:
            with lock:
                unit = next(left, None)
            if unit is None:
                return
            gradient = jax.block_until_ready(cluster.programs.gradient(parameters, unit))
            reply, parameters = link.push_pull(push_of(phase, unit, worker=worker, base=reply.sequence), gradient)

    with ThreadPoolExecutor(num_workers) as threads:
        for future in [threads.submit(work, worker) for worker in range(num_workers)]:
            future.result(timeout=100)


def replayed(cluster: Cluster, spec: str = "asp", rate: float | None = None):
    """Return the state after the log's updates, computed in one piece, at another rate where one is given."""
    entries = [entry if rate is None else replace(entry, rate=rate) for entry in cluster.log.entries]
    phase = LoggedPhase(1, spec, (0, 1, 2, 3), 0, "inprocess", "", tuple(entries))
    start = jax.device_put(jax.tree.map(np.copy, cluster.state))
    return jax.device_get(on_one_device(cluster.programs, start, phase, lambda update: None))


@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("make", [programs, with_statistics], ids=["momentum", "adamw and statistics"])
def test_what_many_workers_trained_on_several_servers_is_replayed_in_one_piece_bit_for_bit(make, num_servers):
    cluster = Cluster(make(), num_servers)
    phase = cluster.enter()
    trained_by_threads(cluster, phase)
    snapshot, state = cluster.captured(phase)
    assert snapshot.applied == ((0, UNITS),)
    assert snapshot.held.sequence == UNITS
    assert snapshot.held.fingerprint == fingerprint(state) == fingerprint(replayed(cluster))
    assert {entry.base for entry in cluster.log.entries} > {0}
    assert cluster.failures == []


class Pairs(Asp):
    """Two pushes make an update, in the order of their workers, at twice the rate."""

    name: ClassVar[str] = "pairs"

    def server_rule(self, members):
        return PairRule()


class PairRule(ServerRule):
    def __init__(self) -> None:
        self.held: list[Arrival] = []

    def on_push(self, arrival):
        self.held.append(arrival)
        if len(self.held) < 2:
            return []
        pushes = tuple(held.push_id for held in sorted(self.held, key=lambda held: -held.worker))
        self.held = []
        return [Apply(pushes, lr_factor=2.0), *map(Release, pushes)]


@pytest.mark.parametrize("num_servers", [1, 3])
@pytest.mark.parametrize(
    "spec",  # however the threads are scheduled, none of the 60 units is too late for gba
    ["asp(staleness_rule=dc)", "gba(tolerance=60,staleness_rule=dc_adaptive)", "asp(staleness_rule=rate)"],
)
def test_what_is_made_up_for_staleness_is_the_same_on_every_server_and_in_one_piece(num_servers, spec):
    cluster = Cluster(programs(), num_servers)
    phase = cluster.enter(spec=spec)
    trained_by_threads(cluster, phase)
    snapshot, state = cluster.captured(phase)
    assert snapshot.applied == ((0, UNITS),)
    assert fingerprint(state) == fingerprint(replayed(cluster, spec)) != fingerprint(replayed(cluster, "asp", rate=1.0))
    assert cluster.failures == []


@pytest.mark.parametrize("num_servers", [1, 3])
def test_updates_of_several_pushes_have_their_order_and_rate_on_every_server(num_servers, monkeypatch):
    monkeypatch.setitem(protocols.REGISTRY, "pairs", Pairs)
    cluster = Cluster(with_statistics(), num_servers)
    phase = cluster.enter(spec="pairs")
    trained_by_threads(cluster, phase, 20, num_workers=2)
    snapshot, state = cluster.captured(phase)
    assert (snapshot.held.units, snapshot.held.sequence) == (20, 10)
    assert fingerprint(state) == fingerprint(replayed(cluster))


def test_a_push_that_is_held_longer_than_its_calls_is_applied_once_on_every_server(monkeypatch):
    monkeypatch.setitem(protocols.REGISTRY, "pairs", Pairs)
    monkeypatch.setattr(primary_module, "HELD_SECS", 0.02)
    cluster = Cluster(programs(), 3)
    phase = cluster.enter(spec="pairs")
    for _ in range(3):
        with pytest.raises(StillHeld):
            pushed(cluster, phase, 3, 0)
    assert staged(cluster) == [1, 1], "what is held stays staged, once"
    pushed(cluster, phase, 4, 1)
    assert pushed(cluster, phase, 3, 0)[0].sequence == 1
    assert staged(cluster) == [0, 0]
    for client in cluster.clients:
        assert [block.num_released for block in client.blocks] == [1] * 5
    snapshot, state = cluster.captured(phase)
    assert (snapshot.applied, snapshot.held.sequence) == (((3, 5),), 1)
    assert fingerprint(state) == fingerprint(replayed(cluster))


def test_blocks_and_snapshots_are_given_back_as_soon_as_nobody_may_ask_for_them():
    cluster = Cluster(programs(), 3)
    phase = cluster.enter()
    trained_by_threads(cluster, phase)
    cluster.captured(phase)
    for store, client in zip(cluster.stores, cluster.clients, strict=True):
        assert len(client.blocks) == UNITS
        assert [block.num_released for block in client.blocks] == [1] * UNITS
        assert len(store._kept) <= WORKERS + 1
        assert len(store._pool._copies) <= 2 * WORKERS + 2


def test_captures_taken_among_pushes_are_consistent_cuts_that_training_goes_on_behind():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    snapshots = []
    with ThreadPoolExecutor(1) as threads:
        training = threads.submit(trained_by_threads, cluster, phase)
        while not training.done() and len(snapshots) < 5:
            snapshots.append(cluster.captured(phase, final=False))
        training.result(timeout=100)
    log = cluster.log.entries
    for snapshot, state in snapshots:
        cluster.log.entries = log[: snapshot.held.sequence]
        expected = replayed(cluster) if cluster.log.entries else cluster.state
        assert fingerprint(state) == snapshot.held.fingerprint == fingerprint(expected)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 2), (2, 1)])
def test_the_state_goes_from_some_servers_to_others_bit_for_bit(before, after):
    first, second = Cluster(with_statistics(), before), Cluster(with_statistics(), after)
    phase = first.enter()
    trained_by_threads(first, phase, 10)
    snapshot, _ = first.captured(phase)
    second.roles["first"] = first.primary
    again = second.enter(2, snapshot, "first")
    taken, _ = second.captured(again)
    assert taken.held.fingerprint == snapshot.held.fingerprint
    assert taken.applied == snapshot.applied


# --- pushes ---


def pushed(cluster: Cluster, phase, unit: int, worker: int = 0, base: int = 0, **fields):
    return cluster.link().push_pull(push_of(phase, unit, worker=worker, base=base, **fields), gradient_of(unit))


@functools.cache
def gradient_of(unit: int):
    state = Cluster(programs(), 1).state
    return jax.device_get(programs().gradient(Parameters(state.params, state.model_state), unit))


def settled(cluster: Cluster) -> None:
    """Wait until the stores have done all that the primary told them."""
    sequence = cluster.primary.take_report().sequence
    for snapshot in cluster.primary._state.snapshot_part(sequence, final=False, left=()):
        snapshot.fetch()


def staged(cluster: Cluster) -> list[int]:
    settled(cluster)
    return [len(store._staged) for store in cluster.stores]


def test_a_repeated_push_is_applied_once_and_leaves_nothing_staged():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    first, parameters = pushed(cluster, phase, 3)
    before = fingerprint(parameters)
    for worker, incarnation in [(0, 1), (0, 2), (1, 1)]:
        again, parameters = pushed(cluster, phase, 3, worker, incarnation=incarnation)
        assert again.duplicate and again.sequence == first.sequence == 1
        assert fingerprint(parameters) == before
    assert staged(cluster) == [0]
    assert cluster.captured(phase)[0].held.units == 1


def test_a_block_whose_worker_never_asked_the_primary_is_dropped_with_the_worker():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    store = cluster.clients[0]
    cut = cluster.parts[1].contribution
    block = cut.layout.pack(cut.part_of(gradient_of(7)))
    store.stage(push_of(phase, 7, worker=2), block)
    store.stage(push_of(phase, 7, worker=2, incarnation=2), block)
    assert staged(cluster) == [2]
    cluster.stores[0].fence(phase.id, worker=2, incarnation=1)
    assert staged(cluster) == [2], "only the primary knows when an update of that worker is no longer on its way"
    cluster.primary.fence(phase.id, worker=2, incarnation=1)
    assert staged(cluster) == [1]
    with pytest.raises(StaleIncarnation, match="worker 2 speaks as incarnation 1"):
        store.stage(push_of(phase, 8, worker=2), block)
    pushed(cluster, phase, 7, worker=1)
    assert cluster.captured(phase)[0].held.units == 1


def test_a_new_phase_drops_what_was_staged_in_any_state():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    cut = cluster.parts[1].contribution
    block = cut.layout.pack(cut.part_of(gradient_of(7)))
    cluster.clients[0].stage(push_of(phase, 7, worker=2), block)
    pushed(cluster, phase, 1)
    second = cluster.enter(2)  # from the start, as after a server's death
    assert [block.num_released for block in cluster.clients[0].blocks] == [1, 1]
    assert cluster.stores[0]._staged == {}
    with pytest.raises(StalePhase, match=r"phase 1 .* phase 2"):
        pushed(cluster, phase, 2)
    pushed(cluster, second, 1)
    snapshot, state = cluster.captured(second)
    cluster.log.entries = cluster.log.entries[1:]
    assert (snapshot.held.units, snapshot.held.sequence) == (1, 1)
    assert fingerprint(state) == fingerprint(replayed(cluster))
    for server in (cluster.primary, *cluster.stores):
        with pytest.raises(StalePhase, match=r"phase 1 is not newer than phase 2"):
            server.enter(phase)
    assert cluster.failures == []


@pytest.mark.parametrize("leaf", ["layers/0/kernel", "layers/1/kernel", "layers/1/bias"])
@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_contribution_that_is_not_finite_is_dropped_with_its_leaf_and_index(num_servers, leaf, value):
    cluster = Cluster(programs(), num_servers)
    phase = cluster.enter()
    damaged = jax.tree.map(np.copy, gradient_of(5))
    _, number, name = leaf.split("/")
    array = damaged["floats"]["grads"]["layers"][number][name]
    array.reshape(-1)[[3, array.size - 1]] = value
    reply, _ = cluster.link().push_pull(push_of(phase, 5), damaged)
    index = [int(i) for i in np.unravel_index(3, array.shape)]
    assert reply.dropped == f"non_finite: leaf floats/grads/{leaf}, first index {index}"
    assert cluster.primary.take_report().dropped == ((5, reply.dropped),)
    again, _ = pushed(cluster, phase, 5)
    assert again.duplicate, "a drop is final"
    pushed(cluster, phase, 6)
    snapshot, state = cluster.captured(phase)
    assert (snapshot.applied, snapshot.dropped) == (((6, 7),), ((5, 6),))
    assert fingerprint(state) == fingerprint(replayed(cluster))
    assert all(not store._staged for store in cluster.stores)


# --- what a store refuses ---


def test_a_store_serves_exactly_the_sequence_that_is_asked_for_and_waits_for_it():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    store = cluster.stores[0]
    asked = push_of(phase)._replace(base=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.pull_at, asked)
        _, parameters = pushed(cluster, phase, 0)
        served = waiting.result(timeout=120)
    cut = cluster.parts[1].parameters
    assert fingerprint(cut.layout.unpack(served.buffer)) == fingerprint(cut.part_of(parameters))
    served.release()
    pushed(cluster, phase, 1, worker=0, base=1)
    settled(cluster)
    with pytest.raises(StalePhase, match="after update 1 are no longer kept for worker 0"):
        store.pull_at(asked)


def test_what_a_pull_is_to_read_stays_while_its_worker_pushes_beside_it():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    cluster.primary.pull(push_of(phase))[1].release()  # its worker has not asked the store for update 0 yet
    link = cluster.link()
    for unit in range(2):
        push = push_of(phase, unit, base=0)._replace(push_only=True)
        assert link.push(push, gradient_of(unit)).sequence == unit + 1
    settled(cluster)
    cluster.stores[0].pull_at(push_of(phase)._replace(base=0)).release()
    reply, _ = link.pull(push_of(phase))
    assert reply.sequence == 2
    pushed(cluster, phase, 2, base=2)
    settled(cluster)
    with pytest.raises(StalePhase, match="after update 0 are no longer kept for worker 0"):
        cluster.stores[0].pull_at(push_of(phase)._replace(base=0))


def test_a_store_that_misses_something_says_that_the_servers_have_come_apart():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    store = cluster.stores[0]
    with pytest.raises(HybridSyncError, match=r"server 1 is at update 0 .* contribution of worker 0 to it never came"):
        store.apply(phase.id, (Update(1, (push_of(phase, 1),), 1.0, ()),))
    with pytest.raises(HybridSyncError, match="is to apply update 2, but an update before it never came"):
        store.apply(phase.id, (Update(2, (push_of(phase, 1),), 1.0, ()),))
    with pytest.raises(HybridSyncError, match="is asked for its state after update 5"):
        store.snapshot_part(phase.id, 5, final=False)
    with pytest.raises(StalePhase, match="the primary, server 0, captures"):
        store.take_snapshot(phase.id, final=False)


def test_updates_that_are_told_again_are_passed_over():
    class Twice:
        def __init__(self, store: Secondary) -> None:
            self._store = store

        def apply(self, phase_id, updates):
            for _ in range(2):
                self._store.apply(phase_id, updates)

        def __getattr__(self, name):
            return getattr(self._store, name)

    cluster = Cluster(programs(), 2, wrap=Twice)
    phase = cluster.enter()
    trained_by_threads(cluster, phase, 20)
    assert fingerprint(cluster.captured(phase)[1]) == fingerprint(replayed(cluster))


class Lost:
    """A store that cannot be reached any more."""

    def __init__(self, store: Secondary) -> None:
        self._store = store

    def apply(self, phase_id, updates):
        raise RoleLost("server 1 could not be reached")

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_the_loss_of_a_server_ends_every_snapshot_by_name_and_the_primary_lives_on():
    cluster = Cluster(programs(), 2, wrap=Lost)
    phase = cluster.enter()
    push = push_of(phase, 0)
    cut = cluster.parts[1].contribution
    cluster.clients[0].stage(push, cut.layout.pack(cut.part_of(gradient_of(0))))
    cluster.primary.push_pull(push, cluster.parts[0].contribution.part_of(gradient_of(0)))
    with pytest.raises(RoleLost, match="could not be reached"):
        cluster.captured(phase)
    assert cluster.failures == [], "who is gone is for the chief to judge"
    second = cluster.enter(2)
    assert cluster.captured(second)[0].held.units == 0


def test_a_new_phase_lets_go_of_a_snapshot_that_waits_for_a_server():
    asked, go_on = threading.Event(), threading.Event()

    class Stopped(Lost):
        def snapshot_part(self, phase_id, sequence, final, left=()):
            asked.set()
            assert go_on.wait(60)
            return self._store.snapshot_part(phase_id, sequence, final, left)

    cluster = Cluster(programs(), 2, wrap=Stopped)
    phase = cluster.enter()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(cluster.captured, phase)
        assert asked.wait(60)
        cluster.enter(2)
        with pytest.raises(StalePhase, match="phase 1 has ended"):
            waiting.result(timeout=120)
    go_on.set()
    assert cluster.failures == []


def test_a_server_that_is_in_a_newer_phase_is_no_failure():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    cluster.stores[0].enter(replace(phase, id=phase.id._replace(number=2)))
    with pytest.raises(StalePhase):
        cluster.captured(phase)
    assert cluster.failures == []


def test_a_staged_retry_keeps_the_first_block():
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    push: Push = push_of(phase, 4)
    cut = cluster.parts[1].contribution
    packed = cut.layout.pack(cut.part_of(gradient_of(4)))
    first, again = Block(aligned_copy(packed)), Block(aligned_copy(packed))
    assert cluster.stores[0].stage(push, first) == cluster.stores[0].stage(push, again) == ""
    assert (first.num_released, again.num_released) == (0, 1)


def test_the_loss_of_a_worker_leaves_its_successor_what_it_is_about_to_read() -> None:
    cluster = Cluster(programs(), 2)
    phase = cluster.enter()
    parameters = cluster.link().pull(push_of(phase, worker=1))[1]
    gradient = cluster.programs.gradient(parameters, 0)
    cluster.primary.pull(push_of(phase, worker=0, incarnation=2))
    cluster.primary.fence(phase.id, 0, 1)
    cluster.link().push_pull(push_of(phase, 0, worker=1), gradient)
    cluster.stores[0].pull_at(push_of(phase, worker=0, incarnation=2, base=0)).release()
    assert cluster.failures == []


@pytest.mark.parametrize("num_servers", [1, 3])
def test_a_place_is_kept_by_all_servers_between_the_same_two_updates(num_servers):
    def trained(units: int, evaluate_units: int = 0) -> tuple[Cluster, Phase]:
        cluster = Cluster(programs(), num_servers)
        phase = cluster.enter(evaluate_units=evaluate_units)
        trained_by_threads(cluster, phase, units, num_workers=1)
        return cluster, phase

    cluster, phase = trained(7, evaluate_units=4)
    (stopped, own), (kept, _) = trained(4), cluster.captured(phase, final=False, place=4)
    assert kept.held.units == 4 and kept.held.fingerprint == stopped.captured(own)[0].held.fingerprint
    newest, state = cluster.captured(phase)
    assert newest.held.units == 7 and fingerprint(state) == newest.held.fingerprint and not cluster.failures
