"""Jobs whose configuration file imports JAX when it is read, finds a module beside it, or computes with JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.job import Job
from tests.sweeps import swept
from tests.trainers import events_of

FILE = """
import flax.linen
import my_model
from configs.tally import config, optimizer
def task(config): return my_model.task(config)
"""
BESIDE = "import jax\nfrom configs import tally\nCOMPUTED = {computed}\ndef task(config): return tally.task(config)\n"


@pytest.mark.parametrize("computed", swept(["None", "float(jax.numpy.ones(3).sum())"]), ids=["imports", "computes"])
def test_a_file_that_uses_jax_while_it_is_read_trains_over_processes(tmp_path: Path, computed: str) -> None:
    (tmp_path / "user.py").write_text(FILE)
    (tmp_path / "my_model.py").write_text(BESIDE.format(computed=computed))
    flags = ["--plan=bsp:50%,asp", "--workers=2", "--set=workload=40"]
    with Job(tmp_path / "run", str(tmp_path / "user.py"), *flags) as job:
        assert job.wait() == 0, job.output
    assert events_of(tmp_path / "run", "run_finished")[-1]["exit"] == "completed"
    others = [path for path in (tmp_path / "run").rglob("*") if path.lstat().st_mode & 0o077]
    assert others == [], "logs and all else are their user's alone"
