import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.switch_stalls import print_stalls
from hybridsync.interfaces.reports import Span
from hybridsync.lab.report.incidents import incidents
from hybridsync.lab.report.model import RunModel, model
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_record
from hybridsync.lab.report.stalls import read_stalls
from tests.lab.report.workdirs import STAGES, WrittenRun, completed


def _model(workdir: Path) -> RunModel:
    return model(shown_record(workdir, "run"))


def test_phases_have_what_was_entered_and_where_they_ended(tmp_path: Path) -> None:
    first, second = _model(completed(tmp_path / "run")).phases
    assert (first.phase, first.protocol, first.reason, first.members) == (1, "bsp", "start", (0, 1))
    assert (first.units, first.end_units, second.units, second.end_units) == (0, 100, 100, 400)
    assert first.begin < first.end < second.begin < second.end


def test_every_incident_is_told_once_on_its_workers_lane(tmp_path: Path) -> None:
    told = [
        (incident.sort, incident.worker, incident.text) for incident in _model(completed(tmp_path / "run")).incidents
    ]
    assert told == [
        ("slow", 1, "worker 1 is slow: 10 units/s, the threshold is 20"),
        (
            "decided",
            None,
            "elastic: without workers [1], because the others are faster (worker 1 at 10 units/s, the threshold is 20; "
            "saves 1:15 and costs 0.25 s; 3,000 units of the stage are left)",
        ),
        ("back", 1, "worker 1 is as fast as the others again: 30 units/s, the threshold is 20"),
        ("lost", 1, "worker 1 lost: signal SIGKILL"),
        ("back", 1, "worker 1 joined"),
        ("lost", None, "server 0 lost: exit 70"),
        ("rollback", None, "back to unit 150; 50 units are applied again"),
    ]


@pytest.mark.parametrize(
    ("event", "sort", "text"),
    [
        ({"kind": "unit_quarantined", "unit": 7, "reason": "SIGSEGV"}, "other", "unit 7 is trained no more: SIGSEGV"),
        ({"kind": "worker_quarantined", "worker": 1, "reason": "SIGSEGV"}, "lost", "worker 1 is given up: SIGSEGV"),
        ({"kind": "world_renewed", "why": "a loss"}, "back", "all workers started again in a new group: a loss"),
        (
            {"kind": "save_failed", "units": 1000, "error": "full"},
            "other",
            "the state at unit 1,000 was not saved: full",
        ),
        (
            {"kind": "stop_ordered", "why": "accuracy 0.95", "for_good": True},
            "decided",
            "stopped for good by a callback: accuracy 0.95",
        ),
        ({"kind": "stop_ordered", "why": "lunch", "for_good": False}, "decided", "asked to save and stop: lunch"),
        ({"kind": "stop_ordered", "why": ""}, "decided", "asked to save and stop"),  # as earlier versions wrote it
        (
            {"kind": "switch_ordered", "number": 1, "protocol": "asp", "units": 3, "why": "slow network"},
            "decided",
            "asked to switch to asp for the rest of the stage: slow network",
        ),
    ],
)
def test_what_went_otherwise_is_said_in_words(event: dict[str, Any], sort: str, text: str) -> None:
    (incident,) = incidents([{"t": 1.0, "wall": 0.0, "phase": 1, **event}])
    assert (incident.sort, incident.text) == (sort, text)


def test_a_kind_of_event_that_the_page_does_not_know_is_shown_as_it_is(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0)
    written_run.close()
    record = shown_record(written_run.workdir, "run")
    event = {"t": 99.0, "wall": 0.0, "kind": "unit_blessed", "phase": 1, "unit": 7}
    (incident,) = model(dataclasses.replace(record, events=[*record.events, event])).incidents
    assert (incident.sort, incident.text) == ("other", "unit blessed: unit 7")


def test_a_process_that_may_hang_is_told_of_by_what_it_was_at(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0)
    what = {"doing": "reading the data of one unit", "limit_secs": 600.0, "setting": "hang.read_secs"}
    written_run.event("hang_suspected", role="worker", id=1, **what)
    written_run.close()
    (incident,) = _model(written_run.workdir).incidents
    assert incident.text == (
        "worker 1 has been reading the data of one unit for long; it is ended after 10:00 (hang.read_secs) if others "
        "wait for it"
    )


def test_a_worker_is_there_from_joining_to_leaving(tmp_path: Path) -> None:
    run = _model(completed(tmp_path / "run"))
    assert [stretch.worker for stretch in run.present] == [0, 1, 1]
    _, before, after = run.present
    (slow,) = run.slow
    assert before.begin < slow.begin < slow.end < before.end < after.begin < after.end == run.secs


def test_a_stall_divides_into_its_stages_and_the_rest(tmp_path: Path) -> None:
    (stall,) = _model(completed(tmp_path / "run")).stalls
    assert list(stall.stages) == ["drain", "capture", "reserve", "enter", "rest"]
    assert abs(sum(stall.stages.values()) - 0.1) < 1e-9
    assert (stall.secs, stall.compile_secs, stall.commit_secs) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("times", "ends", "kept"),
    [
        pytest.param([1.0, 2.0, 3.0, 3.25], [4.0], [1.0, 2.0, 3.0], id="a rest"),
        pytest.param([1.0, 2.0, 3.0, 3.25], [], [1.0, 2.0, 3.0, 3.25], id="a run that has not ended wrote none"),
        pytest.param([1.0, 2.0, 3.0, 6.0, 7.0], [8.0], [1.0, 2.0, 3.0, 6.0, 7.0], id="a whole one after a long one"),
        pytest.param(
            [1.0, 2.0, 3.0, 3.25, 4.5, 5.5, 6.5, 6.75],
            [3.5, 7.0],
            [1.0, 2.0, 3.0, 4.5, 5.5, 6.5],
            id="the rest of each session",
        ),
        pytest.param([1.0, 1.25], [2.0], [1.0, 1.25], id="too few to tell"),
    ],
)
def test_short_rest_at_the_end_of_an_older_session_is_in_no_line(
    tmp_path: Path, times: list[float], ends: list[float], kept: list[float]
) -> None:
    record = shown_record(completed(tmp_path / "run"), "run")
    line = {key: value for key, value in record.metrics[0].items() if key != "secs"}
    end = {"wall": 0.0, "kind": "run_finished", "phase": 2, "exit": "preempted"}
    events = [event for event in record.events if event["kind"] != "run_finished"] + [{**end, "t": t} for t in ends]

    def drawn(lines: list[dict[str, Any]]) -> list[float]:
        run = model(dataclasses.replace(record, metrics=lines, events=events))
        return [t for t, _ in run.line("t", lambda line: line["examples_per_sec"])]

    assert drawn([{**line, "t": t} for t in times]) == kept
    assert drawn([{**line, "t": t, "secs": 1.0} for t in times]) == times, "of today's lines the last is whole"


def test_stages_longer_than_the_stall_leave_no_rest(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.phase("asp", 100)
    written_run.switch(100, 0.05)
    written_run.finish()
    (stall,) = _model(written_run.workdir).stalls
    assert stall.stages["rest"] == 0.0


def test_a_phase_change_without_a_switch_event_has_the_timelines_stall(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.spans(0, *(Span("step", "sync", 106.0 + at, 1.0, 1, 2) for at in range(3)))
    written_run.phase("bsp", 6, "worker_lost")
    written_run.spans(0, *(Span("step", "sync", 112.0 + at, 1.0, 2, 2) for at in range(3)))
    written_run.finish("failed", "boom")
    (stall,) = _model(written_run.workdir).stalls
    assert stall.reason == "worker_lost"
    assert stall.stages == {}
    assert stall.secs == stall.timeline_secs == pytest.approx(2.0, abs=1e-3)


def test_a_switch_whose_chief_died_has_the_timelines_stall_and_no_stages(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.spans(0, *(Span("step", "sync", 106.0 + at, 1.0, 1, 2) for at in range(3)))
    written_run.phase("bsp", 6)
    written_run.spans(0, *(Span("step", "sync", 112.0 + at, 1.0, 2, 2) for at in range(3)))
    unknown = dict.fromkeys((*STAGES, "compile_secs", "commit_secs", "stall_secs"))
    written_run.event("switch", **{"from": "bsp", "to": "bsp"}, reason="planned", units=6, fingerprint="f", **unknown)
    written_run.finish()
    (stall,) = _model(written_run.workdir).stalls
    assert (stall.stages, stall.compile_secs, stall.commit_secs) == ({}, None, None)
    assert stall.secs == stall.timeline_secs == pytest.approx(2.0, abs=1e-3)
    assert "What switching cost" in page([shown_record(written_run.workdir, "run")])
    (read,) = read_stalls(written_run.workdir)
    assert (read.event_stall_secs, read.compile_secs) == (None, None)
    print_stalls([read])


def test_time_inside_another_span_counts_once(tmp_path: Path) -> None:
    busy = _model(completed(tmp_path / "run")).busy
    assert {kind: round(secs, 3) for kind, secs in busy["worker 0"].items()} == {"step": 0.25, "compute": 0.75}


def test_a_transfer_beside_the_computing_is_no_time_of_the_worker(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("psplus", 0, "start")
    written_run.spans(0, Span("compute", "server", 106.0, 1.0, 1, 1), Span("push_pull", "transfer", 106.25, 0.5, 1, 0))
    written_run.finish()
    assert {kind: round(secs, 3) for kind, secs in _model(written_run.workdir).busy["worker 0"].items()} == {
        "compute": 1.0
    }


def test_a_phase_that_was_cut_off_lasts_until_its_lifes_last_line_and_the_run_is_unfinished(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.metrics(50)
    written_run.close()
    written_run.resume()
    written_run.phase("bsp", 40, "resume")
    written_run.metrics(60)
    written_run.close()
    run = _model(written_run.workdir)
    cut, going_on = run.phases
    assert (cut.end, cut.end_units) == (1.0, 50)
    assert (going_on.end, going_on.end_units) == (run.secs, 60)
    assert run.exit == "unfinished"
    assert [incident.text for incident in run.incidents] == ["the run goes on from its newest checkpoint"]


def test_a_resumed_run_is_unfinished_although_an_earlier_life_left_a_summary(tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("bsp", 0, "start")
    written_run.finish("preempted", applied=50)
    assert _model(written_run.workdir).exit == "preempted"
    written_run.resume()
    written_run.close()
    assert _model(written_run.workdir).exit == "unfinished"


def test_a_figure_that_a_line_lacks_is_no_point(tmp_path: Path) -> None:
    run = _model(completed(tmp_path / "run"))
    assert [loss for _, loss in run.line("t", lambda line: line["loss"])] == [2.0, 0.1, 0.05]
    assert [at for at, _ in run.line("examples", lambda line: line["loss"])] == [800, 1600, 3200]
    assert run.workers == (0, 1)


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_the_time_axis_ends_where_training_did_whatever_callbacks_take(how: Any, tmp_path: Path) -> None:
    written_run = WrittenRun(tmp_path / "run")
    written_run.start()
    written_run.phase("asp", 0, "start")
    written_run.metrics(400, 0.1, "asp")
    if how == "completed":
        written_run.event("phase_ended", units=400)
        ended = written_run.recorder.events.elapsed()
        written_run.event("checkpoint", units=400, bytes=1, secs=0.5, sha256="")
    else:
        written_run.event("role_lost", role="worker", id=1, reason="signal SIGKILL")
        ended = written_run.recorder.events.elapsed()
    written_run.clock.advance(30.0)
    written_run.event("user_code_failed", code="the callback Late.on_end", error="it has not returned", times=1)
    written_run.finish(how, "no worker is left" if how == "failed" else None)
    run = _model(written_run.workdir)
    assert run.secs == pytest.approx(ended) and run.phases[-1].end == pytest.approx(ended)
    assert max(incident.t for incident in run.incidents) > run.secs + 30
    assert 'class="mark other" style="left:100.000%"' in page([run.record])
