"""A configuration file whose values are read in a process of their own, because it imports JAX."""

import subprocess
import sys
from pathlib import Path

from hybridsync.config import load_config
from hybridsync.lab.tuning.auto_plan import job_of

FILE = """
from dataclasses import dataclass
import jax.numpy
from hybridsync.config import RunConfig

@dataclass(frozen=True)
class Net:
    width: int = 8

@dataclass(frozen=True)
class Digits:
    size: int = 10

def config():
    return RunConfig(workload=40, model=Net(), data=Digits())

def task(config): ...
def optimizer(config): ...
"""

READ = """
import sys
from pathlib import Path
from hybridsync.config import load_values
from hybridsync.lab.tuning.auto_plan import job_of
config = load_values(sys.argv[1]).config
assert "jax" not in sys.modules
print(config.workload, config.plan, job_of(config, Path(sys.argv[1])).text)
"""


def read_elsewhere(file: Path) -> str:
    """Return workload, plan and job of a file as a process sees them that loads no JAX."""
    done = subprocess.run([sys.executable, "-c", READ, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_that_imports_jax_is_the_same_job_in_a_process_that_must_not_load_jax(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(FILE)
    config = load_config(file).config
    assert read_elsewhere(file) == f"{config.workload} {config.plan} {job_of(config, file).text}"


def test_a_workload_that_the_default_plan_cannot_divide_is_read_with_its_own_plan(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text(FILE.replace("workload=40", 'workload=3, plan="asp"'))
    assert read_elsewhere(file).startswith("3 asp ")
