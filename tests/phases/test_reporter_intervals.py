"""The arithmetic of an interval, the hooks, the roles that come and go, the summary, by a clock that a test moves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.config import RunConfig, ScheduleConfig
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.reports import Span
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.optimizer import Optimizer, schedule
from hybridsync.training.run import Run
from hybridsync.training.state import initial_state
from tests.phases.harness import RATE, UNIT_SIZE, Harness, snapshot_of
from tests.roles import hello
from tests.tasks import mlp_task, programs_of
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


def test_an_interval_says_how_long_each_worker_computed_and_waited(harness: Harness) -> None:
    harness.after(0.5, reports=ReportBuffer(compute_secs={0: 0.25, 3: 0.5}, wait_secs={0: 0.125, 3: 0.0}))
    harness.after(0.5, reports=ReportBuffer(compute_secs={0: 0.5}, wait_secs={0: 0.25}))
    harness.after(1.0)
    first, second = harness.metrics()
    assert (first["compute_secs"], first["wait_secs"]) == ({"0": 0.75, "3": 0.5}, {"0": 0.375, "3": 0.0})
    assert (second["compute_secs"], second["wait_secs"]) == ({}, {}), "nobody has reported since"


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


def test_a_hook_that_ended_the_run_is_not_called_again_by_its_end(make_harness: Callable[..., Harness]) -> None:
    def fail(metrics: Any) -> None:
        raise ZeroDivisionError("the hook's own")

    harness = make_harness(hooks=[(fail, 10)])
    with pytest.raises(ZeroDivisionError):
        harness.after(0.1, num_applied=12)
    harness.chief.num_applied = 24
    assert harness.reporter.finish("failed", "a hook's own error").exit == "failed"


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


def test_the_seconds_of_earlier_lives_go_on_with_the_first_unit_leased(harness: Harness) -> None:
    harness.clock.advance(50.0)
    assert harness.reporter.seconds() == 30.0
    harness.chief.first_leased = 145.0
    assert harness.reporter.seconds() == 35.0


def test_a_phase_that_went_on_while_the_chief_was_away_took_that_time_too(make_harness: Callable[..., Harness]) -> None:
    later = make_harness(enter=False, told_until=-7.0)
    later.clock.advance(50.0)
    assert later.reporter.seconds() == 30.0, "nothing is under way yet"
    later.reporter.continues(later.asp)
    assert later.reporter.seconds() == 30.0 + 57.0
    later.chief.first_leased = 149.0
    assert later.reporter.seconds() == 30.0 + 57.0


def test_the_summary_says_what_was_told(harness: Harness) -> None:
    harness.reporter.evaluated(60, None)
    harness.reporter.evaluated(60, {"accuracy": 0.75, "loss": 0.5})
    harness.after(0.5, num_applied=60, first_leased=100.0, reports=ReportBuffer(staleness=[1, 3]))
    harness.after(0.5, num_applied=80, reports=ReportBuffer(staleness=[5]))
    summary = harness.reporter.finish("preempted", None)
    assert (summary.exit, summary.error, summary.plan) == ("preempted", None, "bsp:50%,asp")
    assert (summary.units.applied, summary.examples, summary.seconds) == (80, 80 * UNIT_SIZE, 31.0)
    assert summary.final == {"accuracy": 0.75, "loss": 0.5}
    assert summary.staleness["mean"] == 3.0, "over the whole run"
    assert harness.metrics()[-1]["units"] == 80
    assert events_of(harness.workdir)[-1]["kind"] == "run_finished"
    assert [event["examples"] for event in events_of(harness.workdir, "evaluation")] == [60 * UNIT_SIZE]
    assert json.loads((harness.workdir / "summary.json").read_text())["seconds"] == 31.0


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
