"""Runs from the outside: fit, hooks, steps, preemption, hand-overs, and what they leave."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from hybridsync import CheckpointConfig, EmulationConfig, TelemetryConfig, Trainer
from hybridsync.applylog import read
from hybridsync.checkpoint import CheckpointStore
from hybridsync.chief.chief import Chief
from hybridsync.durable import WorkdirLock
from hybridsync.errors import CheckpointError, ConfigError, HybridSyncError, PlanError, RoleLost, WorkdirError
from hybridsync.layout import fingerprint
from hybridsync.task import Task
from tests.tasks import adamw, batchnorm_task, mlp_task, momentum_sgd, plain_sgd, tally_task
from tests.trainers import LOGGED, NEVER, events_of, is_exact, lines_of, mlp_trainer, tally_trainer

SLOW = EmulationConfig(compute_secs=0.02)
SLOWER = EmulationConfig(compute_secs=0.05)
"""Leaves time to stop a run among its units, on a busy machine too."""
EVENT_FIELDS = {
    "run_started": {"runtime", "reason"},
    "role_started": {"role", "id", "pid", "host", "address"},
    "worker_joined": {"worker"},
    "phase_entered": {"protocol", "members", "reason", "units", "learning_rate", "units_per_update"},
    "phase_ended": {"units", "fingerprint"},
    "switch": {
        *("from", "to", "reason", "units", "fingerprint"),
        *(f"{stage}_secs" for stage in ("drain", "capture", "reserve", "enter", "commit", "compile", "stall")),
    },
    "evaluation": {"examples", "accuracy", "loss"},
    "checkpoint": {"units", "bytes", "secs"},
    "run_finished": {"exit", "units"},
}


def run_in_process(plan: str, workload: int = 32, optimizer=None, **options):
    return mlp_trainer(plan, workload, optimizer, **options).fit()


# --- results ---


@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:12.5%,asp"])
def test_a_small_classifier_learns(plan):
    result = run_in_process(plan, 240, momentum_sgd(0.01))
    assert result.completed
    assert result.accuracy is not None
    assert result.accuracy >= 0.9
    assert result.loss is not None
    assert result.summary.units.applied == 240
    assert result.summary.examples == 240 * 8
    assert int(result.state.counters["units"]) == 240


@pytest.mark.parametrize(
    "plan", ["bsp", "asp", "bsp:12.5%,asp", "asp:50%,bsp", "bsp:25%,asp:25%,bsp:25%,asp", "bsp:10%,bsp:10%,asp"]
)
@pytest.mark.parametrize("workers", [1, 4, 7])
def test_every_unit_is_applied_once_whatever_the_plan_and_the_workers(plan, workers):
    result = tally_trainer(plan, 100, workers=workers).fit()
    assert is_exact(result.summary.final)
    assert result.summary.units.issued == result.summary.units.applied == 100


def test_phases_of_a_few_units_are_switched_like_any_other():
    """A phase may be over before its first heartbeat."""
    result = tally_trainer("bsp:2%,asp:2%,bsp:2%,asp:2%,bsp:2%,asp", 200).fit()
    assert is_exact(result.summary.final)
    assert [switch["units"] for switch in result.summary.switches] == [4, 8, 12, 16, 20]


def test_lock_step_updates_take_n_units_at_n_times_the_rate_but_for_a_short_last_one():
    result = tally_trainer("bsp", 30, workers=4).fit()
    assert is_exact(result.summary.final)
    assert int(result.state.counters["updates"]) == 8
    assert int(tally_trainer("asp", 30, workers=4).fit().state.counters["updates"]) == 30


# --- equalities ---


@pytest.mark.parametrize("make", [momentum_sgd, adamw])
def test_two_lock_step_phases_equal_one_bit_for_bit(make):
    whole, halves = (run_in_process(plan, 32, make()) for plan in ("bsp", "bsp:50%,bsp"))
    assert fingerprint(halves.state) == fingerprint(whole.state)
    assert len(halves.summary.switches) == 1


def test_two_lock_step_phases_of_a_model_with_batch_statistics_equal_one_bit_for_bit():
    def run(plan: str):
        trainer = Trainer(
            batchnorm_task(),
            momentum_sgd(),
            workload=16,
            unit_size=8,
            workers=2,
            plan=plan,
            progress=False,
            checkpoint=NEVER,
        )
        return fingerprint(trainer.fit().state)

    assert run("bsp:50%,bsp") == run("bsp")


def test_one_worker_is_the_same_under_either_protocol():
    assert len({fingerprint(run_in_process(plan, 24, workers=1).state) for plan in ("bsp", "asp", "asp:50%,bsp")}) == 1


@pytest.mark.parametrize("make", [momentum_sgd, adamw])
def test_a_state_handed_over_is_the_state_that_was_captured(make, tmp_path):
    result = run_in_process("bsp:25%,asp:50%,bsp", 32, make(), workdir=tmp_path / "run")
    entered = events_of(tmp_path / "run", "phase_entered")
    ended = events_of(tmp_path / "run", "phase_ended")
    assert [event["protocol"] for event in entered] == ["bsp", "asp", "bsp"]
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    assert [switch["fingerprint"] for switch in result.summary.switches] == [e["fingerprint"] for e in entered[1:]]
    assert fingerprint(result.state) == ended[-1]["fingerprint"]
    assert len({event["fingerprint"] for event in entered}) == 3


# --- hooks and steps ---


def test_a_hook_is_called_with_metrics_as_units_are_applied():
    seen = []
    trainer = mlp_trainer("asp", 64, emulation=SLOW)
    trainer.add_hook(seen.append, every=16)
    trainer.fit()
    units = [metrics.units for metrics in seen]
    assert len(units) >= 3
    assert all(later // 16 > earlier // 16 for earlier, later in zip([0, *units], units, strict=False))
    assert units[-1] == 64
    assert all(metrics.protocol == "asp" and metrics.examples == metrics.units * 8 for metrics in seen)
    assert any(metrics.loss is not None for metrics in seen)


def test_a_hook_is_not_called_at_a_resume_before_anything_new_was_applied(tmp_path):
    first = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOWER)
    first.add_hook(lambda metrics: first.preempt(), every=16)
    stopped = first.fit().summary.units.applied
    assert 16 <= stopped < 64
    seen = []
    second = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOW)
    second.add_hook(lambda metrics: seen.append(metrics.units), every=16)
    second.fit()
    assert min(seen) // 16 > stopped // 16


def test_steps_hand_the_loop_to_the_caller_and_keep_the_result():
    trainer = mlp_trainer("bsp:50%,asp", 64, emulation=SLOW)
    protocols = [metrics.protocol for metrics in trainer.steps(every=8)]
    assert protocols[0] == "bsp"
    assert protocols[-1] == "asp"
    assert trainer.result is not None
    assert trainer.result.completed


def test_leaving_the_steps_saves_and_stops_and_a_new_run_goes_on(tmp_path):
    trainer = tally_trainer("asp", 200, workdir=tmp_path / "run", emulation=SLOW)
    steps = trainer.steps(every=8)
    next(steps)
    steps.close()
    assert trainer.result is not None
    assert trainer.result.summary.exit == "preempted"
    result = tally_trainer("asp", 200, workdir=tmp_path / "run").fit()
    assert is_exact(result.summary.final)
    assert trainer._hooks == []


@pytest.mark.parametrize("plan", ["bsp", "asp"])
def test_an_error_in_a_hook_ends_the_run_at_once_and_is_recorded(plan, tmp_path):
    trainer = tally_trainer(plan, 4000, workdir=tmp_path / "run", emulation=SLOW)

    def fail(metrics) -> None:
        raise ZeroDivisionError("the hook's own")

    trainer.add_hook(fail, every=8)
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit"] == "failed"
    assert "ZeroDivisionError" in summary["error"]
    assert events_of(tmp_path / "run", "run_finished")


# --- preemption ---


@pytest.mark.parametrize("plan", ["bsp", "asp", "bsp:50%,asp"])
def test_a_preempted_run_goes_on_where_it_stopped(plan, tmp_path):
    for stop in range(1, 4):
        trainer = tally_trainer(plan, 120, workdir=tmp_path / "run", emulation=SLOW)
        trainer.add_hook(lambda metrics, trainer=trainer: trainer.preempt(), every=24 * stop)
        result = trainer.fit()
        assert result.summary.units.rolled_back == 0
    result = tally_trainer(plan, 120, workdir=tmp_path / "run").fit()
    assert result.completed
    assert is_exact(result.summary.final)
    assert result.summary.units.issued == 120


def test_a_preempted_lock_step_run_resumes_to_the_state_of_an_unbroken_one(tmp_path):
    trainer = mlp_trainer("bsp", 64, workdir=tmp_path / "run", emulation=SLOWER)
    trainer.add_hook(lambda metrics: trainer.preempt(), every=16)
    stopped = trainer.fit().summary
    assert stopped.exit == "preempted"
    assert stopped.units.applied % 4 == 0
    resumed = mlp_trainer("bsp", 64, workdir=tmp_path / "run").fit()
    assert fingerprint(resumed.state) == fingerprint(mlp_trainer("bsp", 64).fit().state)


def test_a_run_preempted_before_its_first_step_stops_and_can_be_resumed(tmp_path, monkeypatch):
    """Workers that have not entered the lock-step phase yet must neither hang nor be missed."""
    announce = Chief.announce

    def announce_and_preempt(self, phase, path, left_out):
        announce(self, phase, path, left_out)
        self.preempt()

    with monkeypatch.context() as patch:
        patch.setattr(Chief, "announce", announce_and_preempt)
        summary = tally_trainer("bsp", 40, workdir=tmp_path / "run").fit().summary
    assert summary.exit == "preempted"
    assert summary.units.applied % 4 == 0
    assert is_exact(tally_trainer("bsp", 40, workdir=tmp_path / "run").fit().summary.final)


def test_a_resumed_run_preempted_before_it_commits_returns_the_state_it_resumed_from(tmp_path):
    first = tally_trainer("asp", 40, workdir=tmp_path / "run", emulation=SLOW)
    first.add_hook(lambda metrics: first.preempt(), every=16)
    stopped = first.fit()
    second = tally_trainer("asp", 40, workdir=tmp_path / "run")
    second.preempt()
    again = second.fit()
    assert again.summary.exit == "preempted"
    assert again.summary.units.applied == stopped.summary.units.applied
    assert fingerprint(again.state) == fingerprint(stopped.state)


# --- what goes wrong in a task ---


class FailingSource:
    """The tally's source, whose unit 20 cannot be read."""

    def __init__(self, source, error: Exception) -> None:
        self._source, self._error = source, error

    def __getattr__(self, name: str):
        return getattr(self._source, name)

    def batch(self, unit: int, *, unit_size: int, seed: int):
        if unit == 20:
            raise self._error
        return self._source.batch(unit, unit_size=unit_size, seed=seed)


@pytest.mark.parametrize("plan", ["bsp", "asp"])
@pytest.mark.parametrize("error", [OSError("disk gone"), StopIteration("the iterator ran dry")])
def test_an_error_in_the_task_ends_the_run_by_name_and_keeps_its_checkpoint(plan, error, tmp_path):
    task = tally_task(64)
    broken = Task(task.init, task.loss, FailingSource(task.source, error), summarize=task.summarize)
    trainer = Trainer(
        broken, plain_sgd(), workload=64, unit_size=1, plan=plan, workdir=tmp_path / "run", progress=False
    )
    with pytest.raises(RoleLost, match=type(error).__name__) as failure:
        trainer.fit()
    assert failure.value.__cause__ is error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit"] == "failed"
    assert is_exact(tally_trainer(plan, 64, workdir=tmp_path / "run").fit().summary.final)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("worker", "heart"))]


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"workers": 0}, ConfigError, "workers"),
        ({"workload": 0}, ConfigError, "workload"),
        ({"unit_size": 0}, ConfigError, "unit_size"),
        ({"servers": 0}, ConfigError, "servers"),
        ({"plan": "bps"}, PlanError, "did you mean 'bsp'"),
        ({"plan": "bsp:50%"}, PlanError, "50 %"),
        ({"plan": "bsp:1%,asp", "workload": 4}, PlanError, "'bsp' would get no unit"),
        ({"emulation": EmulationConfig(stragglers="worker=4,delay_ms=1")}, ConfigError, "workers 0 to 3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(fields, error, named):
    with pytest.raises(error) as refusal:
        Trainer(mlp_task(), momentum_sgd(), **{"workload": 8, "unit_size": 8, "workers": 4, **fields})
    assert named in str(refusal.value)


# --- the workdir ---


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
        *("timeline.json", "apply_log", "checkpoints", "epoch"),
    }
    assert documented <= names
    assert json.loads((workdir / "config.json").read_text())["config"]["plan"] == "bsp:25%,asp:50%,bsp"


def test_every_event_has_its_documented_fields(workdir):
    events = events_of(workdir)
    assert {event["kind"] for event in events} == set(EVENT_FIELDS)
    for event in events:
        assert {"t", "wall", "kind", "epoch", *EVENT_FIELDS[event["kind"]]} <= event.keys(), event
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
    assert [e["epoch"] for e in entered] == [1, 2, 3]


def test_checkpoints_are_committed_at_the_start_at_switches_and_at_the_end(workdir):
    assert [event["units"] for event in events_of(workdir, "checkpoint")] == [0, 32, 96, 128]


def test_metrics_are_written_while_it_runs(workdir):
    lines = lines_of(workdir / "metrics.jsonl")
    assert len(lines) >= 5
    for line in lines:
        assert {
            *("t", "units", "examples", "epoch", "protocol", "loss"),
            *("learning_rate", "examples_per_sec", "staleness", "workers", "compute_secs", "wait_secs"),
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
    assert {entry.epoch: (entry.rate, entry.weight, entry.blend) for entry in entries} == {
        1: (4.0, 4.0, 1.0),
        2: (1.0, 1.0, 0.25),
        3: (4.0, 4.0, 1.0),
    }
    assert all(0 <= entry.base < entry.sequence for entry in entries)
    assert all(entry.base == entry.sequence - 1 for entry in entries if entry.epoch != 2)


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
    with pytest.raises(WorkdirError, match="Not a directory; name another workdir"):
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


def test_emulated_accelerators_overlap_and_a_straggler_holds_up_lock_step_only():
    """12 units of 20 ms on 4 workers take 3 steps; a straggler delays each step, or itself alone."""
    straggler = EmulationConfig(compute_secs=0.02, stragglers="worker=3,delay_ms=60")
    secs = {
        (plan, name): mlp_trainer(plan, 48, emulation=emulation).fit().summary.seconds
        for plan in ("bsp", "asp")
        for name, emulation in (("even", SLOW), ("straggler", straggler))
    }
    assert secs["bsp", "even"] >= 12 * 0.02
    assert secs["bsp", "straggler"] >= 12 * 0.08
    assert secs["asp", "straggler"] < secs["bsp", "straggler"]
    assert np.isfinite(list(secs.values())).all()
