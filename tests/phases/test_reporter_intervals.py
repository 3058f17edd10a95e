"""The arithmetic of an interval, the hooks, the roles that come and go, the summary, by a clock that a test moves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.config import PolicyConfig, RunConfig, ScheduleConfig
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.reports import Span
from hybridsync.phases.run_context import Measured
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.optimizer import Optimizer, schedule
from hybridsync.training.run import Run
from hybridsync.training.state import initial_state
from tests.phases.harness import RATE, UNIT_SIZE, WORKLOAD, Harness, snapshot_of
from tests.roles import hello
from tests.tasks import mlp_task, plain_sgd, programs_of, tally_task
from tests.telemetry.clocks import ManualClock
from tests.trainers import events_of

# --- metrics ---


def test_an_interval_counts_what_was_applied_and_reported_in_it(harness: Harness) -> None:
    harness.after(0.9, num_applied=9, reports=ReportBuffer(loss_sum=6.0, num_losses=2, staleness=[0, 4]))
    assert harness.metrics() == [], "the interval is not over"
    heard = ReportBuffer(loss_sum=3.0, num_losses=1, staleness=[2])
    harness.after(1.1, num_applied=20, reports=heard, rates={0: 5.0, 3: 2.5})
    harness.after(0.5, num_applied=25)
    harness.after(0.5, num_applied=28)
    first, second = harness.metrics()
    assert (first["units"], first["examples"], first["phase"], first["protocol"]) == (20, 160, 1, "bsp")
    assert first["examples_per_sec"] == pytest.approx(20 * UNIT_SIZE / 2.0)
    assert first["loss"] == pytest.approx(9.0 / 3)
    assert first["staleness"] == {"mean": 2.0, "p95": 4, "max": 4}
    assert first["workers"] == {"0": 40.0, "3": 20.0}, "in examples"
    assert first["learning_rate"] == pytest.approx(4 * RATE), "of an update of four units"
    assert second["examples_per_sec"] == pytest.approx(8 * UNIT_SIZE / 1.0)
    assert second["loss"] is None and second["staleness"]["max"] == 0, "what was told is told once"


def test_an_interval_says_how_long_each_worker_computed_read_and_waited(harness: Harness) -> None:
    compute_secs, wait_secs = {0: 0.25, 3: 0.5}, {0: 0.125, 3: 0.0}
    reports = ReportBuffer(compute_secs=compute_secs, read_secs={3: 0.25}, wait_secs=wait_secs)
    harness.after(0.5, reports=reports)
    harness.after(0.5, reports=ReportBuffer(compute_secs={0: 0.5}, wait_secs={0: 0.25}))
    harness.after(1.0)
    first, second = harness.metrics()
    assert (first["compute_secs"], first["wait_secs"]) == ({"0": 0.75, "3": 0.5}, {"0": 0.375, "3": 0.0})
    assert (first["read_secs"], second["read_secs"]) == ({"3": 0.25}, {})
    assert (second["compute_secs"], second["wait_secs"]) == ({}, {}), "nobody has reported since"


def test_an_interval_says_which_share_of_a_devices_peak_a_worker_used(harness: Harness) -> None:
    harness.after(0.5, reports=ReportBuffer(peak_secs={0: 0.25, 3: 0.125}))
    harness.after(0.5, reports=ReportBuffer(peak_secs={0: 0.25}))
    harness.after(1.0)
    first, second = harness.metrics()
    assert (first["mfu"], second["mfu"]) == ({"0": 0.5, "3": 0.125}, {})


def test_a_resumed_run_counts_its_first_interval_from_where_it_resumed(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(applied=40)
    harness.after(2.0, num_applied=44)
    assert harness.metrics()[0]["examples_per_sec"] == pytest.approx(4 * UNIT_SIZE / 2.0)


def test_units_that_were_lost_make_no_rate_negative(harness: Harness) -> None:
    harness.after(1.0, num_applied=60)
    harness.reporter.broke(snapshot_of(), "worker 1 was lost", rolled_back=10)
    harness.after(0.5, num_applied=50)
    harness.after(0.5, num_applied=54)
    assert [line["examples_per_sec"] for line in harness.metrics()] == pytest.approx([60 * UNIT_SIZE, 4 * UNIT_SIZE])


@pytest.mark.parametrize("rest", [0.0, 0.25])
def test_the_rest_at_the_end_is_joined_to_the_interval_before_it(harness: Harness, rest: float) -> None:
    harness.after(1.0, num_applied=40, reports=ReportBuffer(loss_sum=40.0, num_losses=40, staleness=[9] * 40))
    report = ReportBuffer(loss_sum=60.0, num_losses=30, staleness=[12] * 50, sent_bytes={0: 64})
    harness.after(1.0, num_applied=90, reports=report, rates={0: 9.0})
    harness.chief.rates = {0: 0.5}
    shown = []
    harness.recorder.progress.update = lambda metrics, stragglers=(): shown.append(metrics)
    harness.after(rest, num_applied=WORKLOAD, reports=ReportBuffer(staleness=[2] * 10, sent_bytes={0: 7}))
    if rest:  # a save keeps the phase from its end
        harness.after(4.0)
    harness.reporter.ended(snapshot_of())
    for _ in range(3):
        harness.after(4.0)  # the state is saved, and nothing is applied
    harness.reporter.finish("completed", None)
    _, before, last = harness.metrics()
    assert before["examples_per_sec"] == 50 * UNIT_SIZE
    assert last["examples_per_sec"] == pytest.approx(60 * UNIT_SIZE / (1.0 + rest), rel=1e-6)
    assert (last["loss"], last["secs"], last["t"]) == (2.0, 1.0 + rest, 2.0 + rest)
    assert last["staleness"] == {"mean": pytest.approx(620 / 60), "p95": 12, "max": 12}
    assert last["workers"] == {"0": 9.0 * UNIT_SIZE}, "not those of a phase without units"
    assert last["sent_bytes"] == {"0": 7}, "sums are of the rest alone"
    assert [(each.units, each.loss) for each in shown] == [(WORKLOAD, 2.0)] * 2, "at once, and with the record"
    assert all(each.examples_per_sec == last["examples_per_sec"] for each in shown)


def test_a_run_too_short_for_an_interval_has_the_rates_of_what_there_was(harness: Harness) -> None:
    harness.after(0.5, num_applied=20, reports=ReportBuffer(loss_sum=3.0, num_losses=2))
    harness.reporter.finish("preempted", None)
    (line,) = harness.metrics()
    assert (line["examples_per_sec"], line["loss"], line["secs"]) == (40 * UNIT_SIZE, 1.5, 0.5)


def test_hooks_are_called_at_their_units_and_once_however_many_were_passed(
    make_harness: Callable[..., Harness],
) -> None:
    seen: dict[int, list[int]] = {10: [], 25: []}
    hooks = [(lambda metrics, every=every: seen[every].append(metrics.units), every) for every in seen]
    harness = make_harness(hooks=hooks, applied=20)
    for applied in (20, 24, 29, 30, 31, 55, 59, 60):
        harness.after(0.01, num_applied=applied)
    assert seen == {10: [30, 55, 60], 25: [29, 55]}
    assert [line["units"] for line in harness.metrics()] == [29, 30, 55, 60], "each with the metrics of its moment"


def test_a_hook_that_raises_is_reported_and_called_again_and_the_others_are_called(
    make_harness: Callable[..., Harness],
) -> None:
    seen: list[int] = []

    def fail(metrics: Any) -> None:
        raise ZeroDivisionError("the hook's own")

    harness = make_harness(hooks=[(fail, 10), (lambda metrics: seen.append(metrics.units), 10)])
    harness.after(0.1, num_applied=12)
    harness.after(0.1, num_applied=24)
    assert seen == [12, 24]
    assert harness.reporter.finish("completed", None).exit == "completed"
    first, last = events_of(harness.workdir, "user_code_failed")
    assert "fail" in first["code"] and "ZeroDivisionError: the hook's own" in first["error"]
    assert (first["times"], last["times"]) == (1, 2)


def test_a_run_that_failed_calls_no_hook_again(make_harness: Callable[..., Harness]) -> None:
    seen: list[int] = []
    harness = make_harness(hooks=[(lambda metrics: seen.append(metrics.units), 10)])
    harness.after(0.1, num_applied=12)
    harness.chief.num_applied = 24
    assert harness.reporter.finish("failed", "broken off").exit == "failed"
    assert seen == [12]


def refused(harness: Harness, outcome: Callable[[], Any]) -> str:
    """Return what is said of an evaluation that fails, or is not all numbers."""
    harness.reporter.evaluated(60, 0.25, lambda: Measured(outcome(), 0.5))
    *_, event = events_of(harness.workdir, "user_code_failed")
    assert event["code"] == "the evaluation at unit 60"
    return str(event["error"])


def test_an_evaluation_that_raises_costs_its_figures_alone(harness: Harness) -> None:
    harness.reporter.evaluated(50, 0.25, lambda: Measured({"accuracy": 0.5}, 0.5))
    assert "ZeroDivisionError" in refused(harness, lambda: 1 / 0)
    assert [event["units"] for event in events_of(harness.workdir, "evaluation")] == [50]
    assert harness.reporter.finish("completed", None).final == {}, "the figures of an older state are not the last"


def test_what_is_no_number_is_left_out_of_an_evaluation(harness: Harness) -> None:
    said = refused(harness, lambda: {"accuracy": 0.75, "loss": "low", "best": None, "per_class": np.ones(3)})
    assert all(text in said for text in ("'loss' is a str", "'best' is None", "'per_class' is an array of shape (3,)"))
    (event,) = events_of(harness.workdir, "evaluation")
    assert (event["accuracy"], event["loss"]) == (0.75, None) and "best" not in event
    assert harness.reporter.finish("completed", None).final == {"accuracy": 0.75}


@pytest.mark.parametrize("name", ["t", "wall", "kind", "phase", "units", "examples", "state_t", "secs", "self"])
def test_a_figure_may_have_any_name_but_those_of_each_event(harness: Harness, name: str) -> None:
    assert f"{name!r} is a name that each event has" in refused(harness, lambda: {name: 1.0, "accuracy": 0.5})
    (event,) = events_of(harness.workdir, "evaluation")
    assert (event["kind"], event["units"], event["accuracy"], event["secs"]) == ("evaluation", 60, 0.5, 0.5)


def test_an_object_that_raises_where_its_number_is_asked_for_costs_the_figures_alone(harness: Harness) -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("no number today")

    assert "no number today" in refused(harness, lambda: {"accuracy": Odd()})
    assert events_of(harness.workdir, "evaluation") == []


def test_a_schedule_that_raises_costs_the_rate_in_the_record_alone(
    tmp_path: Path, make_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*told: Any) -> float:
        raise RuntimeError("the schedule is out")

    monkeypatch.setattr(Optimizer, "learning_rate_after", fail)
    make_harness()
    (entered,) = events_of(tmp_path, "phase_entered")
    assert entered["learning_rate"] is None
    assert "the schedule is out" in events_of(tmp_path, "user_code_failed")[0]["error"]


# --- what else a tick takes, and the end ---


def comings(harness: Harness) -> list[tuple[str, Any, Any]]:
    """Return (kind, role or worker, pid) of what the record says of processes."""
    told = [event for event in events_of(harness.workdir) if event["kind"].startswith(("role_", "worker_"))]
    return [(event["kind"], event.get("role", event.get("worker")), event.get("pid")) for event in told]


def test_roles_that_came_and_went_are_events(harness: Harness) -> None:
    worker, server = hello(1, pid=7), hello(0, role="server")
    harness.after(
        0.1, reports=ReportBuffer(joined=[worker, server], lost=[RoleEvent("worker", 1, 7, "signal SIGKILL", 5.0)])
    )
    assert comings(harness) == [
        ("role_started", "worker", 7),
        ("worker_joined", 1, None),
        ("role_started", "server", server.pid),
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
    ]


def test_the_user_is_shown_which_process_was_started_again(harness: Harness) -> None:
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)

    harness.recorder.progress.show_line = show
    harness.after(0.1, reports=ReportBuffer(restarted=[RoleEvent("worker", 1, 8, "restart after signal SIGKILL", 5.0)]))
    assert shown == ["worker 1: restart after signal SIGKILL"]


@pytest.mark.parametrize(("detector", "times"), [("robust", 1), ("off", 0)])
def test_the_user_is_shown_once_that_workers_share_devices(
    tmp_path: Path, make_harness: Callable[..., Harness], detector: Any, times: int
) -> None:
    config = RunConfig(workload=WORKLOAD, unit_size=UNIT_SIZE, workers=4, policy=PolicyConfig(detector=detector))
    harness = make_harness(run=Run(config, tally_task(WORKLOAD), plain_sgd(RATE), tmp_path))
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)

    harness.recorder.progress.show_line = show
    for sharers in ({1, 0}, set[int](), {0, 1}):
        harness.after(0.1, reports=ReportBuffer(sharers=frozenset(sharers)))
    assert [line.partition(":")[0] for line in shown] == ["workers 0, 1 share devices"] * times


def test_a_process_that_was_given_up_and_then_ended_is_lost_once(harness: Harness) -> None:
    given_up, ended = (RoleEvent("worker", 1, 7, reason, 5.0) for reason in ("no sign of life", "signal SIGKILL"))
    harness.after(0.1, reports=ReportBuffer(joined=[hello(1, pid=7)]))
    harness.after(0.1, reports=ReportBuffer(lost=[given_up]))
    harness.after(0.1, reports=ReportBuffer(lost=[ended], joined=[hello(1, pid=8)]))
    assert comings(harness)[2:] == [
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
        ("role_started", "worker", 8),
        ("worker_joined", 1, None),
    ]


def test_who_was_lost_while_nobody_was_there_to_write_is_told_by_the_next_chief(tmp_path: Path) -> None:
    first = Harness(tmp_path)
    first.after(0.1, reports=ReportBuffer(joined=[hello(1, pid=7), hello(2, pid=9)]))
    first.after(0.1, reports=ReportBuffer(lost=[RoleEvent("worker", 2, 9, "no sign of life", 5.0)]))
    first.recorder.close()
    second = Harness(tmp_path)
    lost = [RoleEvent("worker", 2, 9, "signal SIGKILL", 6.0), RoleEvent("worker", 1, 7, "signal SIGKILL", 6.0)]
    second.after(0.1, reports=ReportBuffer(joined=[hello(1, pid=8)], lost=lost))
    second.recorder.close()
    assert comings(second)[-4:] == [
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
        ("role_started", "worker", 8),
        ("worker_joined", 1, None),
    ]
    assert sum(kind == "role_lost" for kind, _, _ in comings(second)) == 2


def test_spans_of_a_clock_that_is_ahead_stand_where_the_chiefs_would_have_put_them(harness: Harness) -> None:
    span = Span("compute", "worker", 106.0, 0.5, 1, 1)
    harness.after(2.0, reports=ReportBuffer(spans=[("worker", 0, (span,), -5.0)]))
    harness.recorder.timeline.write()
    trace = json.loads((harness.workdir / "timeline.json").read_text())["traceEvents"]
    assert [event["ts"] for event in trace if event["ph"] == "X"] == [1e6], "a second after the run began"


# --- the run's time ---


def test_time_runs_from_the_first_unit_leased_and_start_up_is_a_figure_of_its_own(
    make_harness: Callable[..., Harness],
) -> None:
    harness = make_harness(enter=False)
    harness.chief.first_leased = 0.0
    harness.clock.advance(40.0)
    harness.reporter.entered(harness.bsp, 0)
    harness.after(5.0)
    assert harness.reporter.seconds() == 0.0 and harness.metrics() == []
    harness.clock.advance(5.0)
    harness.after(0.25, first_leased=150.0)
    assert harness.reporter.seconds() == 0.25
    harness.after(0.75, num_applied=5)
    (line,) = harness.metrics()
    assert (line["t"], line["secs"], line["examples_per_sec"]) == (1.0, 1.0, 5 * UNIT_SIZE), "start-up is in no rate"
    kinds = [(event["kind"], event["t"]) for event in events_of(harness.workdir)]
    assert kinds == [("phase_entered", 0.0), ("training_started", 0.0)]
    (started,) = events_of(harness.workdir, "training_started")
    assert (started["start_up_secs"], started["phase"]) == (50.0, 1)
    assert started["wall"] == pytest.approx(harness.clock.wall() - 1.0)
    summary = harness.reporter.finish("preempted", None)
    assert (summary.seconds, summary.start_up_secs) == (1.0, 50.0)
    assert events_of(harness.workdir)[-1]["t"] == summary.seconds


def test_a_resumed_run_goes_on_where_it_ended_and_adds_up_what_its_sessions_took_to_start(
    make_harness: Callable[..., Harness],
) -> None:
    first = make_harness()
    first.after(30.0, num_applied=9)
    second = make_harness(enter=False)
    second.chief.first_leased = 0.0
    second.clock.advance(7.0)
    second.recorder.events.write("run_started", phase=1, reason="resume")
    second.reporter.entered(second.bsp, 9)
    assert second.reporter.seconds() == 30.0
    second.after(4.0, first_leased=108.0)
    assert second.reporter.seconds() == 33.0
    summary = second.reporter.finish("preempted", None)
    assert (summary.seconds, summary.start_up_secs) == (33.0, 8.0)
    times = [event["t"] for event in events_of(second.workdir)]
    assert times == sorted(times) and times[-1] == summary.seconds


def test_a_session_that_was_given_up_for_a_start_from_unit_0_counts_no_more(
    make_harness: Callable[..., Harness],
) -> None:
    first = make_harness()
    first.after(30.0, num_applied=9)
    second = make_harness(enter=False)
    second.recorder.events.write("run_started", phase=1, reason="start")
    third = make_harness(enter=False)
    third.reporter.entered(third.bsp, 0)
    third.after(2.0, num_applied=3)
    summary = third.reporter.finish("preempted", None)
    assert summary.seconds == 2.0 and events_of(third.workdir)[-1]["t"] == 32.0


def test_a_phase_that_went_on_while_the_chief_was_away_took_that_time_too(make_harness: Callable[..., Harness]) -> None:
    first = make_harness()
    first.after(30.0, num_applied=9)
    first.reporter.event("checkpoint", units=9, bytes=1, secs=0.5)
    clock = ManualClock(now=3.0, wall_now=first.clock.wall() + 12.5)
    later = make_harness(enter=False, restarted=True, clock=clock)
    later.reporter.continues(later.bsp)
    later.clock.advance(2.0)
    assert later.reporter.seconds() == 30.0 + 12.5 + 2.0


def test_a_chief_that_was_away_before_the_first_unit_leaves_the_time_at_nothing(
    make_harness: Callable[..., Harness],
) -> None:
    first = make_harness(enter=False)
    first.chief.first_leased = 0.0
    first.reporter.entered(first.bsp, 0)
    later = make_harness(enter=False, restarted=True)
    later.chief.first_leased = 0.0
    later.clock.advance(20.0)
    later.reporter.continues(later.bsp)
    assert later.reporter.seconds() == 0.0
    later.after(3.0, first_leased=121.0)
    assert later.reporter.seconds() == 2.0


def test_the_summary_says_what_was_told(harness: Harness) -> None:
    harness.reporter.evaluated(60, 0.25, lambda: None)
    harness.reporter.evaluated(60, 0.25, lambda: Measured({"accuracy": 0.75, "loss": 0.5}, 0.5))
    harness.after(0.5, num_applied=60, reports=ReportBuffer(staleness=[1, 3]))
    harness.after(0.5, num_applied=80, reports=ReportBuffer(staleness=[5]))
    summary = harness.reporter.finish("preempted", None)
    assert (summary.exit, summary.error, summary.plan) == ("preempted", None, "bsp:50%,asp")
    assert (summary.units.applied, summary.examples, summary.seconds) == (80, 80 * UNIT_SIZE, 1.0)
    assert summary.final == {"accuracy": 0.75, "loss": 0.5}
    assert summary.staleness["mean"] == 3.0, "over the whole run"
    assert harness.metrics()[-1]["units"] == 80
    assert events_of(harness.workdir)[-1]["kind"] == "run_finished"
    assert [event["examples"] for event in events_of(harness.workdir, "evaluation")] == [60 * UNIT_SIZE]
    assert json.loads((harness.workdir / "summary.json").read_text())["seconds"] == 1.0


# --- the learning rate ---


@pytest.mark.parametrize("kind", ["constant", "piecewise", "cosine"])
def test_the_rate_that_is_logged_is_the_one_applied_where_int32_cannot_hold_the_examples(
    tmp_path: Path, make_harness: Callable[..., Harness], kind: Any
) -> None:
    """70,000,000 units of 32 examples: -2,054,967,296 in int32."""
    units, workload, unit_size = 70_000_000, 100_000_000, 32
    boundaries, factors = ((0.5,), (0.1,)) if kind == "piecewise" else ((), ())
    rate = schedule(ScheduleConfig(kind, boundaries, factors), 0.5, workload * unit_size)
    optimizer, task = Optimizer(lambda learning_rate: optax.sgd(learning_rate), learning_rate=rate), mlp_task()
    programs = programs_of(task, optimizer, workload=workload, unit_size=unit_size)
    state = initial_state(task, optimizer, 0)
    gradient = programs.gradient(Parameters(state.params, state.model_state), 0)
    state = replace(state, counters={**state.counters, "units": jnp.int32(units)})
    state = programs.update(state, gradient, units=1, factor=4.0, blend=1.0)
    applied = float(state.opt_state.hyperparams["learning_rate"])
    expected = {"constant": 2.0, "piecewise": 0.2, "cosine": 1.0 + math.cos(0.7 * math.pi)}
    assert applied == pytest.approx(expected[kind])
    config = RunConfig(workload=workload, unit_size=unit_size, workers=4, plan="bsp")
    make_harness(applied=units, run=Run(config, task, optimizer, tmp_path))
    (entered,) = events_of(tmp_path, "phase_entered")
    assert entered["learning_rate"] == pytest.approx(applied, rel=1e-6)
