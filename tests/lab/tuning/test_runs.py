"""The runs of a search are those of the launchers: real accuracy, resumed where they were stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import hybridsync
from hybridsync.chief.bad_units import DIVERGED
from hybridsync.config import EmulationConfig, RunConfig, TelemetryConfig
from hybridsync.core.errors import ConfigError, NoAnswer, ResumeError, WorkdirError
from hybridsync.core.plan import Plan
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario
from hybridsync.lab.tuning.inprocess_runner import InProcessRuns
from hybridsync.lab.tuning.run_ending import accuracy_of, ended
from hybridsync.lab.tuning.search import Made
from hybridsync.lab.tuning.search_rules import Rules, plan_of
from hybridsync.lab.tuning.simulated_runner import SCRATCH, SimulatedRuns
from hybridsync.telemetry.summary import Summary, Units, write_summary
from hybridsync.trainer import Trainer
from hybridsync.training.optimizer import Optimizer
from hybridsync.training.run import Run
from hybridsync.training.task import Task
from tests.tasks import UNIT_SIZE, mlp_task, momentum_sgd, plain_sgd, tally_task
from tests.trainers import NEVER, events_of, fit_and_stop

CONFIG = RunConfig(workload=48, unit_size=UNIT_SIZE, workers=2, plan="bsp", checkpoint=NEVER)
RULES = Rules(runs=2, settings=2)


def run_of(config: RunConfig) -> Run:
    return Run(config, mlp_task(), momentum_sgd(0.02), None)


def wild(config: RunConfig) -> Run:
    return Run(config, mlp_task(), plain_sgd(1e30), None)


def simulated(folder: Path, **values: Any) -> SimulatedRuns:
    values = {"run_of": run_of, "config": CONFIG, "scenario": Scenario(), "place": "even", "folder": folder, **values}
    return SimulatedRuns(**values)


def test_a_simulated_run_is_the_same_every_time_and_leaves_nothing(tmp_path: Path) -> None:
    runs = simulated(tmp_path)
    (tmp_path / SCRATCH / "events.jsonl").parent.mkdir()
    (tmp_path / SCRATCH / "events.jsonl").write_text("of a run that was killed")
    first = runs.carry_out("bsp:50%,asp", 3)
    assert first == runs.carry_out("bsp:50%,asp", 3) != runs.carry_out("bsp:50%,asp", 4)
    assert first.accuracy is not None and 0 < first.accuracy <= 1
    assert list(tmp_path.iterdir()) == []


def test_simulated_runs_of_other_clusters_are_not_alike(tmp_path: Path) -> None:
    slower = Scenario(cluster=Cluster(devices=(Device(0.07),)))
    places = [simulated(tmp_path), simulated(tmp_path, place="called otherwise"), simulated(tmp_path, scenario=slower)]
    places.append(simulated(tmp_path, config=dataclasses.replace(CONFIG, servers=2)))
    places.append(simulated(tmp_path, config=dataclasses.replace(CONFIG, telemetry=TelemetryConfig(log_secs=3.0))))
    one, same, other, servers, told = (runs.where for runs in places)
    assert one == same == told
    assert len({one, other, servers}) == 3


@pytest.mark.parametrize("runtime", ["simulator", "inprocess"])
def test_a_run_that_diverges_is_one_without_accuracy(tmp_path: Path, runtime: str) -> None:
    config = dataclasses.replace(CONFIG, workload=400)
    runs = InProcessRuns(wild, config, tmp_path) if runtime == "inprocess" else simulated(tmp_path, run_of=wild)
    made = runs.carry_out("asp", 0)
    assert made.accuracy is None and made.seconds > 0
    if runtime == "inprocess":
        assert runs.carry_out("asp", 0) == made, "it is not made again"


def test_a_real_run_is_gone_on_with_where_it_was_saved_and_not_made_again_at_its_end(tmp_path: Path) -> None:
    runs = InProcessRuns(run_of, CONFIG, tmp_path)
    workdir = tmp_path / "bsp-50-asp-seed3"
    slow = EmulationConfig(compute_secs=0.02)
    begun = run_of(dataclasses.replace(CONFIG, plan="bsp:50%,asp", seed=3, emulation=slow))
    trainer = Trainer(begun.task, begun.optimizer, begun.config, workdir=workdir, progress=False)
    assert not fit_and_stop(trainer, 10).completed
    assert ended(workdir, begun.config) is None
    made = runs.carry_out("bsp:50%,asp", 3)
    assert [event["reason"] for event in events_of(workdir, "run_started")] == ["start", "resume"]
    assert runs.carry_out("bsp:50%,asp", 3) == made
    assert len(events_of(workdir, "run_started")) == 2
    other = InProcessRuns(run_of, dataclasses.replace(CONFIG, workload=CONFIG.workload + 1), tmp_path)
    with pytest.raises(ResumeError, match="another workload"):
        other.carry_out("bsp:50%,asp", 3)


# --- what a run's end says ---


def summary(**values: object) -> Summary:
    counts = Units(workload=9, issued=9, applied=9, dropped=0, outstanding=0, rolled_back=0)
    known = {"exit": "completed", "units": counts, "examples": 9, "seconds": 2.0, "plan": "bsp", "switches": []}
    return Summary(**{**known, "final": {"accuracy": 0.5}, "staleness": {}, **values})


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({}, Made(0.5, 2.0)),
        ({"final": {"accuracy": float("nan")}}, Made(None, 2.0)),
        ({"exit": "failed", "error": f"{DIVERGED}: the contributions of 11 units"}, Made(None, 2.0)),
        ({"exit": "failed", "error": "no worker is left"}, None),
        ({"exit": "preempted"}, None),
    ],
)
def test_the_end_of_a_run_is_read_from_its_summary(tmp_path: Path, values: dict[str, object], made: object) -> None:
    if values.get("final"):
        text = dataclasses.asdict(summary(**values))
        (tmp_path / "summary.json").write_text(json.dumps(text))
    else:
        write_summary(tmp_path, summary(**values))
    assert ended(tmp_path, CONFIG) == made


def test_a_run_that_a_callback_stopped_is_no_run_of_a_search(tmp_path: Path) -> None:
    write_summary(tmp_path, summary(exit="stopped", stop_reason="good enough"))
    with pytest.raises(ConfigError, match=r"stopped by a callback \(good enough\).*leave run.stop out"):
        ended(tmp_path, CONFIG)


def test_a_folder_without_a_summary_holds_no_end(tmp_path: Path) -> None:
    assert ended(tmp_path, CONFIG) is None


def test_a_task_that_measures_no_accuracy_is_refused() -> None:
    with pytest.raises(ConfigError, match="the task measures min_count, stray at a run's end, no accuracy"):
        accuracy_of({"min_count": 1, "stray": 0})


# --- in one's own program ---


def embedded(task: Task, optimizer: Optimizer, tmp_path: Path, **options: object) -> hybridsync.Trainer:
    values = {"config": CONFIG, "plan": "auto", "progress": False, "history": tmp_path / "history.sqlite", **options}
    return Trainer(task, optimizer, **values)


def test_a_trainer_takes_what_was_found_for_its_job_and_says_how_to_find_what_was_not(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match=r"run hybridsync.tune\(task, optimizer, \.\.\.\) with this Trainer's arguments"):
        embedded(mlp_task(), momentum_sgd(0.02), tmp_path)
    history = tmp_path / "history.sqlite"
    assert not history.exists()
    found = hybridsync.tune(
        mlp_task(), momentum_sgd(0.02), CONFIG, rules=RULES, history=history, workdir=tmp_path / "search"
    )
    trainer = embedded(mlp_task(), momentum_sgd(0.02), tmp_path, seed=9)
    assert trainer.fit().summary.plan == str(Plan.parse(plan_of(found.share)))
    for task, optimizer, options in (
        (mlp_task(), momentum_sgd(0.03), {}),
        (mlp_task(), plain_sgd(0.02), {}),
        (tally_task(48), momentum_sgd(0.02), {}),
        (mlp_task(), momentum_sgd(0.02), {"workload": 50}),
        (mlp_task(), momentum_sgd(0.02), {"workers": 3}),
    ):
        with pytest.raises(NoAnswer):
            embedded(task, optimizer, tmp_path, **options)


def test_threads_search_too_and_a_folder_takes_one_search_at_a_time(tmp_path: Path) -> None:
    history, folder = tmp_path / "history.sqlite", tmp_path / "search"

    def meanwhile(search: object) -> None:
        with pytest.raises(WorkdirError, match="is in use by process"):
            hybridsync.tune(mlp_task(), momentum_sgd(0.02), CONFIG, rules=rules, history=history, workdir=folder)

    rules = Rules(target=0.01, runs=1, settings=1)
    options = {"rules": rules, "runtime": "inprocess", "history": history, "workdir": folder, "watch": meanwhile}
    found = hybridsync.tune(mlp_task(), momentum_sgd(0.02), CONFIG, **options)
    assert plan_of(found.share) == "bsp:50%,asp"
    assert (folder / "bsp-50-asp-seed0" / "summary.json").exists()
