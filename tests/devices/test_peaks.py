"""The peaks of devices by their kinds, and what a mesh's devices have to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridsync.devices.peaks import peak_flops


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A100-PCIE-40GB", 312.0),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("TPU v5", 459.0),
        ("TPU v5 lite", 197.0),
        ("NVIDIA GeForce GTX 1080", 0.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0.0),
        ("NVIDIA L400", 0.0),
        ("cpu", 0.0),
        ("", 0.0),
    ],
)
def test_a_devices_peak_is_found_by_the_first_words_of_its_kind(kind: str, teraflops: float) -> None:
    assert peak_flops(kind) == teraflops * 1e12


def test_a_device_of_a_mesh_has_its_share_of_a_units_operations(on_devices: Callable[..., Any]) -> None:
    whole, divided, compiled = on_devices("flops_of_a_unit")
    assert compiled == [] and 0.2 < divided / whole < 0.45, "of four devices"
