"""Which mesh comes next: never one that lost a member, the same order while a device choice is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridsync.collectives.device_choice import Meshes, devices_of, num_ways

ALL = (0, 1, 2)


def test_without_a_loss_everybody_keeps_the_first_mesh():
    meshes = Meshes(num_devices=4)
    assert [meshes.next(ALL) for _ in range(5)] == [(ALL, 0)] * 5


def test_a_loss_takes_the_next_device_choice_in_the_same_order():
    meshes = Meshes(num_devices=4)
    meshes.next(ALL)
    meshes.discard_formed()
    assert meshes.next((0, 2)) == ((0, 2), 1)
    assert meshes.next(ALL) == (ALL, 1), "a member that comes back finds a mesh that was never formed"
    meshes.discard_formed()
    assert meshes.next(ALL) == (ALL, 2)


def test_groups_meet_on_devices_whose_connections_were_never_lost_in_whatever_mesh():
    meshes = Meshes(num_devices=3)
    assert meshes.next((0, 1, 2, 3), grouped=True) == ((0, 1, 2, 3), 0)
    meshes.discard_formed()
    assert meshes.next((0, 1, 3), grouped=True) == ((0, 1, 3), 1)
    assert meshes.next((0, 1, 3), grouped=True) == ((0, 1, 3), 1), "nobody was lost"
    meshes.discard_formed()
    assert meshes.next(ALL, grouped=True) == (ALL, 2)
    meshes.discard_formed()
    assert meshes.next((0, 1), grouped=True) is None, "a pair of them has met on every device"
    assert meshes.next((1,), grouped=True) == ((1,), 0)


def test_every_mesh_formed_before_a_loss_is_dead():
    meshes = Meshes(num_devices=2)
    formed = [meshes.next(ALL), meshes.next((0, 1)), meshes.next((1, 2))]
    meshes.discard_formed()
    again = [meshes.next(ALL), meshes.next((0, 1)), meshes.next((1, 2))]
    assert not set(formed) & set(again)


def test_a_second_loss_before_the_next_mesh_is_formed_costs_no_device_choice():
    meshes = Meshes(num_devices=4)
    meshes.next(ALL)
    for _ in range(3):
        meshes.discard_formed()
    assert meshes.next(ALL) == (ALL, 1)


def test_a_loss_before_the_first_mesh_costs_no_device_choice():
    meshes = Meshes(num_devices=4)
    meshes.discard_formed()
    assert meshes.next(ALL) == (ALL, 0)


def test_when_the_device_choices_are_used_up_the_order_rotates():
    meshes = Meshes(num_devices=2)
    seen = [meshes.next((0, 1))]
    for _ in range(7):
        meshes.discard_formed()
        seen.append(meshes.next((0, 1)))
    assert seen == [(order, device_choice) for order in ((0, 1), (1, 0)) for device_choice in range(4)]


def test_a_process_group_that_is_used_up_has_no_mesh_but_for_one_alone():
    meshes = Meshes(num_devices=1)
    for _ in range(2):
        meshes.next((0, 1))
        meshes.discard_formed()
    assert meshes.next((0, 1)) is None
    for _ in range(5):
        assert meshes.next((1,)) == ((1,), 0)
        meshes.discard_formed()


def test_four_workers_lose_members_a_thousand_times_in_one_order_and_one_process_group():
    meshes, everybody, seen = Meshes(), (0, 1, 2, 3), set()
    for _ in range(1000):
        mesh = meshes.next(everybody)
        assert mesh is not None and mesh[0] == everybody
        seen.add(devices_of(mesh[1], 4, 16))
        meshes.discard_formed()
    assert len(seen) == 1000


@given(st.integers(1, 4), st.integers(1, 4))
def test_every_device_choice_has_other_devices(num_members, num_devices):
    device_choices = range(num_ways(num_members, num_devices))
    chosen = [devices_of(device_choice, num_members, num_devices) for device_choice in device_choices]
    assert len(set(chosen)) == len(device_choices) == num_devices**num_members
    assert chosen[:num_devices] == [(device,) * num_members for device in range(num_devices)]


@given(
    st.integers(2, 4),
    st.integers(1, 2),
    st.lists(st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=2)), max_size=30),
)
def test_no_dead_mesh_is_ever_used_again(num_workers, num_devices, losses_and_survivors):
    """None is a loss, a set the workers that are left."""
    meshes = Meshes(num_devices)
    dead, formed = set(), set()
    for live in losses_and_survivors:
        if live is None:
            meshes.discard_formed()
            dead |= formed
            formed = set()
            continue
        members = tuple(sorted(worker for worker in live if worker < num_workers))
        if len(members) < 2:
            continue
        device_choices = num_ways(len(members), num_devices)
        mesh = meshes.next(members)
        if mesh is None:
            used = {mesh for mesh in dead if tuple(sorted(mesh[0])) == members}
            assert len(used) == device_choices * len(members), "there was another way"
            continue
        assert mesh not in dead and tuple(sorted(mesh[0])) == members and mesh[1] < device_choices
        formed.add(mesh)
