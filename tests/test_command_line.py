"""What the launcher refuses: message, exit code, no traceback. A running job's faults: multiprocess/."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

REFUSED = [
    (["--config=configs/digit_mlp.py"], "did you mean 'configs/digits_mlp.py'?"),
    (
        ["--set", "optimiser.learning_rate=0.1"],
        "unknown configuration key 'optimiser'; did you mean 'optimizer'?",
    ),
    (["--set", "optimizer.learning_rate=fast"], "optimizer.learning_rate must be float, got 'fast'"),
    (["--plan=bsp:60%,asp:60%"], "the shares sum to 120 %"),
    (["--plan=bps"], "'bps'"),
    (["--workers=0"], "workers must be at least 1, got 0"),
    (["--bind=0.0.0.0"], "0.0.0.0"),
    (["--resume=must"], "checkpoint"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_refused_input_ends_with_one_error_line_and_exit_code_1(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    config = [] if any(flag.startswith("--config") for flag in flags) else ["--config=configs/digits_mlp.py"]
    command = [sys.executable, "-m", "launch.train", *config, f"--workdir={tmp_path / 'run'}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
