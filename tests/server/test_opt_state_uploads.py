"""What workers that make local updates take from the servers at a phase's start, and leave there at its end."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.phase import Phase
from hybridsync.server import primary as primary_module
from hybridsync.server.endpoint import Endpoint, OptimizerEndpoint
from hybridsync.storage.apply_log_entries import Left
from hybridsync.training.buffer_layout import fingerprint
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.transport.packed_link import PackedLink
from tests.roles import push_of
from tests.server.cluster import Cluster
from tests.tasks import adamw, mlp_task, programs_of
from tests.transport.copying import CopyingParameters, packed_link

SPEC = "localsgd(steps=1)"


@functools.cache
def programs() -> Programs:
    return programs_of(mlp_task(), adamw())


def link_of(cluster: Cluster) -> PackedLink:
    endpoint = Endpoint(cluster.primary, cluster.parts[0].programs.contribution_layout)
    pairs = zip((cluster.primary, *cluster.stores), cluster.parts, strict=True)
    endpoints = [OptimizerEndpoint(server, part.opt_state.layout) for server, part in pairs]
    return packed_link(cluster.parts, CopyingParameters(endpoint), cluster.clients, endpoints)


def pushed_once(cluster: Cluster, phase: Phase, worker: int = 0) -> Any:
    """Let one worker step and push unit 0 while nobody else is there; returns its optimizer state."""
    link = link_of(cluster)
    opt_state = link.download_opt_state(push_of(phase, worker=worker))
    parameters = Parameters(cluster.state.params, cluster.state.model_state)
    gradient = programs().gradient(parameters, 0)
    _, stepped, moved = programs().local_step(parameters, opt_state, None, gradient, at=0, factor=1.0)
    for other in set(phase.members) - {worker}:
        cluster.primary.idle(push_of(phase, worker=other))
    link.push_pull(push_of(phase, 0, worker=worker), programs().difference(gradient, moved))
    return stepped


@pytest.mark.parametrize("num_servers", [1, 2])
def test_what_is_taken_is_the_state_that_the_phase_began_with(num_servers):
    cluster = Cluster(programs(), num_servers)
    phase = cluster.enter(spec=SPEC)
    taken = link_of(cluster).download_opt_state(push_of(phase))
    assert fingerprint(taken) == fingerprint(cluster.state.opt_state)


@pytest.mark.parametrize("num_servers", [1, 2])
def test_what_is_left_is_in_the_state_that_ends_the_phase(num_servers):
    cluster = Cluster(programs(), num_servers)
    phase = cluster.enter(spec=SPEC)
    stepped = pushed_once(cluster, phase)
    _, live = cluster.captured(phase, final=False)
    assert fingerprint(live.opt_state) == fingerprint(cluster.state.opt_state)
    link_of(cluster).upload_opt_state(push_of(phase, 0), stepped)
    snapshot, state = cluster.captured(phase)
    assert fingerprint(state.opt_state) == fingerprint(jax.device_get(stepped))
    again, same = cluster.captured(phase)
    assert again.held.fingerprint == snapshot.held.fingerprint == fingerprint(same)
    assert cluster.left == [Left(1, 1, ((0, 1),))]


def test_the_state_is_the_mean_of_what_is_left_and_its_integers_the_maximum():
    cluster = Cluster(programs(), 1)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), cluster.state.opt_state)
    threes = jax.tree.map(lambda leaf: np.full(leaf.shape, 3, leaf.dtype), cluster.state.opt_state)
    merged = programs().mean_state((ones, threes))
    for leaf in jax.tree.leaves(merged):
        expected = 2 if np.issubdtype(leaf.dtype, np.floating) else 3
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, expected, leaf.dtype))


def test_a_phase_ends_without_what_does_not_come_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(primary_module, "UPLOAD_SECS", 0.05)
    cluster = Cluster(programs(), 1)
    phase = cluster.enter(spec=SPEC)
    pushed_once(cluster, phase, worker=2)
    with caplog.at_level("WARNING"):
        _, state = cluster.captured(phase)
    assert fingerprint(state.opt_state) == fingerprint(cluster.state.opt_state)
    assert "worker(s) 2 left no optimizer state behind within 0.05 s" in caplog.text


def test_what_is_of_another_push_than_the_last_one_is_not_taken_nor_waited_for():
    cluster = Cluster(programs(), 1)
    phase = cluster.enter(spec=SPEC)
    stepped = pushed_once(cluster, phase)
    link_of(cluster).upload_opt_state(push_of(phase, 7), stepped)
    _, state = cluster.captured(phase)
    assert fingerprint(state.opt_state) == fingerprint(cluster.state.opt_state)
    assert cluster.left == []


def test_a_snapshot_that_waits_for_a_worker_goes_on_at_once_when_that_is_fenced(monkeypatch):
    monkeypatch.setattr(primary_module, "UPLOAD_SECS", 120.0)
    cluster = Cluster(programs(), 1)
    phase = cluster.enter(spec=SPEC)
    pushed_once(cluster, phase)

    def is_open() -> bool:
        role_state = cluster.primary.role_state()
        return role_state is not None and role_state.open

    with ThreadPoolExecutor(1) as thread:
        captured = thread.submit(cluster.captured, phase)
        while is_open() and not captured.done():  # closed and unlocked, it waits
            continue
        cluster.primary.fence(phase.id, 0, 1)
        _, state = captured.result(60.0)
    assert fingerprint(state.opt_state) == fingerprint(cluster.state.opt_state)


def test_a_fenced_worker_is_not_waited_for():
    cluster = Cluster(programs(), 1)
    phase = cluster.enter(spec=SPEC)
    pushed_once(cluster, phase)
    cluster.primary.fence(phase.id, 0, 1)
    _, state = cluster.captured(phase)
    assert fingerprint(state.opt_state) == fingerprint(cluster.state.opt_state)


def test_another_phase_takes_nothing():
    cluster = Cluster(programs(), 1)
    phase = cluster.enter(spec=SPEC)
    other = replace(phase, id=PhaseId(9, 1))
    with pytest.raises(StalePhase):
        link_of(cluster).upload_opt_state(push_of(other, 0), cluster.state.opt_state)
