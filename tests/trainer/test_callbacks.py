"""Callbacks in a run of threads: what they are called with, how they stop it, and that nothing they do harms it."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from hybridsync import Callback, EmulationConfig, KeepBest, Task, TelemetryConfig, Trainer
from hybridsync.core.clock import SYSTEM_CLOCK, pause
from hybridsync.core.errors import ConfigError, WorkdirTaken
from hybridsync.data import ArraySource
from hybridsync.emulation.device import Emulation
from hybridsync.interfaces.callbacks import CallbackRun, Values
from hybridsync.models import MLP
from hybridsync.phases import callbacks as callback_threads
from hybridsync.phases.reporter import Reporter
from hybridsync.telemetry.metrics import Metrics
from hybridsync.trainer import FitResult
from hybridsync.worker.loop import WorkerLoop
from tests.tasks import plain_sgd
from tests.trainers import events_of, fit_and_stop, is_exact, lines_of, mlp_trainer, tally_trainer

EVALUATED = TelemetryConfig(evaluate_units=8, log_secs=0.05)
WAIT_SECS = 60.0
POINTS = {"image": np.ones((8, 2), np.float32), "label": np.zeros(8, np.int32)}


class Recording(Callback):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()

    def _note(self, method: str, run: CallbackRun, values: Values | None = None) -> None:
        self.threads.add(threading.current_thread().name)
        self.calls.append((method, values))

    def on_start(self, run: CallbackRun) -> None:
        self._note("on_start", run)
        self.run = run

    def on_metrics(self, run: CallbackRun, metrics: Values) -> None:
        self._note("on_metrics", run, metrics)

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        self._note("on_evaluation", run, evaluation)

    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        self._note("on_phase", run, phase)

    def on_checkpoint(self, run: CallbackRun, checkpoint: Values) -> None:
        self._note("on_checkpoint", run, checkpoint)

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        self._note("on_end", run, summary)

    def of(self, method: str) -> list[Any]:
        return [values for name, values in self.calls if name == method]


def test_callbacks_are_called_with_the_record_in_its_order(tmp_path: Path) -> None:
    seen, workdir = Recording(), tmp_path / "run"
    result = tally_trainer("bsp:50%,asp", 64, workdir=workdir, telemetry=EVALUATED, callbacks=[seen]).fit()
    assert result.completed and is_exact(result.summary.final)
    assert seen.run.workdir == workdir and seen.run.config.workload == 64
    for method, kind in callback_threads.FOLLOWED.items():
        assert seen.of(kind) == events_of(workdir, method) != []
    for evaluation in seen.of("on_evaluation"):
        assert 0 < evaluation["secs"] <= evaluation["t"] - evaluation["state_t"] + 1e-3
    assert seen.of("on_metrics") == lines_of(workdir / "metrics.jsonl")
    (ended,) = seen.of("on_end")
    summary = json.loads((workdir / "summary.json").read_text())
    assert {**ended, "callback_secs": ...} == {**summary, "callback_secs": ...}
    assert (seen.calls[0][0], seen.calls[-1][0]) == ("on_start", "on_end")
    assert summary["callback_secs"].keys() == {"Recording"} and seen.threads == {"callback Recording"}


def test_a_run_without_a_workdir_calls_them_as_well() -> None:
    seen = Recording()
    assert tally_trainer("asp", 64, telemetry=EVALUATED, callbacks=[seen]).fit().completed
    assert seen.run.workdir is None
    assert all(map(seen.of, ("on_metrics", "on_evaluation", "on_phase", "on_end")))


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        (Recording(), "callbacks is of type Recording, not a list"),
        ([print], r"callbacks\[0\] is builtin_function_or_method"),
        ([Recording(), Recording], r"callbacks\[1\] is the class Recording, not an object"),
    ],
)
def test_what_is_not_a_callback_is_refused_by_name(callbacks: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tally_trainer("asp", 64, callbacks=callbacks)


def test_evaluations_without_held_out_examples_are_one_line_and_refused_where_a_callback_needs_them(capsys) -> None:
    task = Task.from_nnx(lambda rngs: MLP((2, 2), rngs=rngs), ArraySource("points", POINTS))
    job: dict[str, Any] = {"workload": 4, "unit_size": 4, "workers": 1, "plan": "asp", "telemetry": EVALUATED}
    assert Trainer(task, plain_sgd(), callbacks=[Recording()], **job).fit().completed
    said = "nothing is evaluated, in spite of telemetry.evaluate_units, Recording.on_evaluation: the source has no "
    assert " ".join(capsys.readouterr().err.split()).count(said) == 1
    with pytest.raises(ConfigError, match="KeepBest needs evaluations, and the source has no held-out examples: give"):
        Trainer(task, plain_sgd(), workdir="never", callbacks=[KeepBest()], **job)
    held_out = Task.from_nnx(lambda rngs: MLP((2, 2), rngs=rngs), ArraySource("points", POINTS, test=POINTS))
    assert Trainer(held_out, plain_sgd(), callbacks=[Recording()], **job).fit().completed
    assert "nothing is evaluated" not in capsys.readouterr().err


# --- guests ---


class Raising(Callback):
    def on_start(self, run: CallbackRun) -> None:
        raise SystemExit(3)

    def on_metrics(self, run: CallbackRun, metrics: Values) -> None:
        raise ZeroDivisionError("the callback's own")

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        evaluation.clear()  # pyright: ignore[reportAttributeAccessIssue]

    def on_end(self, run: CallbackRun, summary: Values) -> Any:
        return float("nan")


def test_what_callbacks_raise_return_and_change_harms_nothing_and_is_reported_once(tmp_path: Path) -> None:
    seen, workdir = Recording(), tmp_path / "run"
    callbacks = [Raising(), seen]
    result = tally_trainer("bsp:50%,asp", 64, workdir=workdir, telemetry=EVALUATED, callbacks=callbacks).fit()
    assert result.completed and is_exact(result.summary.final) and result.summary.units.rolled_back == 0
    failed = [event for event in events_of(workdir, "user_code_failed") if event["times"] == 1]
    assert [event["code"] for event in failed] == [
        "the callback Raising.on_start",
        "the callback Raising.on_metrics",
    ]
    assert "SystemExit: 3" in failed[0]["error"] and f"{__file__}, line " in failed[1]["error"]
    assert seen.of("on_evaluation") == events_of(workdir, "evaluation"), "each callback has copies of its own"
    assert len(events_of(workdir, "run_finished")) == 1


class Misspelling(Callback):
    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        evaluation["acc"]

    def on_metrics(self, run: CallbackRun, metrics: Values) -> None:
        {}["own"]


def test_a_key_that_the_values_do_not_have_is_reported_with_those_that_they_have(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    assert mlp_trainer("asp", 64, workdir=workdir, telemetry=EVALUATED, callbacks=[Misspelling()]).fit().completed
    errors = {event["code"]: event["error"] for event in events_of(workdir, "user_code_failed")}
    evaluation = ", ".join(sorted(events_of(workdir, "evaluation")[0]))
    assert errors["the callback Misspelling.on_evaluation"].endswith(f"'acc'; the values have the keys {evaluation}")
    assert "'own'; the values have the keys applied_by, " in errors["the callback Misspelling.on_metrics"]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + WAIT_SECS
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline
        pause(0.005)


class Hanging(Callback):
    """Hangs in its first call until the run's end; then it is let go."""

    def __init__(self) -> None:
        self.let_go, self.called = threading.Event(), 0

    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        self.called += 1
        if self.called == 1:
            assert self.let_go.wait(WAIT_SECS)

    def end_at_64(self, metrics: Metrics) -> None:
        if metrics.units >= 64:
            self.let_go.set()


def test_training_does_not_wait_for_a_callback_that_hangs_and_the_run_names_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "LATE_SECS", 0.0)
    monkeypatch.setattr(callback_threads, "END_SECS", 0.5)
    hanging, workdir = Hanging(), tmp_path / "run"
    try:
        result = tally_trainer("bsp:50%,asp", 64, workdir=workdir, callbacks=[hanging]).fit()
    finally:
        hanging.let_go.set()
    assert result.completed and is_exact(result.summary.final)
    late, abandoned = events_of(workdir, "user_code_failed")
    assert late["code"] == abandoned["code"] == "the callback Hanging.on_phase"
    assert "has not returned" in late["error"] and "after the run's end" in abandoned["error"]


def test_a_late_callback_is_named_once_and_the_calls_that_wait_for_it_are_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "LATE_SECS", 0.0)
    hanging, seen, workdir = Hanging(), Recording(), tmp_path / "run"
    trainer = tally_trainer("bsp:50%,asp", 64, workdir=workdir, callbacks=[hanging, seen])
    trainer.add_hook(hanging.end_at_64, every=32)
    assert trainer.fit().completed
    assert hanging.called == 2 == len(seen.of("on_phase")) and len(seen.of("on_end")) == 1
    events = [event for event in events_of(workdir, "user_code_failed") if "Hanging" in event["code"]]
    assert len(events) == 1 and "has not returned" in events[0]["error"]


class Slow(Callback):
    def on_end(self, run: CallbackRun, summary: Values) -> None:
        pause(0.3)


def test_a_runs_time_stands_still_while_its_callbacks_end(tmp_path) -> None:
    workdir, options = tmp_path / "run", {"callbacks": [Slow()], "emulation": EmulationConfig(compute_secs=0.01)}
    stopped = fit_and_stop(tally_trainer("asp", 64, workdir=workdir, **options), 32).summary
    assert tally_trainer("asp", 64, workdir=workdir, **options).fit().completed
    assert stopped.callback_secs["Slow"] >= 0.3
    assert events_of(workdir, "run_finished")[0]["t"] == round(stopped.seconds, 6)
    assert events_of(workdir, "training_started")[1]["t"] == round(stopped.seconds, 6)


def test_a_slow_callback_is_called_slow_and_the_run_says_when_it_has_returned(monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "LATE_SECS", 0.0)
    hanging, shown = Hanging(), Mock()
    reports = callback_threads.Guests(Mock(), shown, Mock(), SYSTEM_CLOCK)
    callbacks = callback_threads.Callbacks(
        Mock(callbacks=(hanging,), workdir=None), Mock(), reports, shown, SYSTEM_CLOCK
    )
    callbacks.call("on_phase", {})
    wait_until(lambda: hanging.called)
    callbacks.look()
    callbacks.look()
    hanging.let_go.set()
    callbacks.close({})
    (slow,), (returned,) = (each.args for each in shown.mock_calls)
    assert slow.startswith("the callback Hanging.on_phase is slow, training does not wait: it has not returned for 0 s")
    assert returned == "the callback Hanging.on_phase has returned after 0 s"


class StopsAtOnce(Callback):
    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        run.stop("measured")


def test_a_callback_that_hangs_delays_no_stop_of_another(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "END_SECS", 0.5)
    hanging = Hanging()
    options: dict[str, Any] = {"telemetry": EVALUATED, "emulation": EmulationConfig(compute_secs=0.02)}
    trainer = tally_trainer("asp", 4000, workdir=tmp_path / "run", callbacks=[hanging, StopsAtOnce()], **options)
    try:
        assert trainer.fit().summary.exit == "stopped"
    finally:
        hanging.let_go.set()


class OutlastsWorkers(Callback):
    """Ends once no worker's thread is left."""

    has_outlasted = False

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("worker_")])
        self.has_outlasted = True


def test_workers_are_let_go_before_the_callbacks_that_take_their_time_at_the_end(monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "END_SECS", 2 * WAIT_SECS)
    last = OutlastsWorkers()
    assert tally_trainer("asp", 64, callbacks=[last]).fit().completed
    assert last.has_outlasted


def test_a_run_whose_record_cannot_be_written_at_its_end_leaves_no_thread_of_a_callback(tmp_path, monkeypatch) -> None:
    def refuse(self: Reporter, summary: Any) -> None:
        raise WorkdirTaken("another host has the workdir")

    monkeypatch.setattr(Reporter, "_write_summary", refuse)
    with pytest.raises(WorkdirTaken):
        tally_trainer("asp", 64, workdir=tmp_path / "run", callbacks=[Recording()]).fit()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "callback Recording"])


def test_calls_are_bounded_and_those_left_out_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(callback_threads, "MOST_WAITING", 2)
    hanging, seen, reports = Hanging(), Recording(), Mock()
    run = Mock(callbacks=(hanging, seen), workdir=None)
    callbacks = callback_threads.Callbacks(run, Mock(), reports, Mock(), SYSTEM_CLOCK)
    for number in range(5):  # the first hangs, two wait, and two are left out
        callbacks.call("on_phase", {"number": number})
        wait_until(lambda number=number: hanging.called and len(seen.of("on_phase")) > number)
    hanging.let_go.set()
    callbacks.close({})
    assert hanging.called == 3 and len(seen.of("on_phase")) == 5 and len(seen.of("on_end")) == 1
    assert call("the callback Hanging", "2 calls were left out: 2 waited") in reports.failed.mock_calls


class Forking(Callback):
    def __init__(self) -> None:
        self.pids: list[int] = []

    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        if pid := os.fork():
            self.pids.append(pid)
            assert os.waitpid(pid, 0)[1] == 0, "the child ends by itself, and is no second chief"


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_callback_that_forks_harms_nothing(tmp_path: Path) -> None:
    forking, workdir = Forking(), tmp_path / "run"
    result = tally_trainer("bsp:50%,asp", 64, workdir=workdir, callbacks=[forking]).fit()
    assert result.completed and is_exact(result.summary.final) and len(forking.pids) == 2
    assert events_of(workdir, "user_code_failed") == [] and len(events_of(workdir, "run_finished")) == 1


# --- stopping ---


class StopAt(Callback):
    """Stops the run in the first evaluation at so many units or more."""

    def __init__(self, units: int, then: Callable[[], object] = lambda: None) -> None:
        self._units, self._then = units, then

    def on_evaluation(self, run: CallbackRun, evaluation: Values) -> None:
        if evaluation["units"] >= self._units:
            self._then()
            run.stop("good enough")
            run.stop("once is enough")


SLOW = EmulationConfig(compute_secs=0.02)


def assert_stopped(workdir: Path, plan: str, result: FitResult) -> None:
    """Check that a stopped run has lost nothing, and is not trained on."""
    summary = result.summary
    assert (summary.exit, summary.stop_reason, summary.units.rolled_back) == ("stopped", "good enough", 0)
    applied = summary.units.applied
    assert 16 <= applied < 4000 and -np.asarray(result.state.params["tally"]).sum() == applied
    assert [(event["why"], event["for_good"]) for event in events_of(workdir, "stop_ordered")] == [
        ("good enough", True)
    ]
    assert events_of(workdir, "evaluation")[-1]["units"] == applied, "the last state is measured"
    again = tally_trainer(plan, 4000, workdir=workdir, telemetry=EVALUATED, emulation=SLOW).fit()
    assert (again.summary.exit, again.summary.units) == ("stopped", summary.units)
    assert len(events_of(workdir, "run_started")) == 1


@pytest.mark.parametrize("plan", ["bsp", "asp", "ssp(staleness=2)"])
def test_stop_ends_a_run_for_good_and_each_worker_begins_one_more_unit_at_most(plan, tmp_path, monkeypatch) -> None:
    finish, revoke = Emulation.finish, WorkerLoop.revoke
    asked, begun, revoked = threading.Event(), list[int](), {worker: threading.Event() for worker in range(4)}

    def finish_when_revoked(self: Emulation, worker: int, *rest: Any) -> None:
        if asked.is_set():  # a unit takes longer than a revocation, however busy the machine
            begun.append(worker)
            assert revoked[worker].wait(WAIT_SECS)
        finish(self, worker, *rest)

    def revoke_and_note(self: WorkerLoop, *told: Any) -> None:
        revoke(self, *told)
        revoked[self._worker].set()

    monkeypatch.setattr(Emulation, "finish", finish_when_revoked)
    monkeypatch.setattr(WorkerLoop, "revoke", revoke_and_note)
    callbacks, workdir = [StopAt(16, asked.set)], tmp_path / "run"
    options: dict[str, Any] = {"workdir": workdir, "telemetry": EVALUATED, "emulation": SLOW}
    result = tally_trainer(plan, 4000, callbacks=callbacks, **options).fit()
    assert asked.is_set() and max(Counter(begun).values(), default=0) <= 1
    monkeypatch.undo()
    assert_stopped(workdir, plan, result)


@pytest.mark.parametrize("plan", ["localsgd(steps=2)", "adpsgd"])
def test_stop_loses_nothing_where_workers_have_states_of_their_own(plan: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"workdir": tmp_path / "run", "telemetry": EVALUATED, "emulation": SLOW}
    assert_stopped(tmp_path / "run", plan, tally_trainer(plan, 4000, callbacks=[StopAt(16)], **options).fit())


def test_a_stopped_run_is_where_another_one_begins(tmp_path: Path) -> None:
    options: dict[str, Any] = {"workdir": tmp_path / "run", "telemetry": EVALUATED, "emulation": SLOW}
    assert mlp_trainer("asp", 4000, callbacks=[StopAt(8)], **options).fit().summary.exit == "stopped"
    assert mlp_trainer("asp", 8, workdir=tmp_path / "further", init_from=tmp_path / "run").fit().completed


def test_the_command_again_says_why_it_does_not_train_on_and_how_to(tmp_path: Path, capsys) -> None:
    options: dict[str, Any] = {"workdir": tmp_path / "run", "telemetry": EVALUATED}
    tally_trainer("asp", 4000, callbacks=[StopAt(8)], emulation=SLOW, **options).fit()
    capsys.readouterr()
    tally_trainer("asp", 4000, emulation=SLOW, progress=True, **options).fit()
    said = " ".join(capsys.readouterr().err.split())
    assert "was stopped for good by a callback at" in said and "good enough" in said
    assert f"init_from={tmp_path / 'run'}" in said


class StopsAt(Callback):
    """Stops the run in one of its methods."""

    def __init__(self, method: str) -> None:
        self._method = method

    def on_start(self, run: CallbackRun) -> None:
        if self._method == "on_start":
            run.stop("at once")

    def on_end(self, run: CallbackRun, summary: Values) -> None:
        run.stop("too late")


def test_a_run_may_be_stopped_before_its_first_unit_and_not_after_its_last(tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    stopped = tally_trainer("asp", 4000, workdir=first, emulation=SLOW, callbacks=[StopsAt("on_start")]).fit()
    assert (stopped.summary.exit, stopped.summary.stop_reason) == ("stopped", "at once")
    assert stopped.summary.units.applied < 4000 and stopped.summary.units.rolled_back == 0
    assert tally_trainer("asp", 4000, workdir=first).fit().summary.units == stopped.summary.units
    done = tally_trainer("asp", 64, workdir=last, callbacks=[StopsAt("on_end")]).fit()
    assert done.completed and done.summary.stop_reason == ""
    assert events_of(last, "stop_ordered") == events_of(last, "user_code_failed") == []


class Interrupting(Callback):
    def on_phase(self, run: CallbackRun, phase: Values) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_out_of_a_callback_saves_and_the_next_run_completes(tmp_path: Path) -> None:
    interrupted = tally_trainer("asp", 2000, workdir=tmp_path / "run", emulation=SLOW, callbacks=[Interrupting()]).fit()
    assert interrupted.summary.exit == "preempted" and interrupted.summary.units.rolled_back == 0
    assert tally_trainer("asp", 2000, workdir=tmp_path / "run").fit().completed


FILE = """
from configs.tally import config, optimizer, task
from hybridsync import Callback

class Marks(Callback):
    def on_end(self, run, summary):
        (run.workdir / "marked").write_text(summary["exit"])

def callbacks(config): return [Marks()]
"""


def test_a_configuration_files_callbacks_are_called_in_threads_as_well(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(FILE)
    options: dict[str, Any] = {"workdir": tmp_path / "run", "progress": False}
    assert Trainer.from_config(tmp_path / "user.py", ["workload=40", "workers=2"], **options).fit().completed
    assert (tmp_path / "run" / "marked").read_text() == "completed"
