"""The code blocks of the page about callbacks run in order as one program, and its numbers are those of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridsync import Callback
from hybridsync.phases import callbacks as callback_threads
from tests.doc_pages import ROOT, RUN_SECS, TEST_SECS, blocks, output

pytestmark = [pytest.mark.timeout(TEST_SECS), pytest.mark.usefixtures("quickly_compiled")]

PAGE = (ROOT / "docs" / "callbacks.md").read_text()
BLOCKS = blocks("docs/callbacks.md")
JOB = next(block for block in blocks("docs/own_model.md") if "def config()" in block)
"""The file that the page's blocks continue."""
FILE = JOB + next(block for block in BLOCKS if "def callbacks(config)" in block)


def test_blocks_run_in_order_and_the_run_stops_early(tmp_path: Path) -> None:
    (ended,) = output([JOB, *BLOCKS], tmp_path).splitlines()
    found = re.fullmatch(r"stopped: accuracy ([\d.]+) at unit ([\d,]+); ended at unit (\d+)", ended)
    assert found is not None, ended
    assert float(found[1]) >= 0.85 and int(found[2].replace(",", "")) <= int(found[3]) < 20_000
    best = json.loads((tmp_path / "runs/early/best/best.json").read_text())
    assert best["accuracy"] >= 0.85 and best["units"] <= int(found[3])


def test_the_configuration_file_trains_and_its_callbacks_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FILE)
    command = ["-m", "hybridsync", "train", "--config=job.py", "--workdir=run", "--runtime=inprocess"]
    command += re.findall(r"--set=\S+", PAGE)
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=RUN_SECS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit"] == "stopped"
    assert "a callback stops the run for good: accuracy " in done.stderr + done.stdout


def test_the_page_names_every_method_and_the_limits() -> None:
    methods = [name for name in vars(Callback) if name.startswith("on_")]
    assert re.findall(r"^\| `(on_\w+)\(", PAGE, re.MULTILINE) == methods
    assert f"after {callback_threads.LATE_SECS:g} s it is named" in PAGE
    assert f"{callback_threads.MOST_WAITING:,} calls wait at most" in PAGE
    assert f"for {callback_threads.END_SECS:g} s at most" in PAGE
