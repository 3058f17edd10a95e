"""Callbacks of a configuration file: the chief's process alone calls them, and one of them stops the run for good."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hybridsync.telemetry.events import read_events
from tests.multiprocess.job import ROOT, Job
from tests.sweeps import swept
from tests.trainers import events_of

FILE = """
import dataclasses, json, os, time
from pathlib import Path
from configs import tally
from configs.tally import optimizer, task
from hybridsync import Callback, EmulationConfig, TelemetryConfig
from hybridsync.emulation.device import Emulation

HERE = Path(__file__).parent
finish = Emulation.finish

def finish_later(self, worker, unit, *rest):
    if (HERE / "asked").exists():  # a unit begun from now on takes longer than it takes to hear of the stop
        with open(HERE / "begun", "a") as file:
            file.write(f"{worker}\\n")
        time.sleep(2)
    finish(self, worker, unit, *rest)

Emulation.finish = finish_later

class Raises(Callback):
    def on_phase(self, run, phase):
        raise SystemExit(3)

class Hangs(Callback):
    def on_phase(self, run, phase):
        time.sleep(6)

class Forks(Callback):
    def on_phase(self, run, phase):
        os.fork()

class Nan(Callback):
    def on_start(self, run):
        run.say(float("nan"))
        return float("nan")

    def on_evaluation(self, run, evaluation):
        evaluation["accuracy"] = float("nan")
        return evaluation

    def on_end(self, run, summary):
        return float("nan")

class Stops(Callback):
    def on_start(self, run):
        with open(HERE / "started", "a") as file:
            file.write(f"{os.getpid()}\\n")

    def on_evaluation(self, run, evaluation):
        (HERE / "seen").write_text(json.dumps(evaluation, allow_nan=False))
        if evaluation["units"] >= 16 and not (HERE / "asked").exists():
            (HERE / "asked").touch()
            run.stop("good enough")

    def on_end(self, run, summary):
        (HERE / "ended").write_text(summary["exit"])

def config():
    telemetry = TelemetryConfig(evaluate_units=8)
    return dataclasses.replace(tally.config(), telemetry=telemetry, emulation=EmulationConfig(compute_secs=0.02))

def callbacks(config):
    with open(HERE / "made", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return [Raises(), Hangs(), Forks(), Nan(), Stops()]
"""


@pytest.mark.parametrize("plan", swept(["bsp", "asp"]))
def test_a_callback_stops_processes_for_good_and_what_others_do_harms_nothing(plan: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(FILE)
    flags, workdir = (f"--plan={plan}", "--set=workload=20000"), tmp_path / "run"
    with Job(workdir, str(tmp_path / "user.py"), *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
        summary = job.summary()
        assert (summary["exit"], summary["stop_reason"]) == ("stopped", "good enough")
        assert (summary["final"]["min_count"], summary["final"]["max_count"], summary["final"]["stray"]) == (1, 1, 0)
        assert summary["units"]["rolled_back"] == 0 and not job.events("role_lost") and not job.tracebacks()
        assert [(event["why"], event["for_good"]) for event in job.events("stop_ordered")] == [("good enough", True)]
        failed = {event["code"]: event["error"] for event in job.events("user_code_failed")}
        assert failed.keys() == {"the callback Raises.on_phase", "the callback Hangs.on_phase"}
        assert failed["the callback Raises.on_phase"].endswith("SystemExit: 3")
        assert "has not returned for 4 s" in failed["the callback Hangs.on_phase"]
        assert summary["callback_secs"].keys() == {"Raises", "Hangs", "Forks", "Nan", "Stops"}
        assert "nan" in job.output and "NaN" not in (workdir / "events.jsonl").read_text()
        seen = json.loads((tmp_path / "seen").read_text())
        assert seen["accuracy"] is None and seen["units"] >= 16, "each callback has values of its own"
        assert (tmp_path / "ended").read_text() == "stopped"
        (chief,) = [event["pid"] for event in job.events("role_started") if event["role"] == "chief"]
        assert (tmp_path / "made").read_text() == (tmp_path / "started").read_text() == f"{chief}\n"
    begun = Counter((tmp_path / "begun").read_text().split()) if (tmp_path / "begun").exists() else Counter[str]()
    assert max(begun.values(), default=0) <= 1, "each worker begins one more unit at most"
    with Job(workdir, str(tmp_path / "user.py"), *flags) as job:
        assert job.wait() == 0, job.output
        assert "was stopped for good by a callback at" in job.output and "good enough" in job.output
    assert len(events_of(workdir, "phase_entered")) == 1
    told = [sys.executable, "-m", "hybridsync", "status", str(workdir)]
    assert "stopped" in subprocess.run(told, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True).stdout


LATER = """
import dataclasses, os
from pathlib import Path
from configs import tally
from configs.tally import optimizer, task
from hybridsync import Callback, EmulationConfig, KeepBest, TelemetryConfig

HERE = Path(__file__).parent

class Stops(Callback):
    def on_start(self, run):
        with open(HERE / "started", "a") as file:
            file.write(f"{os.getpid()}\\n")

    def on_evaluation(self, run, evaluation):
        if (HERE / "stop").exists():
            run.stop("told to")

def config():
    telemetry = TelemetryConfig(evaluate_units=20)
    return dataclasses.replace(tally.config(), telemetry=telemetry, emulation=EmulationConfig(compute_secs=0.02))

def callbacks(config):
    return [Stops(), KeepBest("max_count")]
"""


def test_a_chief_that_takes_the_place_of_a_lost_one_calls_callbacks_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(LATER)
    workdir = tmp_path / "run"
    with Job(workdir, str(tmp_path / "user.py"), "--plan=asp", "--workers=2", "--set=workload=20000") as job:
        job.until(lambda: (workdir / "best" / "best.json").exists(), "a checkpoint was kept")
        (first,) = (tmp_path / "started").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        job.until(lambda: len((tmp_path / "started").read_text().split()) == 2, "another chief made callbacks")
        (tmp_path / "stop").touch()
        assert job.wait() == 0, job.output + job.logs()
        summary = job.summary()
    assert (summary["exit"], summary["stop_reason"], summary["units"]["rolled_back"]) == ("stopped", "told to", 0)
    assert (summary["final"]["min_count"], summary["final"]["max_count"], summary["final"]["stray"]) == (1, 1, 0)
    assert len(list((workdir / "best").glob("[0-9]*"))) == 1
    *evaluated, _ = [event["units"] for event in read_events(workdir, "evaluation")]
    assert evaluated and len([units for units in evaluated if units % 20]) <= 1, "that of the lost chief's last place"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def callbacks(config): return [print]\n", "callbacks(config)[0] is builtin_function_or_method"),
        ("def callbacks(config): raise OSError('no disk')\n", "line 2: OSError: no disk"),
    ],
    ids=["none", "raises"],
)
def test_callbacks_that_cannot_be_made_are_refused_before_training(code: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("from configs.tally import config, optimizer, task\n" + code)
    with Job(tmp_path / "run", str(tmp_path / "user.py"), "--workers=2") as job:
        assert job.wait() == 1, job.output
        assert said in job.output and "Traceback" not in job.output
