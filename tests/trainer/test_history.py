"""`result.history` is what `hybridsync.read_run` reads, also of a run without a workdir."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import hybridsync
from tests.trainers import mlp_trainer


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
