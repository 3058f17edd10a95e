"""The search's command line: killed twice it repeats nothing and loses nothing; what it says, what it refuses."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridsync.telemetry.summary import read_config
from tests.command_lines import CommandLines, command_lines
from tests.lab.tuning.jobs import SMALL_CONFIG
from tests.multiprocess.job import users_environment
from tests.trainers import events_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 2
KILLED_WHEN_SAVED = """
import os, runpy, signal
from hybridsync.phases.reporter import Reporter
committed = Reporter.committed
def committed_and_killed(self, commit):
    committed(self, commit)
    if commit.units:
        os.kill(os.getpid(), signal.SIGKILL)
Reporter.committed = committed_and_killed
runpy.run_module("launch.tune", run_name="__main__", alter_sys=True)
"""


class Place:
    """A folder with a small job, its history and its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "small.py"
        self.history, self.runs = folder / "history.sqlite", folder / "runs"
        folder.mkdir(exist_ok=True)
        self.config.write_text(SMALL_CONFIG)

    def named(self) -> list[str]:
        """Return the flags of a search here."""
        return [f"--config={self.config}", f"--history={self.history}", f"--workdir={self.runs}"]

    def start(self, *flags: str, program: tuple[str, ...] = ("-m", "launch.tune")) -> subprocess.Popen[str]:
        command = [sys.executable, *program, *self.named(), *flags]
        return subprocess.Popen(
            command, cwd=ROOT, env=users_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def call(self, launcher: str, *flags: str) -> subprocess.CompletedProcess[str]:
        known = [f"--config={self.config}", f"--history={self.history}"]
        return subprocess.run(
            [sys.executable, "-m", f"launch.{launcher}", *known, *flags],
            cwd=ROOT,
            env=users_environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def recorded(self) -> list[tuple[Any, ...]]:
        """Return every run of the history, in its order, with the time of its recording."""
        if not self.history.exists():
            return []
        connection = sqlite3.connect(self.history)
        try:
            return connection.execute("SELECT share, seed, accuracy, seconds, wall FROM runs ORDER BY id").fetchall()
        finally:
            connection.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def tune(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLines]:
    imported = ("hybridsync.training.run", "hybridsync.models", "hybridsync.lab.tuning.simulated_runner")
    with command_lines(tmp_path_factory.mktemp("printed"), "tune", *imported) as tune:
        yield tune


def kill_at(process: subprocess.Popen[str], begun: int, later_secs: float) -> None:
    """Kill a search so long after it has begun so many runs, or see it end before."""
    assert process.stdout is not None
    for line in process.stdout:
        begun -= ": run " in line
        if begun == 0:
            break
    threading.Event().wait(later_secs)  # anywhere in the run
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait(60)


def told(output: str) -> str:
    """Return the table and the answer of a search, without the runs that it had to make."""
    return output[output.index("plan   ") :]


@pytest.mark.timeout(240)
def test_a_search_killed_twice_repeats_nothing_and_ends_as_an_undisturbed_one(
    tune: CommandLines, tmp_path: Path
) -> None:
    flags = ("--runs=2", "--settings=2", "--seed=5")
    hurt, whole = Place(tmp_path / "hurt"), Place(tmp_path / "whole")
    drawn = random.Random(7)
    before: list[tuple[Any, ...]] = []
    for _ in range(KILLS):
        kill_at(hurt.start(*flags), 1, drawn.uniform(0.0, 1.5))
        after = hurt.recorded()
        assert after[: len(before)] == before, "a run was lost or recorded anew"
        before = after
    done, undisturbed = (tune(*place.named(), *flags) for place in (hurt, whole))
    assert done.returncode == 0, done.stderr
    assert hurt.recorded()[: len(before)] == before
    assert len({run[:2] for run in hurt.recorded()}) == len(hurt.recorded())
    assert [run[:4] for run in hurt.recorded()] == [run[:4] for run in whole.recorded()]
    assert told(done.stdout) == told(undisturbed.stdout)


@pytest.mark.timeout(240)
def test_a_real_run_of_a_killed_search_goes_on_from_its_checkpoint_and_auto_takes_the_answer(
    tune: CommandLines, place: Place
) -> None:
    job = ("--set=workload=4000", "--set=checkpoint.secs=0.1")
    flags = ("--runtime=inprocess", "--runs=1", "--settings=1", "--target=0.05", *job)
    run = place.runs / "inprocess" / "bsp-50-asp-seed0"
    process = place.start(*flags, program=("-c", KILLED_WHEN_SAVED))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL, output
    assert any(event["units"] for event in events_of(run, "checkpoint"))
    assert place.recorded() == []
    done = tune(*place.named(), *flags)
    assert done.returncode == 0, done.stderr
    assert [event["reason"] for event in events_of(run, "run_started")] == ["start", "resume"]
    assert [event["exit"] for event in events_of(run, "run_finished")] == ["completed"]
    assert "answer: bsp:50%,asp" in done.stdout and "confidence: not known" in done.stdout
    again = tune(*place.named(), *flags)
    assert ": run 1 of" not in again.stdout, "nothing was left to do"
    assert told(again.stdout) == told(done.stdout)

    workdir = place.folder / "auto"
    trained = place.call("train", *job, "--plan=auto", "--runtime=inprocess", f"--workdir={workdir}")
    assert trained.returncode == 0, trained.stderr
    assert "plan bsp:50%,asp: 50% found in 1 runs in one process" in trained.stderr
    config = read_config(workdir)
    assert config is not None and config["config"]["plan"] == "bsp:50%,asp"
    simulated = place.call("simulate", *job, "--compare=bsp; auto")
    assert simulated.returncode == 0, simulated.stderr
    assert "bsp:50%,asp" in simulated.stdout


def test_a_search_that_is_asked_to_stop_saves_the_run_and_says_so(place: Place) -> None:
    process = place.start("--runtime=inprocess", "--runs=1", "--set=workload=60000")
    assert process.stdout is not None
    for line in process.stdout:
        if "phase 1 (" in line:
            break
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert "is saved at" in output and "give the same command again" in output


REFUSED = [
    (("--runs=0",), "the search's runs must be at least 1, got 0"),
    (("--settings=17",), "the search's settings must be from 1 to 16, got 17"),
    (("--tolerance=1",), "the search's tolerance must be in (0, 1)"),
    (("--target=91",), "the search's target must be in (0, 1], as a share, got 91.0"),
    (("--doubt=0.7",), "the search's doubt must be in [0, 0.5), got 0.7"),
    (("--confirm=2",), "--confirm=2 with --runtime=simulator: it counts runs"),
    (("--workdir=",), "--workdir is empty"),
    (("--scenario=configs/scenarios/straggler.py", "--runtime=inprocess"), "--scenario is simulated, but"),
    (("--scenario=configs/scenarios/stragler.py",), "/configs/scenarios/straggler.py'"),
    (("--scenario=configs/scenarios/straggler.py", "--workers=2"), "names worker 3, but the run has"),
    (("--set=workload=5",), "a lock-step step of 4 workers is more than half"),
    (("--set=worklaod=5",), "did you mean 'workload'"),
    (("--seed=4294967295",), "5 seeds from 4294967295 on end above"),
    (("--config=configs/talli.py",), "/configs/tally.py'"),
    (("--config=configs/tally.py", "--set=workload=20"), "no accuracy; a switch point is searched by accuracy"),
    (("--confirm=-1", "--runtime=inprocess"), "--confirm=-1 with --runtime=inprocess"),
    (("--history=FOLDER/small.py",), "is damaged: file is not a database"),
    (("--workdir=FOLDER/small.py/runs",), "name another folder with --workdir"),
    (("bsp",), "unexpected argument 'bsp'"),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(tune: CommandLines, place: Place, flags: tuple[str, ...], said: str) -> None:
    done = tune(*place.named(), *(flag.replace("FOLDER", str(place.folder)) for flag in flags))
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert place.recorded() == []
