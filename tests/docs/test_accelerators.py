"""The code blocks of the page about accelerators run in order, as one program, on eight CPU devices and on one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from hybridsync import DeviceConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "accelerators.md").read_text()
RUN_SECS = 280.0
pytestmark = pytest.mark.timeout(RUN_SECS + 20)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LORA = next(at for at, block in enumerate(BLOCKS) if "LoRA" in block)


def run(folder: Path, blocks: list[str], num_devices: int) -> list[float]:
    """Run blocks on so many devices, and return the accuracies that they print."""
    program = folder / "program.py"
    program.write_text("\n".join(blocks))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(num_devices)}
    done = subprocess.run(
        [sys.executable, program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(blocks) < len(BLOCKS) or len(re.findall(r"^trace \S+\.xplane\.pb$", done.stdout, re.MULTILINE)) == 1
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("accuracy")]


def test_blocks_run_on_eight_devices_and_the_models_learn(tmp_path: Path) -> None:
    accuracies = run(tmp_path, BLOCKS[:LORA], 8)
    assert len(accuracies) == 2
    assert min(accuracies) >= 0.85


def test_blocks_that_need_no_mesh_run_on_one_device(tmp_path: Path) -> None:
    accuracies = run(tmp_path, [BLOCKS[0], *BLOCKS[LORA:]], 1)
    assert len(accuracies) == 3
    assert min(accuracies) >= 0.85


def test_the_table_has_every_field() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [field.name for field in fields(DeviceConfig)]
