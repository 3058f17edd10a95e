"""A run is read back as plain values, on the time from its first unit."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import hybridsync
from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.history import MOST_INCIDENTS
from hybridsync.lab.report.model import model
from hybridsync.lab.report.reading import shown_record
from hybridsync.telemetry.recorder import Recorder
from tests.lab.report.workdirs import WrittenRun, completed


def test_a_run_is_read_back_whole(tmp_path: Path) -> None:
    run = hybridsync.read_run(completed(tmp_path / "run"))
    assert (run.config["plan"], run.summary["exit"], run.exit) == ("bsp:25%,asp", "completed", "completed")
    assert [line["units"] for line in run.metrics] == [50, 100, 200, 400]
    (evaluation,) = run.evaluations
    assert evaluation == {"secs": evaluation["secs"], "units": 200, "examples": 1600, "phase": 2} | {
        "accuracy": 0.8,
        "loss": 0.3,
    }
    assert run.events[0]["kind"] == "run_started" and run.events[-1]["kind"] == "run_finished"
    for lines in (run.metrics, run.evaluations, run.events):
        assert [line["secs"] for line in lines] == sorted(line["secs"] for line in lines)
        assert not any("t" in line for line in lines)
    entered = next(event for event in run.events if event["kind"] == "phase_entered")
    assert entered["secs"] == 0.0, "start-up is on no line"
    assert json.loads(json.dumps([run.config, run.summary, run.metrics, run.events]))


def test_a_notebook_shows_the_curve_and_what_went_otherwise(tmp_path: Path) -> None:
    run = hybridsync.read_run(completed(tmp_path / "run"))
    shown = run._repr_html_()
    assert shown.startswith("<code>RunHistory(") and 0 < shown.index("<svg ") < shown.index("<ul>")
    items = re.findall("<li>(.*?)</li>", shown)
    assert any(re.fullmatch(r"[\d.]+ s: worker 1 lost: signal SIGKILL", item) for item in items)
    lost = {**next(event for event in run.events if event["kind"] == "role_lost"), "reason": "<b>"}
    many = dataclasses.replace(run, evaluations=[], events=[lost] * (MOST_INCIDENTS + 3))
    items = re.findall("<li>(.*?)</li>", many._repr_html_())
    assert (
        len(items) == MOST_INCIDENTS + 1 and items[0].endswith("lost: &lt;b&gt;") and items[-1].startswith("and 3 more")
    )
    assert dataclasses.replace(run, evaluations=[], events=[]).inline_report() == ""


def test_a_length_of_its_own_does_not_hide_a_lines_time(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("asp", 0)
    written_run.event("checkpoint", units=8, bytes=100, secs=0.25)
    written_run.metrics(8)
    written_run.close()
    run = hybridsync.read_run(written_run.workdir)
    saved = next(event for event in run.events if event["kind"] == "checkpoint")
    assert (saved["secs"], saved["lasted_secs"]) == (1.0, 0.25)
    assert (run.metrics[0]["secs"], run.metrics[0]["lasted_secs"]) == (2.0, 0.0)


def test_an_evaluation_counts_when_its_state_was_there_not_when_it_was_measured(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("asp", 0)
    written_run.metrics(8)
    written_run.event("evaluation", examples=64, units=8, state_t=1.0, secs=0.25, accuracy=0.5, loss=None)
    written_run.close()
    run = hybridsync.read_run(written_run.workdir)
    figures = {"accuracy": 0.5, "loss": None, "lasted_secs": 0.25}
    assert run.evaluations == [{"secs": 1.0, "units": 8, "examples": 64, "phase": 1, **figures}]
    assert run.events[-1]["secs"] == 2.0
    (evaluation,) = model(shown_record(written_run.workdir, "run")).evaluations
    assert evaluation.t == 1.0


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_has_entered_no_phase_has_empty_lists(tmp_path: Path, begun: bool) -> None:
    written_run = WrittenRun(tmp_path / "run")
    if begun:
        written_run.start()
    written_run.close()
    run = hybridsync.read_run(written_run.workdir)
    assert (run.exit, run.summary, run.metrics, run.evaluations) == ("unfinished", {}, [], [])
    assert bool(run.events) == begun
    assert "unfinished, 0 of 400 units in 0 s" in repr(run)


def test_what_stands_before_a_start_from_unit_0_is_another_runs(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    again = WrittenRun.__new__(WrittenRun)
    clock = WrittenRun(tmp_path / "clock").clock
    again.workdir, again.clock, again.number = workdir, clock, 5
    again.recorder = Recorder.open(workdir, clock)
    again.start()
    assert hybridsync.read_run(workdir).summary == {}, "the summary is the other run's"
    again.phase("asp", 0, "start")
    again.metrics(10)
    again.event("evaluation", examples=80, accuracy=0.5, loss=None)
    again.close()
    run = hybridsync.read_run(workdir)
    assert [line["units"] for line in run.metrics] == [10]
    assert [(line["secs"], line["units"]) for line in run.evaluations] == [(2.0, 10)]
    assert [event["kind"] for event in run.events].count("run_started") == 1


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (None, "", "there is no folder"),
        ("events.jsonl", '{"kind"\n{}\n', "events.jsonl is damaged in line 1"),
        ("metrics.jsonl", '{"t":1.0,"units":3}\n', "lacks examples"),
        ("config.json", "[]", "config.json was not written by HybridSync"),
        ("summary.json", "{", "summary.json is damaged"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, file: str | None, content: str, said: str) -> None:
    workdir = tmp_path / "run"
    if file is not None:
        completed(workdir)
        (workdir / file).write_text(content)
    with pytest.raises(WorkdirError) as refused:
        hybridsync.read_run(workdir)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_timeline_is_not_needed(tmp_path: Path) -> None:
    workdir = completed(tmp_path / "run")
    (workdir / "timeline.json").write_text("{")
    assert len(hybridsync.read_run(workdir).metrics) == 4
