import subprocess
import sys
from pathlib import Path

import numpy as np

from hybridsync.checkpoint import CheckpointStore

SCRIPT = Path(__file__).parents[2] / "docs" / "read_checkpoint.py"


def test_a_plain_program_reads_the_newest_state(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for rows in (2, 3):
        state = {"params": {"w": np.ones((rows, 4), np.float32)}, "counters": {"units": np.int32(7)}}
        store.save(state, units=7, ledger={}, run={})
    command = [sys.executable, str(SCRIPT), str(tmp_path / "checkpoints")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines() == ["counters/units int32 ()", "params/w float32 (3, 4)"]


def test_the_script_is_plain_and_short():
    text = SCRIPT.read_text()
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert not any("hybridsync" in line for line in code)
    assert len(code) <= 10
