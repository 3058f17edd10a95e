"""Averages of groups over the world: how a part is packed, and which mesh is entered how often."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.collectives.mesh import group_mean
from hybridsync.collectives.mesh.group_mean import FlatPart, FlatParts, MeshMixer
from hybridsync.collectives.mesh.process_group import CollectiveBroken
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import Part, mean, part_of
from hybridsync.training.state import initial_state
from tests.tasks import adamw, batchnorm_task

STATE = initial_state(batchnorm_task(), adamw(), 0)


class FakeMesh:
    """The sum with as many others that bring the same."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.warmed, self.released, self.fails = members, 0, 0, False

    def warm(self, num_floats: int, num_ints: int) -> None:
        self.warmed += 1

    def release(self) -> None:
        self.released += 1

    def __call__(self, floats: np.ndarray, ints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.fails:
            raise CollectiveBroken("a member is gone")
        return floats * np.float32(len(self.members)), ints.copy()


class FakeWorld:
    def __init__(self) -> None:
        self.meshes: dict[tuple[tuple[int, ...], int], FakeMesh] = {}
        self.broken: list[Any] = []

    def mesh(self, members: tuple[int, ...], lane: int) -> FakeMesh:
        return self.meshes.setdefault((members, lane), FakeMesh(members))

    def break_collective(self, mesh: FakeMesh, reason: str) -> bool:
        self.broken.append((mesh.members, reason))
        return True


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def mixer(world: Any) -> MeshMixer:
    return MeshMixer(world, 3, FlatParts(STATE))


def equal(left: Part, right: Part) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs
    )


@pytest.mark.parametrize("optimizer", [False, True])
def test_a_part_comes_back_as_it_was_packed(optimizer: bool) -> None:
    part = part_of(STATE, optimizer=optimizer)
    flat = FlatPart(part)
    floats, ints = flat.split(part)
    assert floats.dtype == np.float32 and ints.dtype == np.int32
    assert equal(flat.join(floats.copy(), ints.copy()), part)


def test_half_precision_and_unsigned_leaves_keep_their_types() -> None:
    part = Part({"w": jnp.bfloat16([1.5, 2])}, {"key": jnp.uint32([7, 9])}, ())
    flat = FlatPart(part)
    floats, ints = flat.split(part)
    assert equal(flat.join(floats.copy(), ints.copy()), part)


def test_the_mean_is_that_of_one_process_to_the_last_bits(mixer: MeshMixer) -> None:
    part = part_of(STATE, optimizer=True)
    ours = mixer.mean(GroupReply((0, 2, 3), optimizer=True), 0, part)
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(mean((part,) * 3)), strict=True):
        np.testing.assert_allclose(left, right, rtol=3e-7)


def test_a_group_meets_once_in_a_phase_on_the_phases_lane(world: FakeWorld, mixer: MeshMixer) -> None:
    part = part_of(STATE, optimizer=False)
    for _ in range(3):
        mixer.mean(GroupReply((0, 1)), 0, part)
        mixer.mean(GroupReply((0, 2)), 0, part)
    assert {key: mesh.warmed for key, mesh in world.meshes.items()} == {((0, 1), 3): 1, ((0, 2), 3): 1}


def test_only_so_many_groups_stay_compiled_and_none_meets_twice(
    world: FakeWorld, mixer: MeshMixer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_mean, "MAX_MESHES", 2)
    part = part_of(STATE, optimizer=False)
    for other in (1, 2, 1, 3, 2):
        mixer.mean(GroupReply((0, other)), 0, part)
    released = {key[0][1]: mesh.released for key, mesh in world.meshes.items()}
    assert released == {1: 1, 2: 1, 3: 0}
    assert all(mesh.warmed == 1 for mesh in world.meshes.values()), "the others would not come a second time"


def test_a_broken_average_revokes_the_phase(world: FakeWorld, mixer: MeshMixer) -> None:
    part = part_of(STATE, optimizer=False)
    world.mesh((0, 1), 3).fails = True
    with pytest.raises(PhaseRevoked, match="a member is gone"):
        mixer.mean(GroupReply((0, 1)), 0, part)
    mixer.break_off("revoked")
    assert world.broken == [], "no average is under way"
    with pytest.raises(PhaseRevoked, match="revoked"):
        mixer.mean(GroupReply((0, 2)), 0, part)


def test_an_average_under_way_is_broken_off(world: FakeWorld, mixer: MeshMixer) -> None:
    mesh = world.mesh((0, 1), 3)

    def break_off(num_floats: int, num_ints: int) -> None:
        mixer.break_off("revoked")  # as the control thread does meanwhile

    mesh.warm = break_off
    mixer.mean(GroupReply((0, 1)), 0, part_of(STATE, optimizer=False))
    assert world.broken == [((0, 1), "revoked")]
