"""The peaks of accelerators, by which a run's use of them is measured. Pure.

>>> peak_flops("NVIDIA H100 80GB HBM3") / 1e12, peak_flops("NVIDIA H100 PCIe") / 1e12, peak_flops("TPU v5 lite") / 1e12
(989.0, 756.0, 197.0)
>>> peak_flops("cpu"), peak_flops("NVIDIA A1000"), peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb")
(0.0, 0.0, 0.0)
"""

from __future__ import annotations

_TERAFLOPS = {
    "NVIDIA B200": 2250.0,
    "NVIDIA GB200": 2500.0,
    "NVIDIA H200": 989.0,
    "NVIDIA GH200": 989.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H100 NVL": 835.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H800": 989.0,
    "NVIDIA H20": 148.0,
    "NVIDIA A100": 312.0,
    "NVIDIA A800": 312.0,
    "NVIDIA A40": 149.7,
    "NVIDIA A30": 165.0,
    "NVIDIA A10": 125.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA L40": 181.0,
    "NVIDIA L4": 121.0,
    "Tesla V100": 125.0,
    "Tesla T4": 65.0,
    "TPU v2": 22.5,
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
}
"""Multiplications of matrices without sparsity, in bfloat16 (V100 and T4: float16), from the vendors' data sheets.

By the first words of JAX's `device_kind`. A device of TPU v2 and v3 is one of the two cores of a chip.
"""


def peak_flops(kind: str) -> float:
    """Return the peak of a device by its `device_kind`, in floating-point operations a second; 0 where unknown.

    A MIG instance is a part of a GPU, of a size that its name alone does not say.
    """
    words = kind.replace("-", " ") + " "
    fits = [name for name in _TERAFLOPS if words.startswith(name + " ") and " MIG " not in words]
    return _TERAFLOPS[max(fits, key=len)] * 1e12 if fits else 0.0
