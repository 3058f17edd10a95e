"""A phase's sums and group means over the process group: how they are packed, and which mesh is entered how often."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridsync.collectives.mesh import communicator as module
from hybridsync.collectives.mesh.communicator import MeshCommunicator
from hybridsync.collectives.mesh.process_group import CollectiveBroken
from hybridsync.collectives.packing import FlatContributions, FlatPart, FlatParts
from hybridsync.core.errors import PhaseRevoked
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart, mean, part_of
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.state import initial_state
from tests.roles import phase_of
from tests.tasks import adamw, batchnorm_task

STATE = initial_state(batchnorm_task(), adamw(), 0)


class FakeMesh:
    """The sum with as many others that bring the same."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.copies, self.warmed, self.released, self.fails = members, len(members), 0, 0, False

    def warm(self, num_floats: int, num_ints: int) -> None:
        self.warmed += 1

    def release(self) -> None:
        self.released += 1

    def __call__(self, floats: np.ndarray, ints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.fails:
            raise CollectiveBroken("a member is gone")
        return floats * np.float32(self.copies), ints.copy()


class FakeProcessGroup:
    def __init__(self) -> None:
        self.meshes: dict[tuple[tuple[int, ...], int], FakeMesh] = {}
        self.broken: list[Any] = []

    def mesh(self, members: tuple[int, ...], device_choice: int) -> FakeMesh:
        return self.meshes.setdefault((members, device_choice), FakeMesh(members))

    def break_collective(self, mesh: FakeMesh, reason: str) -> bool:
        self.broken.append((mesh.members, reason))
        return True


@pytest.fixture
def process_group() -> FakeProcessGroup:
    return FakeProcessGroup()


@pytest.fixture
def communicator(process_group: Any) -> MeshCommunicator:
    flats = FlatParts(STATE)
    return MeshCommunicator(process_group, dataclasses.replace(phase_of(), device_choice=3), flats[False].flat, flats)


def equal(left: AveragedPart, right: AveragedPart) -> bool:
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
    part = AveragedPart({"w": jnp.bfloat16([1.5, 2])}, {"key": jnp.uint32([7, 9])}, ())
    flat = FlatPart(part)
    floats, ints = flat.split(part)
    assert equal(flat.join(floats.copy(), ints.copy()), part)


def test_the_mean_is_that_of_one_process_to_the_last_bits(communicator: MeshCommunicator) -> None:
    part = part_of(STATE, optimizer=True)
    ours = communicator.group_mean(GroupReply((0, 2, 3), optimizer=True), 0, part)
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(mean((part,) * 3)), strict=True):
        np.testing.assert_allclose(left, right, rtol=3e-7)


def test_a_group_meets_once_in_a_phase_on_the_phases_device_choice(
    process_group: FakeProcessGroup, communicator: MeshCommunicator
) -> None:
    part = part_of(STATE, optimizer=False)
    for _ in range(3):
        communicator.group_mean(GroupReply((0, 1)), 0, part)
        communicator.group_mean(GroupReply((0, 2)), 0, part)
    assert {key: mesh.warmed for key, mesh in process_group.meshes.items()} == {((0, 1), 3): 1, ((0, 2), 3): 1}


def test_only_so_many_groups_stay_compiled_and_none_meets_twice(
    process_group: FakeProcessGroup, communicator: MeshCommunicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MESHES", 2)
    part = part_of(STATE, optimizer=False)
    for other in (1, 2, 1, 3, 2):
        communicator.group_mean(GroupReply((0, other)), 0, part)
    released = {key[0][1]: mesh.released for key, mesh in process_group.meshes.items()}
    assert released == {1: 1, 2: 1, 3: 0}
    assert all(mesh.warmed == 1 for mesh in process_group.meshes.values()), "the others would not come a second time"


def test_a_broken_average_revokes_the_phase(process_group: FakeProcessGroup, communicator: MeshCommunicator) -> None:
    part = part_of(STATE, optimizer=False)
    process_group.mesh((0, 1), 3).fails = True
    with pytest.raises(PhaseRevoked, match="a member is gone"):
        communicator.group_mean(GroupReply((0, 1)), 0, part)
    communicator.break_off("revoked")
    assert process_group.broken == [], "no average is under way"
    with pytest.raises(PhaseRevoked, match="revoked"):
        communicator.group_mean(GroupReply((0, 2)), 0, part)


def test_an_average_under_way_is_broken_off(process_group: FakeProcessGroup, communicator: MeshCommunicator) -> None:
    mesh = process_group.mesh((0, 1), 3)

    def break_off(num_floats: int, num_ints: int) -> None:
        communicator.break_off("revoked")  # as the control thread does meanwhile

    mesh.warm = break_off
    communicator.group_mean(GroupReply((0, 1)), 0, part_of(STATE, optimizer=False))
    assert process_group.broken == [((0, 1), "revoked")]


def test_a_lock_step_phase_sums_over_one_mesh_of_all_members(process_group: Any) -> None:
    contribution = {"floats": [*map(np.float32, (1, 2, 3))], "ints": [np.int32(7)]}
    phase, flat = dataclasses.replace(phase_of(), device_choice=3), FlatContributions(Layout.of(contribution))
    communicator = MeshCommunicator(process_group, phase, flat, FlatParts(STATE))
    communicator.enter()
    total = communicator.sum(1, contribution)
    assert [float(leaf) for leaf in total["floats"]] == [4.0, 8.0, 12.0] and total["ints"] == [7]
    assert {key: mesh.warmed for key, mesh in process_group.meshes.items()} == {((0, 1, 2, 3), 3): 1}
    communicator.break_off("revoked")
    assert process_group.broken == [((0, 1, 2, 3), "revoked")]


def test_reasons_are_gathered_in_the_members_order(
    process_group: FakeProcessGroup, communicator: MeshCommunicator
) -> None:
    communicator.enter()
    process_group.mesh((0, 1, 2, 3), 3).copies = 1
    assert communicator.gather(2, ("", "no number")) == (("", ""), ("", ""), ("", "no number"), ("", ""))


def test_a_phase_that_was_broken_off_is_not_entered(
    process_group: FakeProcessGroup, communicator: MeshCommunicator
) -> None:
    communicator.break_off("worker 2 was lost")
    with pytest.raises(PhaseRevoked, match="worker 2 was lost"):
        communicator.enter()
    assert [mesh.warmed for mesh in process_group.meshes.values()] == [0]


def test_a_broken_sum_revokes_the_phase(process_group: FakeProcessGroup, communicator: MeshCommunicator) -> None:
    communicator.enter()
    process_group.mesh((0, 1, 2, 3), 3).fails = True
    with pytest.raises(PhaseRevoked, match="a member is gone"):
        communicator.gather(0, ("",))
