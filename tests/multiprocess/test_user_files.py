"""Jobs whose configuration file imports JAX when it is read, finds a module beside it, or computes with JAX."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.multiprocess.job import Job, assert_exactly_once
from tests.sweeps import swept
from tests.trainers import events_of, lines_of

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


FORKING = """
import itertools, multiprocessing, os, subprocess
from dataclasses import replace
from configs import tally
from hybridsync.data import TallySource

turns = itertools.count()

def fork():
    turn = next(turns) % 3
    if os.fork() == 0:
        if turn == 1:
            raise OSError("the helper cannot be started")
        if turn == 2:
            raise SystemExit(3)

class Source(TallySource):
    def batch(self, unit, **options):
        if unit % 20 == 0:
            fork()
        if unit == 30:
            subprocess.run(["true"], check=True)
            process = multiprocessing.get_context("fork").Process(target=os.getpid)
            process.start()
            process.join()
            assert process.exitcode == 0
        return super().batch(unit, **options)

def config():
    fork()
    return tally.config()

def summarize(params, model_state, applied):
    fork()
    return tally.summarize(params, model_state, applied)

def task(config):
    fork()
    return replace(tally.task(config), source=Source(2 * config.workload), summarize=summarize)

def optimizer(config):
    fork()
    return tally.optimizer(config)
"""


def test_processes_that_user_code_forks_end_before_they_are_a_second_supervisor_or_role(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(FORKING)
    flags = ["--plan=bsp:50%,asp", "--workers=2", "--set=workload=200"]
    with Job(tmp_path / "run", str(tmp_path / "user.py"), *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0 and not job.events("role_lost")
        assert "which user code of process" in job.logs()
        assert len(job.events("run_finished")) == 1


HOLDING = """
import ctypes, os
from dataclasses import replace
from configs import tally
from configs.tally import config, optimizer

def summarize(params, model_state, applied):
    if not os.path.exists(__file__ + ".held"):
        open(__file__ + ".held", "w").close()
        ctypes.PyDLL(None).sleep(600)
    return tally.summarize(params, model_state, applied)

def task(config):
    return replace(tally.task(config), summarize=summarize)
"""


def test_a_chief_whose_evaluation_keeps_the_interpreters_lock_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(HOLDING)
    flags = ["--plan=bsp:30%,asp", "--workers=2", "--set=workload=200", "--set=hang.silent_secs=8"]
    with Job(tmp_path / "run", str(tmp_path / "user.py"), *flags, "--compute_secs=0.02") as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        (lost,) = [event for event in job.events("role_lost") if event["role"] == "chief"]
        assert lost["reason"].startswith("signal SIGKILL: it has shown no sign of life for 8")


LATE = """
import time
from dataclasses import replace
from configs import tally
from configs.tally import config, optimizer

class Late:
    threads = 1

    def __init__(self, source):
        self.source = source

    def __getattr__(self, name):
        return getattr(self.source, name)

    def batch(self, unit, **options):
        time.sleep(0.03)
        return self.source.batch(unit, **options)

def task(config):
    made = tally.task(config)
    return replace(made, source=Late(made.source))
"""


def test_late_data_are_reading_and_not_computing_over_processes(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(LATE)
    flags = ["--plan=bsp:50%,asp", "--workers=2", "--set=workload=120", "--set=telemetry.log_secs=0.2"]
    with Job(tmp_path / "run", str(tmp_path / "user.py"), *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
    lines = [line for line in lines_of(tmp_path / "run" / "metrics.jsonl") if sum(line["compute_secs"].values())]
    read, computed = ([sum(line[name].values()) for line in lines[1:]] for name in ("read_secs", "compute_secs"))
    shares = [one / (one + other) for one, other in zip(read, computed, strict=True)]
    assert max(shares) >= 0.8 and statistics.median(shares) >= 0.5
