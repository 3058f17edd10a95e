"""`result.history` is what `hybridsync.read_run` reads, also of a run without a workdir."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import optax
import pytest

import hybridsync
from hybridsync import Optimizer, Trainer
from hybridsync.config import RunConfig, flattened
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_records
from hybridsync.telemetry.run_record import Record
from tests.trainers import mlp_trainer

OWN = """
import optax
from hybridsync import Optimizer, RunConfig
from tests.tasks import mlp_task


def config():
    return RunConfig(workload=16, unit_size=8, workers=2, plan="asp")


def task(config):
    return mlp_task()


def optimizer(config):
    return Optimizer(lambda learning_rate, decay: optax.rmsprop(learning_rate, decay), learning_rate=0.003, decay=0.8)
"""


def test_a_run_without_a_workdir_has_the_history_of_one_with(tmp_path: Path) -> None:
    kept = mlp_trainer("bsp:50%,asp", workdir=tmp_path / "run").fit()
    result = mlp_trainer("bsp:50%,asp").fit()
    written, history = hybridsync.read_run(tmp_path / "run"), result.history
    assert kept.history == written
    assert (history.name, history.exit, history.summary["final"]) == ("", "completed", dict(result.summary.final))
    assert history.config == written.config
    assert history.secs == result.summary.seconds
    assert history.metrics[-1]["units"] == written.metrics[-1]["units"] == 64
    assert [*history.metrics[-1]["workers"]] == [*written.metrics[-1]["workers"]], (
        "numbers of workers are texts in both"
    )
    last, of_written = history.evaluations[-1], written.evaluations[-1]
    assert last.keys() == of_written.keys() and (last["units"], of_written["units"]) == (64, 64)
    assert last["accuracy"] == result.accuracy
    kinds = {event["kind"] for event in history.events}
    assert {"run_started", "phase_entered", "training_started", "evaluation", "run_finished"} <= kinds
    for event in history.events:
        in_file = next(each for each in written.events if each["kind"] == event["kind"])
        assert event.keys() == in_file.keys()
    assert copy.deepcopy(result).history == history
    for shown in (result, history):
        assert shown._repr_html_().startswith("<code>") and "</svg>" in shown._repr_html_()
    shutil.rmtree(tmp_path / "run")
    assert kept._repr_html_() == f"<code>{kept!r}</code>", "without its workdir it shows what it has"


def test_the_history_of_a_run_that_was_complete_is_its_workdirs(tmp_path: Path) -> None:
    mlp_trainer(workdir=tmp_path / "run").fit()
    again = mlp_trainer(workdir=tmp_path / "run").fit()
    assert again.history == hybridsync.read_run(tmp_path / "run")


def test_runs_whose_optimizers_have_two_rates_are_told_apart_by_comparisons_and_by_the_page(tmp_path: Path) -> None:
    for rate in (0.02, 0.1):
        optimizer = Optimizer(optax.sgd, learning_rate=rate, momentum=0.5, clip=1.0)
        mlp_trainer("asp", 16, optimizer, workdir=tmp_path / f"rate-{rate}").fit()
    named = {"name": "sgd", "learning_rate": 0.1, "clip": 1.0, "momentum": 0.5}
    assert hybridsync.read_run(tmp_path / "rate-0.1").config["optimizer"] == named
    assert hybridsync.compare(tmp_path / "*", by="plan").mixed == ["optimizer.learning_rate"]
    by_rate = hybridsync.compare(tmp_path / "*", by="optimizer.learning_rate")
    assert [(row["optimizer.learning_rate"], row["runs"]) for row in by_rate.rows] == [(0.02, 1), (0.1, 1)]
    text = page(shown_records([tmp_path / "rate-0.02", tmp_path / "rate-0.1"]))
    for rate in (0.02, 0.1):
        assert f"sgd, rate {rate}, momentum 0.5, clip 1.0" in text and f">{rate}<" in text
    assert "optimizer.learning_rate" in text and "sgd, rate 0.05" not in text


def test_the_optimizer_that_a_configuration_file_makes_by_itself_is_the_one_recorded(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    result = Trainer.from_config(tmp_path / "own.py", workdir=tmp_path / "run", progress=False).fit()
    named = {"name": "custom(learning_rate, decay)", "learning_rate": 0.003, "decay": 0.8}
    assert result.history.config["optimizer"] == named


def test_schedules_are_recorded_by_their_rates() -> None:
    rate = optax.piecewise_constant_schedule(0.1, {48: 0.1})
    found = Optimizer(optax.sgd, learning_rate=rate, per="units").recorded_values(8, workload=64)
    assert found["learning_rate"] == "a schedule: 0.1 first, 0.01 last, mean 0.0775"


@pytest.mark.parametrize(("file", "rate"), [("job.py", 0.05), (None, None)])
def test_of_an_older_record_the_optimizer_is_its_files_or_is_not_known(file: str | None, rate: float | None) -> None:
    config = {"config": hybridsync.config.to_json(RunConfig(workload=8, plan="asp")), "file": file}
    values = flattened(Record("", config, [], [], None).values)
    assert (values["workload"], values.get("optimizer.learning_rate")) == (8, rate)
