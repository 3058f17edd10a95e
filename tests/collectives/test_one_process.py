"""Sums of threads that have devices of their own, on four CPU devices: the bits of threads that share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.devices.forced import forced_devices

OnDevices = Callable[..., Any]


@pytest.fixture(scope="module")
def on_devices() -> Iterator[OnDevices]:
    with forced_devices() as call:
        yield call


@pytest.mark.parametrize("task", ["mlp", "batchnorm"])
def test_xla_has_the_bits_of_threads_on_one_device(on_devices: OnDevices, task: str) -> None:
    one = on_devices("bits", task, "bsp", 800, "auto", 1)
    assert on_devices("bits", task, "bsp", 800, "xla", 4) == one
    assert on_devices("bits", task, "bsp", 80, "threads", 4) == on_devices("bits", task, "bsp", 80, "auto", 1)


@pytest.mark.parametrize(("odd", "alone"), [("", []), ("value", []), ("length", [20, 21, 22, 23])])
def test_one_program_computes_a_step_but_the_first_and_where_units_differ(
    on_devices: OnDevices, odd: str, alone: list[int]
) -> None:
    state, dropped, ran = on_devices("with_an_odd_unit", odd, "xla")
    assert [unit for unit in ran if unit < 80] == [0, 1, 2, 3, *alone]
    assert dropped == (odd == "value")
    assert on_devices("with_an_odd_unit", odd, "auto")[:2] == [state, dropped]


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (0, 2), (3, 1), (2,)])
def test_one_program_of_some_members_has_the_bits_of_their_own_ones(
    on_devices: OnDevices, members: tuple[int, ...]
) -> None:
    assert on_devices("joint_gradients_of", members) == (len(members) > 1), "one member alone runs its own program"


def test_workers_may_share_seats(on_devices: OnDevices) -> None:
    assert on_devices("bits", "mlp", "bsp", 80, "auto", 3) == on_devices("bits", "mlp", "bsp", 80, "auto", 1)


def test_nothing_is_compiled_when_members_leave_and_come_back(on_devices: OnDevices) -> None:
    at_first, later, units = on_devices("compiled_while_members_change")
    assert at_first
    assert not later
    assert units == 14


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (0, 2), (1, 3)])
def test_a_sum_of_some_members_has_the_bits_of_theirs_alone(on_devices: OnDevices, members: tuple[int, ...]) -> None:
    assert on_devices("sum_of_fewer", members)
