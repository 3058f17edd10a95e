"""The code blocks of the page about callbacks run in order as one program, and its numbers are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hybridsync import Callback
from hybridsync.phases import callback_threads

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "callbacks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_blocks_run_in_order_and_the_run_stops_early(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    ended, best = done.stdout.splitlines()
    exit, _, accuracy, units = ended.split()
    assert exit == "stopped" and float(accuracy) >= 0.85 and int(units) < 20_000
    value, at, restored = best.split()
    assert float(value) >= 0.85 and at == restored


def test_the_page_names_every_method_and_the_limits() -> None:
    methods = [name for name in vars(Callback) if name.startswith("on_")]
    assert re.findall(r"^\| `(on_\w+)\(", PAGE, re.MULTILINE) == methods
    assert f"after {callback_threads.LATE_SECS:g} s it is named" in PAGE
    assert f"{callback_threads.MOST_WAITING:,} calls wait at most" in PAGE
    assert f"for {callback_threads.END_SECS:g} s at most" in PAGE
