"""The code blocks of the page about a user's own data run in order, as one notebook."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL)


def test_blocks_run_in_order_and_the_model_learns(tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text("\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, notebook], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.strip().splitlines()[-1]) >= 0.9
