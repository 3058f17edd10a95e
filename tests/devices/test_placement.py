"""Where workers compute, and where leaves lie, on eight CPU devices: two workers, each with a mesh of four."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hybridsync.devices.placement import COPIED_BYTES, SHARED_DEVICE, let_go_of_arguments
from hybridsync.protocols import REGISTRY
from hybridsync.training.buffer_layout import Layout, fingerprint
from tests.sweeps import swept

OnDevices = Callable[..., Any]
PLACES = {
    "contract/bias": "()",
    "contract/kernel": "('tensor', 'fsdp')",
    "expand/bias": "()",
    "expand/kernel": "('fsdp', 'tensor')",
    "norm/bias": "()",
    "norm/scale": "()",
    "out/bias": "()",
    "out/kernel": "('tensor', 'fsdp')",
    "qkv/bias": "()",
    "qkv/kernel": "('fsdp', 'tensor')",
    "tokens/embedding": "('tensor', 'fsdp')",
}


@pytest.mark.parametrize("kind", ["nnx", "linen", "paths"])
def test_parameters_and_momenta_lie_where_rules_say(on_devices: OnDevices, kind: str) -> None:
    params, opt_state, ids = on_devices("where_leaves_lie", kind)
    assert params == PLACES
    momenta = {path: place for path, place in opt_state.items() if "trace" in path}
    assert sorted(momenta.values()) == sorted(PLACES.values())
    for path, place in momenta.items():
        assert place == PLACES["/".join(path.split("/")[-2:])]
    assert ids == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_leaves_without_rules_are_divided_by_their_size(on_devices: OnDevices) -> None:
    params, _, _ = on_devices("where_leaves_lie", "size")
    assert {path for path, place in params.items() if "fsdp" in place} == {
        path for path, place in PLACES.items() if "fsdp" in place
    }
    assert not any("tensor" in place for place in params.values())


def test_leaves_that_do_not_divide_are_whole_and_named_once(on_devices: OnDevices) -> None:
    said = on_devices("warned_of_whole_leaves")
    assert len(said) == 5
    assert all("does not divide into 3 parts (fsdp)" in line for line in said)
    assert sum("tokens/embedding" in line for line in said) == 1


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_each_step_on_meshes_is_that_of_one_device(on_devices: OnDevices, kind: str) -> None:
    assert on_devices("farthest_from_one_device", kind, 50) <= 1e-6


@pytest.mark.parametrize("kind", ["nnx", "linen", "size"])
def test_states_go_to_the_host_and_back_bit_for_bit(on_devices: OnDevices, kind: str) -> None:
    assert len(set(on_devices("hand_over", kind))) == 1


def test_memory_that_is_written_again_leaves_what_was_put_on_devices(on_devices: OnDevices) -> None:
    before, after = on_devices("put_and_written_again", "nnx")
    assert after == before


@pytest.mark.parametrize("kind", swept(["nnx", "linen"]))
@pytest.mark.parametrize("served", [False, True], ids=["lockstep_and_groups", "servers"])
def test_every_protocol_trains_on_meshes(on_devices: OnDevices, kind: str, served: bool) -> None:
    names = [name for name, protocol in REGISTRY.items() if protocol().mode.is_served == served]
    plan = ",".join(f"{name}:{100 // len(names)}%" for name in names[:-1]) + f",{names[-1]}"
    completed, loss = on_devices("trained", kind, plan, 24 * len(names))
    assert completed
    assert loss < 4.3


def test_switches_both_ways_end_a_run_on_meshes(on_devices: OnDevices) -> None:
    completed, loss = on_devices("trained", "paths", "bsp:25%,asp:25%,bsp:25%,preduce", 96)
    assert completed
    assert loss < 4.3


def test_a_run_resumes_on_another_mesh(on_devices: OnDevices, tmp_path: Path) -> None:
    begun, ended, loss = on_devices("resumed_on_another_mesh", str(tmp_path))
    assert not begun
    assert ended
    assert loss < 4.3


@pytest.mark.parametrize(("num_devices", "mesh"), [(8, {"fsdp": 2, "tensor": 2}), (1, {"fsdp": 1, "tensor": 1})])
def test_a_model_may_divide_its_activations_and_is_measured_where_it_trains(
    on_devices: OnDevices, num_devices: int, mesh: dict[str, int]
) -> None:
    assert on_devices("loss_of_a_model_with_constraints", num_devices, mesh) < 4.3


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_frozen_leaves_lie_where_parameters_would(on_devices: OnDevices, kind: str) -> None:
    found, farthest = on_devices("trained_parts", kind)
    frozen = {path: place for path, place in PLACES.items() if path not in ("norm/scale", "norm/bias", "qkv/kernel")}
    assert found == frozen
    assert farthest <= 1e-6


def test_a_state_that_has_arrived_leaves_the_memory_in_which_it_came() -> None:
    """An update would keep all of that beside its results: it can be given back before."""
    layout = Layout.of({"large": np.zeros(COPIED_BYTES // 4, np.float32), "small": np.int32(0)})
    buffer = layout.empty()
    buffer[:] = 1
    memory = weakref.ref(buffer.base)
    state = SHARED_DEVICE.put(layout.unpack(buffer))
    expected = fingerprint(layout.unpack(buffer))
    del buffer
    let_go_of_arguments()
    assert memory() is None
    assert fingerprint(state) == expected
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
