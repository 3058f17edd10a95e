"""The code blocks of the page about accelerators run in order, as one program, on eight CPU devices and on one."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from hybridsync import DeviceConfig
from tests.doc_pages import ROOT, TEST_SECS, blocks, output

PAGE = (ROOT / "docs" / "accelerators.md").read_text()
pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]
BLOCKS = blocks("docs/accelerators.md")
WITHOUT_MESH = next(at for at, block in enumerate(BLOCKS) if "micro_steps" in block)
"""From this block on no mesh is needed."""


def run(folder: Path, code: list[str], num_devices: int) -> list[float]:
    """Run blocks on so many devices, and return the accuracies that they print."""
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(num_devices)}
    shown = output(code, folder, environment=environment)
    assert len(code) < len(BLOCKS) or len(re.findall(r"^trace \S+\.xplane\.pb$", shown, re.MULTILINE)) == 1
    return [float(line.split()[1]) for line in shown.splitlines() if line.startswith("accuracy")]


def test_blocks_run_on_eight_devices_and_the_models_learn(tmp_path: Path) -> None:
    accuracies = run(tmp_path, BLOCKS[:WITHOUT_MESH], 8)
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.85


def test_blocks_that_need_no_mesh_run_on_one_device(tmp_path: Path) -> None:
    accuracies = run(tmp_path, [BLOCKS[0], *BLOCKS[WITHOUT_MESH:]], 1)
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.85


def test_the_table_has_every_field() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [field.name for field in fields(DeviceConfig)]
