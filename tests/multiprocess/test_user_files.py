"""Jobs whose configuration file imports JAX when it is read, finds a module beside it, or computes with JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.job import Job, assert_exactly_once
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


RAISING = """
from dataclasses import replace
from configs import tally
from configs.tally import config, optimizer

def summarize(params, model_state, applied):
    if len(applied) < 60:
        raise SystemExit("the judge is out")
    return {**tally.summarize(params, model_state, applied), "best": None}

def task(config):
    return replace(tally.task(config), summarize=summarize)
"""


def test_an_evaluation_that_raises_in_the_chiefs_process_costs_its_figures_alone(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(RAISING)
    with Job(
        tmp_path / "run", str(tmp_path / "user.py"), "--plan=bsp:50%,asp", "--workers=2", "--set=workload=60"
    ) as job:
        assert job.wait() == 0, job.output
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0 and not job.events("role_lost")
        assert len(job.events("run_finished")) == 1
        raised, *_, last = job.events("user_code_failed")
        assert f"{tmp_path}/user.py, line 8: SystemExit: the judge is out" in raised["error"]
        assert "'best' is None" in last["error"]
        assert raised["error"] in job.output
