"""What a run leaves in its workdir, and what becomes of one that cannot be written."""

from __future__ import annotations

import errno
import json
import os

import pytest

from hybridsync import CheckpointConfig, EmulationConfig, TelemetryConfig
from hybridsync.core.errors import CheckpointError, HybridSyncError, WorkdirError
from hybridsync.storage.apply_log import read
from hybridsync.storage.checkpoints import CheckpointStore
from hybridsync.storage.durable import WorkdirLock
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.buffer_layout import fingerprint
from tests.trainers import LOGGED, events_of, is_exact, lines_of, mlp_trainer, tally_trainer

SLOW = EmulationConfig(compute_secs=0.02)
EVENT_FIELDS = {
    "run_started": {"runtime", "reason"},
    "role_started": {"role", "id", "pid", "host", "address"},
    "worker_joined": {"worker"},
    "phase_entered": {"protocol", "members", "reason", "units", "learning_rate", "units_per_update"},
    "training_started": {"start_up_secs"},
    "evaluation_skipped": {"first", "last", "places", "units", "why"},
    "phase_ended": {"units", "fingerprint"},
    "switch": {
        *("from", "to", "reason", "units", "fingerprint"),
        *(f"{stage}_secs" for stage in ("drain", "capture", "reserve", "enter", "commit", "compile", "stall")),
    },
    "evaluation": {"examples", "accuracy", "loss"},
    "checkpoint": {"units", "bytes", "secs"},
    "run_finished": {"exit", "units"},
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("workdir") / "run"
    telemetry = TelemetryConfig(apply_log=True, log_secs=0.05, evaluate_units=32)
    mlp_trainer("bsp:25%,asp:50%,bsp", 128, workdir=workdir, telemetry=telemetry, emulation=SLOW).fit()
    return workdir


def test_a_run_leaves_the_documented_files(workdir):
    names = {path.name for path in workdir.iterdir()}
    documented = {
        *("config.json", "events.jsonl", "metrics.jsonl", "summary.json"),
        *("timeline.json", "apply_log", "checkpoints", "phase"),
    }
    assert documented <= names
    assert json.loads((workdir / "config.json").read_text())["config"]["plan"] == "bsp:25%,asp:50%,bsp"


def test_every_event_has_its_documented_fields(workdir):
    events = events_of(workdir)
    kinds = {event["kind"] for event in events}
    assert kinds - {"evaluation_skipped"} == set(EVENT_FIELDS) - {"evaluation_skipped"}, "by how fast a save is"
    for event in events:
        assert {"t", "wall", "kind", "phase", *EVENT_FIELDS[event["kind"]]} <= event.keys(), event
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)
    assert events[0]["kind"] == "run_started"
    assert events[-1]["kind"] == "run_finished"


def test_phases_are_entered_with_the_rate_and_the_units_of_their_protocol(workdir):
    entered = events_of(workdir, "phase_entered")
    assert [(e["protocol"], e["units"], e["units_per_update"]) for e in entered] == [
        ("bsp", 0, 4),
        ("asp", 32, 1),
        ("bsp", 96, 4),
    ]
    assert [e["learning_rate"] for e in entered] == pytest.approx([0.08, 0.02, 0.08])
    assert [e["phase"] for e in entered] == [1, 2, 3]


def test_checkpoints_are_committed_at_the_start_at_switches_and_at_the_end(workdir):
    assert [event["units"] for event in events_of(workdir, "checkpoint")] == [0, 32, 96, 128]


def test_metrics_are_written_while_it_runs(workdir):
    lines = lines_of(workdir / "metrics.jsonl")
    assert len(lines) >= 5
    for line in lines:
        assert {
            *("t", "units", "examples", "phase", "protocol", "loss"),
            *("learning_rate", "examples_per_sec", "staleness", "workers", "compute_secs", "read_secs", "wait_secs"),
        } <= line.keys()
    assert [line["units"] for line in lines] == sorted(line["units"] for line in lines)
    assert lines[-1]["units"] == 128
    assert {line["protocol"] for line in lines} == {"bsp", "asp"}


def test_the_summary_accounts_for_every_unit(workdir):
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["exit"] == "completed"
    assert summary["error"] is None
    assert summary["units"] == {
        "workload": 128,
        "issued": 128,
        "applied": 128,
        "dropped": 0,
        "outstanding": 0,
        "rolled_back": 0,
    }
    assert summary["plan"] == "bsp:25%,asp:50%,bsp"
    assert summary["switches"] == events_of(workdir, "switch")
    assert {"accuracy", "loss"} <= summary["final"].keys()
    assert summary["staleness"]["max"] >= 0
    assert 0.5 < summary["seconds"] < 60


def test_every_file_has_the_one_time_of_the_run_and_start_up_is_a_figure_of_its_own(workdir):
    summary = json.loads((workdir / "summary.json").read_text())
    events, lines = events_of(workdir), lines_of(workdir / "metrics.jsonl")
    (started,) = [event for event in events if event["kind"] == "training_started"]
    assert started["t"] == 0.0 and events.index(started) > [event["kind"] for event in events].index("phase_entered")
    assert summary["start_up_secs"] == started["start_up_secs"] > 0.0
    assert started["wall"] - events[0]["wall"] <= started["start_up_secs"], "from the command, before the record"
    assert all(event["t"] == 0.0 for event in events[: events.index(started)])
    assert events[-1]["t"] == pytest.approx(summary["seconds"], abs=0.25), "the run's last sign"
    assert 0.0 < lines[-1]["t"] <= events[-1]["t"]
    assert sum(line["secs"] for line in lines[:-1]) == pytest.approx(lines[-2]["t"], abs=0.25), "no gap, no start-up"
    spans = [each for each in json.loads((workdir / "timeline.json").read_text())["traceEvents"] if each["ph"] == "X"]
    assert min(span["ts"] for span in spans) >= 0.0 and max(span["ts"] for span in spans) / 1e6 <= events[-1]["t"]


def test_the_timeline_is_a_chrome_trace_with_every_role(workdir):
    trace = json.loads((workdir / "timeline.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    names = {event["name"] for event in events}
    assert {"compute", "average", "step", "push_pull", "apply", "drain", "capture", "reserve", "enter"} <= names
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_the_apply_log_holds_every_update_of_every_phase(workdir):
    entries = list(read(workdir / "apply_log"))
    assert [entry.sequence for entry in entries] == list(range(1, 8 + 64 + 8 + 1))
    assert sorted(unit for entry in entries for unit in entry.units) == list(range(128))
    assert {entry.phase: (entry.rate, entry.weight, entry.blend) for entry in entries} == {
        1: (4.0, 4.0, 1.0),
        2: (1.0, 1.0, 0.25),
        3: (4.0, 4.0, 1.0),
    }
    assert all(0 <= entry.base < entry.sequence for entry in entries)
    assert all(entry.base == entry.sequence - 1 for entry in entries if entry.phase != 2)


def test_a_run_without_a_workdir_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tally_trainer("bsp:50%,asp", 32, telemetry=LOGGED).fit().completed
    assert list(tmp_path.iterdir()) == []


def test_periodic_saves_do_not_disturb_the_training(tmp_path):
    options = {"checkpoint": CheckpointConfig(secs=0.05, keep=2), "emulation": SLOW}
    result = mlp_trainer("bsp", 256, workdir=tmp_path / "run", **options).fit()
    commits = [event["units"] for event in events_of(tmp_path / "run", "checkpoint")]
    assert len(commits) >= 3
    assert commits == sorted(set(commits))
    assert fingerprint(result.state) == fingerprint(mlp_trainer("bsp", 256).fit().state)
    steps = [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()]
    assert len(steps) == 2


def test_a_commit_that_fails_once_is_tried_again_and_the_training_goes_on(tmp_path, monkeypatch, capsys):
    save, refused = CheckpointStore.save, []

    def refuse_once(self, state, *, units, ledger, run):
        if units and not refused:
            refused.append(units)
            raise CheckpointError("the disk is full")
        return save(self, state, units=units, ledger=ledger, run=run)

    monkeypatch.setattr(CheckpointStore, "save", refuse_once)
    trainer = tally_trainer("bsp:50%,asp", 64, workdir=tmp_path / "run", emulation=SLOW, progress=True)
    result = trainer.fit()
    assert result.completed
    assert is_exact(result.summary.final)
    assert refused == [32]
    assert "not durable since unit 32" in capsys.readouterr().err
    (event,) = events_of(tmp_path / "run", "save_failed")
    assert (event["units"], event["error"]) == (32, "the disk is full")
    (switch,) = result.summary.switches
    assert switch["commit_secs"] > 0


def test_a_run_that_is_still_writing_is_not_started_from(tmp_path):
    tally_trainer("bsp", 32, workdir=tmp_path / "first").fit()
    with WorkdirLock(tmp_path / "first"), pytest.raises(WorkdirError, match="first"):
        tally_trainer("bsp", 32, workdir=tmp_path / "second", init_from=tmp_path / "first").fit()


def test_a_record_that_is_not_ours_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"lr": 1}')
    with pytest.raises(WorkdirError, match="was not written by HybridSync"):
        tally_trainer("bsp", 32, workdir=tmp_path).fit()
    (tmp_path / "config.json").write_text('{"config": {')
    with pytest.raises(WorkdirError, match="damaged"):
        tally_trainer("bsp", 32, workdir=tmp_path).fit()
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="is a file, and a run keeps a folder there"):
        tally_trainer("bsp", 32, workdir=tmp_path / "file").fit()


def test_a_failed_last_commit_ends_the_run_with_its_earlier_checkpoints_intact(tmp_path, monkeypatch):
    save = CheckpointStore.save

    def refuse(self, state, *, units, ledger, run):
        if units:
            raise CheckpointError("the disk is full")
        return save(self, state, units=units, ledger=ledger, run=run)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", refuse)
        with pytest.raises(HybridSyncError, match="the disk is full"):
            tally_trainer("bsp", 32, workdir=tmp_path / "run").fit()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit"] == "failed"
    assert is_exact(tally_trainer("bsp", 32, workdir=tmp_path / "run").fit().summary.final)


@pytest.mark.parametrize("name", ["timeline.json", "summary.json"])
def test_a_disk_without_room_for_a_last_file_does_not_cost_the_result(tmp_path, monkeypatch, caplog, name):
    fsync = os.fsync

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f".{name}.tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    result = tally_trainer("bsp", 32, workdir=tmp_path / "run").fit()
    assert result.completed
    assert is_exact(result.summary.final)
    assert "No space left on device" in caplog.text
    assert not list((tmp_path / "run").glob(f"*{name}*"))


def test_a_record_that_cannot_be_opened_leaves_the_workdir_to_others(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = tally_trainer("bsp", 32, workdir=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "open", refuse)
        with pytest.raises(OSError, match="No space left"):
            trainer.fit()
    assert trainer.fit().completed
