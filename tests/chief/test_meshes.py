"""Which mesh comes next: never one that lost a member, the same order while a lane is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.chief.meshes import Meshes
from hybridsync.errors import RoleLost

ALL = (0, 1, 2)


def test_without_a_loss_everybody_keeps_the_first_mesh():
    meshes = Meshes(num_lanes=4)
    assert [meshes.next(ALL) for _ in range(5)] == [(ALL, 0)] * 5


def test_a_loss_takes_the_next_lane_in_the_same_order():
    meshes = Meshes(num_lanes=4)
    meshes.next(ALL)
    meshes.lose()
    assert meshes.next((0, 2)) == ((0, 2), 1)
    assert meshes.next(ALL) == (ALL, 1), "a member that comes back finds a mesh that was never formed"
    meshes.lose()
    assert meshes.next(ALL) == (ALL, 2)


def test_every_mesh_formed_before_a_loss_is_dead():
    meshes = Meshes(num_lanes=2)
    formed = [meshes.next(ALL), meshes.next((0, 1)), meshes.next((1, 2))]
    meshes.lose()
    again = [meshes.next(ALL), meshes.next((0, 1)), meshes.next((1, 2))]
    assert not set(formed) & set(again)


def test_a_second_loss_before_the_next_mesh_is_formed_costs_no_lane():
    meshes = Meshes(num_lanes=4)
    meshes.next(ALL)
    for _ in range(3):
        meshes.lose()
    assert meshes.next(ALL) == (ALL, 1)


def test_a_loss_before_the_first_mesh_costs_no_lane():
    meshes = Meshes(num_lanes=4)
    meshes.lose()
    assert meshes.next(ALL) == (ALL, 0)


def test_when_the_lanes_are_used_up_the_order_rotates():
    meshes = Meshes(num_lanes=2)
    seen = [meshes.next(ALL)]
    for _ in range(5):
        meshes.lose()
        seen.append(meshes.next(ALL))
    orders = [ALL, (1, 2, 0), (2, 0, 1)]
    assert seen == [(order, lane) for order in orders for lane in (0, 1)]


def test_a_world_that_is_used_up_says_so_and_what_to_do():
    meshes = Meshes(num_lanes=1)
    for _ in range(2):
        meshes.next((0, 1))
        meshes.lose()
    with pytest.raises(RoleLost, match=r"workers \[0, 1\] have used up the 2 ways .* run the same command again"):
        meshes.next((0, 1))


@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.lists(st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=1)), max_size=30),
)
def test_no_dead_mesh_is_ever_used_again(num_workers, num_lanes, story):
    """None is a loss, a set the workers that are left."""
    meshes = Meshes(num_lanes)
    dead, formed = set(), set()
    for live in story:
        if live is None:
            meshes.lose()
            dead |= formed
            formed = set()
            continue
        members = tuple(sorted(worker for worker in live if worker < num_workers))
        if not members:
            continue
        try:
            mesh = meshes.next(members)
        except RoleLost:
            used = {mesh for mesh in dead if tuple(sorted(mesh[0])) == members}
            assert len(used) == num_lanes * len(members), "there was another way"
            continue
        assert mesh not in dead and tuple(sorted(mesh[0])) == members and mesh[1] < num_lanes
        formed.add(mesh)
