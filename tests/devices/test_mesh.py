"""How devices are divided among workers, and what is refused before a role starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.config import DeviceConfig, RunConfig, apply_overrides, restore_values, to_json
from hybridsync.core.errors import ConfigError, TaskError
from hybridsync.devices.mesh import Division, divide
from hybridsync.devices.rules import Places

CONFIG = RunConfig(workload=100, unit_size=8)


@pytest.mark.parametrize(
    ("config", "workers", "devices", "division"),
    [
        (DeviceConfig(), 4, 1, Division(1, {})),
        (DeviceConfig(), 4, 4, Division(4, {}, "xla")),
        (DeviceConfig(), 1, 4, Division(1, {})),
        (DeviceConfig(collective="threads"), 4, 8, Division(4, {})),
        (DeviceConfig(), 6, 4, Division(4, {})),
        (DeviceConfig(mesh={"fsdp": -1}), 4, 1, Division(1, {"fsdp": 1})),
        (DeviceConfig(mesh={"fsdp": -1}), 2, 8, Division(2, {"fsdp": 4}, "xla")),
        (DeviceConfig(mesh={"data": 2, "tensor": -1}), 2, 8, Division(2, {"data": 2, "tensor": 2}, "xla")),
        (DeviceConfig(per_worker=2), 2, 8, Division(2, {"fsdp": 2}, "xla")),
        (DeviceConfig(per_worker=4, mesh={"fsdp": -1, "tensor": 2}), 1, 4, Division(1, {"fsdp": 2, "tensor": 2})),
    ],
)
def test_devices_are_divided(config: DeviceConfig, workers: int, devices: int, division: Division) -> None:
    assert divide(config, workers, devices) == division


@pytest.mark.parametrize(
    ("config", "workers", "devices", "parts"),
    [
        (DeviceConfig(mesh={"fsdp": 4}), 2, 4, ("2 workers with 4 devices each", "need 8 devices, there are 4")),
        (DeviceConfig(per_worker=1), 4, 2, ("4 workers with 1 devices each", "there are 2")),
        (DeviceConfig(mesh={"fsdp": -1, "tensor": 4}), 4, 8, ("4 workers with 4 devices", "there are 8")),
        (DeviceConfig(collective="xla"), 4, 2, ("each of the 4 workers, there are 2", "'threads'")),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(
    config: DeviceConfig, workers: int, devices: int, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        divide(config, workers, devices)
    assert all(part in str(refusal.value) for part in parts)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: DeviceConfig(platform="gpu"), "devices.platform must be 'auto' or 'cpu' or 'cuda' or 'tpu', got 'gpu'"),  # type: ignore[arg-type]
    (lambda: DeviceConfig(per_worker=-1), "devices.per_worker must be 0 or more, got -1"),
    (lambda: DeviceConfig(memory_fraction=1.5), "devices.memory_fraction must be in (0, 1] or none, got 1.5"),
    (lambda: DeviceConfig(mesh={"worker": 2}), "devices.mesh has an axis 'worker'"),
    (lambda: DeviceConfig(mesh={"fsdp": 0}), "axis 'fsdp' has the size 0"),
    (lambda: DeviceConfig(mesh={"fsdp": -1, "tensor": -1}), "has -1 more than once"),
    (lambda: DeviceConfig(per_worker=4, mesh={"fsdp": 3}), "does not fit 4 devices a worker: its sizes multiply to 3"),
    (lambda: DeviceConfig(per_worker=4, mesh={"a": 3, "b": -1}), "does not fit 4 devices a worker"),
    (lambda: DeviceConfig(mesh={"fsdp": 2}, rules=(("embed", "fdsp"),)), "names the axis 'fdsp', the mesh has fsdp"),
    (lambda: DeviceConfig(mesh={"fsdp": 2}, rules=(("embed", 2),)), "the rule of 'embed' has 2 for an axis"),
    (
        lambda: DeviceConfig(mesh={"fsdp": 2}, paths=(("kernel", ("fsdp", "tensor")),)),
        "the rule of 'kernel' names the axis 'tensor', the mesh has fsdp",
    ),
    (lambda: DeviceConfig(mesh={"fsdp": 2}, paths=(("kernel", "fsdp"),)), "the rule of 'kernel' is 'fsdp'"),
    (lambda: DeviceConfig(mesh={"fsdp": 2}, paths=(("kernel", ("fsdp", "fsdp")),)), "uses an axis twice"),
    (
        lambda: RunConfig(workload=9, unit_size=9, devices=DeviceConfig(mesh={"data": 2, "fsdp": 2})),
        "unit_size 9 does not divide into 4 equal parts, one for each device along data=2, fsdp=2",
    ),
]


@pytest.mark.parametrize(("make", "part"), REFUSED, ids=[part for _, part in REFUSED])
def test_impossible_values_are_refused_with_what_is_there(make: Callable[[], Any], part: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()
    assert part in str(refusal.value)


def test_axes_that_other_meshes_have_are_dropped_from_rules() -> None:
    rules = (("embed", ("fsdp", "context")), ("mlp", ["fsdp_transpose", "tensor"]), ("norm", None))
    config = DeviceConfig(mesh={"fsdp": 2}, rules=rules)
    places = Places(config, {"fsdp": 2}, {"w": (4, 4)}, {"w": ("embed", "mlp")})
    assert places.place("opt_state/0/trace/w", (4, 4)) == (("fsdp",), ())


@pytest.mark.parametrize(
    ("paths", "names", "error", "part"),
    [
        ((("b/kernle", (None,)),), {}, ConfigError, "ends with 'b/kernle'; the nearest is 'b/kernel'"),
        ((("kernel", (None,)),), {}, ConfigError, "is for 1 dimensions, parameter a/kernel has the shape [4, 6]"),
        ((), {"a/kernel": ("embed",)}, TaskError, "a/kernel has the shape [4, 6] and the axes ['embed']"),
    ],
)
def test_rules_that_fit_no_parameter_are_refused(paths: Any, names: Any, error: type[Exception], part: str) -> None:
    shapes = {"a/kernel": (4, 6), "b/kernel": (6, 2)}
    with pytest.raises(error) as refusal:
        Places(DeviceConfig(mesh={"fsdp": 2}, paths=paths), {"fsdp": 2}, shapes, names)
    assert part in str(refusal.value)


def test_a_leaf_lies_by_its_annotation_then_its_path_then_its_size() -> None:
    config = DeviceConfig(
        mesh={"fsdp": 2, "tensor": 4}, rules=(("embed", "fsdp"),), paths=(("kernel", ("tensor", None)),)
    )
    shapes = {"a/kernel": (8, 64), "b/kernel": (8, 64), "c/table": (3, 1024), "c/bias": (64,), "d/kernel": (6, 64)}
    places = Places(config, config.mesh, shapes, {"a/kernel": (None, "embed"), "c/bias": ("embed",), "unknown": ("x",)})
    found = {path: places.place(f"params/{path}", shape) for path, shape in shapes.items()}
    assert found == {
        "a/kernel": ((), ("fsdp",)),
        "b/kernel": (("tensor",), ()),
        "c/table": ((), ("fsdp",)),
        "c/bias": (("fsdp",),),
        "d/kernel": (),
    }
    assert places.whole == {"d/kernel": "dimension 0 of [6, 64] does not divide into 4 parts (tensor)"}


def test_a_name_without_a_rule_may_be_an_axis() -> None:
    places = Places(DeviceConfig(mesh={"fsdp": 2}), {"fsdp": 2}, {"w": (4, 4)}, {"w": ("embed", "fsdp")})
    assert places.place("w", (4, 4)) == ((), ("fsdp",))


def test_devices_come_from_the_command_line_and_from_config_json_as_they_were() -> None:
    overrides = [
        'devices.mesh={"fsdp": 2, "tensor": 2}',
        'devices.rules=[["embed", ["fsdp", "context"]]]',
        'devices.paths=[["out/kernel", ["tensor", null]]]',
        "devices.platform=cuda",
    ]
    config = apply_overrides(CONFIG, overrides)
    expected = DeviceConfig(
        platform="cuda",
        mesh={"fsdp": 2, "tensor": 2},
        rules=(("embed", ("fsdp", "context")),),
        paths=(("out/kernel", ("tensor", None)),),
    )
    assert config.devices == expected
    assert restore_values(CONFIG, to_json(config)) == config
