"""The run's record: what is written when, and the arithmetic of an interval, by a clock that a test moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hybridsync import TelemetryConfig
from hybridsync.chief.intake import Intake
from hybridsync.chief.ledger import Counts
from hybridsync.config import RunConfig
from hybridsync.messages import Capture, RoleEvent, Span
from hybridsync.plan import Epoch
from hybridsync.policies.stragglers import Decision
from hybridsync.run import Run
from hybridsync.switching.commits import Commit
from hybridsync.switching.reporter import Hook, Reporter, StageTimes
from hybridsync.telemetry.recorder import Recorder
from tests.roles import Start, hello, phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock
from tests.trainers import events_of, lines_of

UNIT_SIZE, WORKLOAD, LOG_SECS = 8, 100, 1.0
RATE = 0.5
TIMES = StageTimes({"drain": 0.1, "capture": 0.2, "reserve": 0.3, "enter": 0.4})


@dataclass
class Told:
    """A chief that has heard what a test says."""

    num_applied: int = 0
    first_leased: float = 0.0
    intake: Intake = field(default_factory=Intake)
    first_and_last: tuple[float, float] = (0.0, 0.0)
    rates: dict[int, float] = field(default_factory=dict)

    def take_intake(self) -> Intake:
        taken, self.intake = self.intake, Intake()
        return taken

    def stamps(self) -> tuple[float, float]:
        return self.first_and_last

    def worker_rates(self) -> dict[int, float]:
        return self.rates

    def counts(self) -> Counts:
        return Counts(WORKLOAD, self.num_applied, self.num_applied, 0, 0, 0)


class Desk:
    """A reporter whose clock stands at 100 s, in its first phase from unit `applied`."""

    def __init__(
        self,
        workdir: Path,
        hooks: list[tuple[Hook, int]] | None = None,
        applied: int = 0,
        enter: bool = True,
        told_until: float = 0.0,
    ) -> None:
        self.workdir, self.clock, self.chief = workdir, ManualClock(), Told(applied)
        telemetry = TelemetryConfig(log_secs=LOG_SECS)
        config = RunConfig(
            workload=WORKLOAD, unit_size=UNIT_SIZE, workers=4, plan="bsp:50%,asp", telemetry=telemetry
        )
        run = Run(config, tally_task(WORKLOAD), plain_sgd(RATE), workdir)
        self.recorder = Recorder.open(workdir, self.clock)
        self.switches: list[dict[str, Any]] = []
        self.reporter = Reporter(
            run,
            self.chief,
            self.recorder,
            self.clock,
            seconds=30.0,
            hooks=hooks or [],
            switches=self.switches,
            told_until=told_until,
        )
        self.bsp, after = phase_of(1, "bsp", end=50), phase_of(2, "asp", end=WORKLOAD)
        self.asp = replace(after, applied=((0, 50),), fingerprint=capture_of().held.fingerprint, reason="planned")
        if enter:
            self.reporter.entered(self.bsp, applied)

    def switch(self, last_applied: float, unit_secs: float = 0.5) -> None:
        """Go from bsp to asp at what bsp applied last."""
        self.reporter.ended(capture_of(last_applied=last_applied))
        self.chief.first_and_last = (0.0, 0.0)
        self.reporter.entered(self.asp, 50)
        self.reporter.switching(self.bsp, self.asp, capture_of(last_applied=last_applied), TIMES, unit_secs)

    def metrics(self) -> list[dict[str, Any]]:
        return lines_of(self.workdir / "metrics.jsonl")

    def after(self, secs: float, **told: Any) -> None:
        """Let the time pass, the chief hear of something, and the manager tick."""
        self.clock.advance(secs)
        for name, value in told.items():
            setattr(self.chief, name, value)
        self.reporter.tick()


def capture_of(**stamps: float) -> Capture:
    holding = Start().holding
    return holding.seal(phase_of(1).epoch, sequence=13, applied=[(0, 50)], **stamps)


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    with ExitStack() as recorders:

        def make(**options: Any) -> Desk:
            desk = Desk(tmp_path, **options)
            recorders.callback(desk.recorder.close)
            return desk

        yield make


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


# --- stragglers ---


def test_who_is_flagged_and_cleared_is_written_with_the_numbers_that_it_rests_on(desk: Desk) -> None:
    flagged = Decision(2, True, rate=4.0, centre=10.0, threshold=9.0, rounds=4, workers=8)
    desk.chief.intake.decisions += [flagged, replace(flagged, flagged=False, rate=9.5)]
    desk.after(0.1)
    (event,) = events_of(desk.workdir, "straggler_flagged")
    assert {**asdict(flagged), **event} == {**event, "flagged": True}
    (event,) = events_of(desk.workdir, "straggler_cleared")
    assert (event["worker"], event["rate"], event["threshold"], event["epoch"]) == (2, 9.5, 9.0, 1)


# --- the switch ---


def test_a_switch_is_written_once_its_stall_and_its_commit_are_known(desk: Desk) -> None:
    desk.switch(last_applied=200.0)
    desk.after(0.1)
    assert desk.reporter.switch_pending and events_of(desk.workdir, "switch") == []
    desk.after(0.1, first_and_last=(203.0, 203.0))
    assert desk.reporter.switch_pending and events_of(desk.workdir, "switch") == []
    desk.reporter.committed(Commit(50, 1000, 4.0))
    assert not desk.reporter.switch_pending
    (switch,) = events_of(desk.workdir, "switch")
    assert (switch["from"], switch["to"], switch["units"], switch["epoch"]) == ("bsp", "asp", 50, 2)
    stages = [switch[f"{stage}_secs"] for stage in ("drain", "capture", "reserve", "enter", "commit", "compile")]
    assert stages == [0.1, 0.2, 0.3, 0.4, 4.0, 0.0]
    assert switch["stall_secs"] == pytest.approx(203.0 - 200.0 - 0.5), "less one unit's time"
    assert desk.switches == [switch]
    desk.after(0.1)
    desk.reporter.committed(Commit(60, 1000, 9.0))
    assert len(events_of(desk.workdir, "switch")) == 1


def test_a_switch_whose_commit_is_known_first_waits_for_the_first_update(desk: Desk) -> None:
    desk.switch(last_applied=200.0)
    desk.reporter.committed(Commit(50, 1000, 4.0))
    desk.after(0.1)
    assert desk.reporter.switch_pending
    desk.after(0.1, first_and_last=(200.2, 200.2), intake=Intake(compile_secs=0.25))
    (switch,) = events_of(desk.workdir, "switch")
    assert (switch["stall_secs"], switch["compile_secs"]) == (0.0, 0.25), "no stall is shorter than none"


def test_the_stall_of_a_phase_that_ended_at_once_is_read_from_its_capture(desk: Desk) -> None:
    desk.switch(last_applied=200.0)
    desk.reporter.committed(Commit(50, 1000, 4.0))
    desk.reporter.ended(capture_of(first_applied=202.0, last_applied=202.5))
    assert events_of(desk.workdir, "switch")[0]["stall_secs"] == pytest.approx(1.5)


def test_a_switch_before_which_nothing_was_applied_has_no_stall(desk: Desk) -> None:
    desk.switch(last_applied=0.0)
    desk.reporter.committed(Commit(0, 1000, 4.0))
    desk.after(0.1, first_and_last=(300.0, 300.0))
    assert events_of(desk.workdir, "switch")[0]["stall_secs"] == 0.0


def test_a_switch_whose_commit_was_lost_is_written_with_the_next_one(desk: Desk) -> None:
    desk.switch(last_applied=200.0)
    desk.after(0.1, first_and_last=(203.0, 203.0))
    desk.reporter.not_durable(50, "the disk is full")
    third = phase_of(3, "bsp", end=WORKLOAD)
    desk.reporter.ended(capture_of(last_applied=300.0))
    desk.chief.first_and_last = (0.0, 0.0)
    desk.reporter.entered(third, 80)
    desk.reporter.switching(desk.asp, third, capture_of(last_applied=300.0), TIMES, 0.5)
    desk.reporter.committed(Commit(80, 1000, 4.0))
    assert [event["to"] for event in events_of(desk.workdir, "switch")] == ["asp"]
    assert desk.reporter.switch_pending
    desk.after(0.1, first_and_last=(301.0, 301.0))
    first, second = events_of(desk.workdir, "switch")
    assert (first["stall_secs"], second["stall_secs"]) == (2.5, 0.5)
    assert (first["commit_secs"], second["commit_secs"]) == (4.0, 4.0)
    assert not desk.reporter.switch_pending


# --- phases that broke, and those that another chief began ---


def test_a_broken_phase_ends_with_why_and_the_next_begins_with_it(desk: Desk) -> None:
    capture = capture_of()
    desk.reporter.broke(capture, "worker 2 was lost (signal SIGKILL)", 0)
    desk.reporter.entered(desk.asp, 50, "epoch 1 cannot go on: worker 2 was lost (signal SIGKILL)")
    (ended,) = events_of(desk.workdir, "phase_ended")
    assert (ended["units"], ended["fingerprint"]) == (50, capture.held.fingerprint)
    assert ended["why"] == "worker 2 was lost (signal SIGKILL)"
    before, after = events_of(desk.workdir, "phase_entered")
    assert "why" not in before and after["why"].startswith("epoch 1 cannot go on")
    assert events_of(desk.workdir, "rollback") == []


def test_units_that_are_lost_with_a_phase_are_written(desk: Desk) -> None:
    desk.reporter.broke(capture_of(), "server 0 was lost (signal SIGKILL)", 7)
    (rollback,) = events_of(desk.workdir, "rollback")
    assert (rollback["to_units"], rollback["rolled_back"], rollback["epoch"]) == (50, 7, 1)


def test_a_phase_that_an_earlier_chief_wrote_down_is_not_written_again(desk: Desk) -> None:
    desk.reporter.continues(desk.bsp)
    assert [event["epoch"] for event in events_of(desk.workdir, "phase_entered")] == [1]
    assert desk.reporter.event("run_finished", exit="completed")["epoch"] == 1


def test_a_phase_whose_begin_was_lost_with_its_chief_is_written_by_the_next(desk: Desk) -> None:
    desk.reporter.continues(desk.asp)
    entered = events_of(desk.workdir, "phase_entered")[-1]
    assert (entered["epoch"], entered["units"], entered["why"]) == (2, 50, "the chief was lost while it began")


def test_a_commit_without_a_disk_is_no_checkpoint(desk: Desk) -> None:
    desk.reporter.committed(Commit(8, 0, 0.0))
    assert events_of(desk.workdir, "checkpoint") == []
    desk.reporter.committed(Commit(16, 77, 0.5))
    (checkpoint,) = events_of(desk.workdir, "checkpoint")
    assert (checkpoint["units"], checkpoint["bytes"], checkpoint["secs"]) == (16, 77, 0.5)


def test_a_switch_that_its_chief_did_not_live_to_write_is_written_by_the_next_one(
    desk: Desk, make_desk: Callable[..., Desk]
) -> None:
    desk.switch(last_applied=200.0)
    desk.reporter.committed(Commit(50, 1000, 4.0))
    assert events_of(desk.workdir, "switch") == []
    later = make_desk(enter=False)
    later.reporter.continues(later.asp)
    later.reporter.continues(later.asp)
    (switch,) = events_of(desk.workdir, "switch")
    assert later.switches == [switch]
    known = {"from": "bsp", "to": "asp", "reason": "planned", "units": 50, "epoch": 2}
    assert {key: switch[key] for key in known} == known
    assert switch["fingerprint"] == desk.asp.fingerprint
    assert switch["commit_secs"] == 4.0
    stages = ("drain_secs", "capture_secs", "reserve_secs", "enter_secs", "compile_secs", "stall_secs")
    assert [switch[stage] for stage in stages] == [None] * 6


def test_a_lost_switch_whose_own_commit_failed_is_covered_by_the_next_one(
    desk: Desk, make_desk: Callable[..., Desk]
) -> None:
    desk.reporter.committed(Commit(40, 1000, 3.0))
    desk.switch(last_applied=200.0)
    desk.reporter.not_durable(50, "the disk is full")
    desk.reporter.committed(Commit(60, 1000, 4.0))
    later = make_desk(enter=False)
    later.reporter.continues(later.asp)
    assert [switch["commit_secs"] for switch in events_of(desk.workdir, "switch")] == [4.0]


def test_a_lost_change_of_members_is_covered_by_no_commit(desk: Desk, make_desk: Callable[..., Desk]) -> None:
    fewer = replace(desk.bsp, epoch=Epoch(2, 77), members=(0, 1), applied=((0, 8),), reason="policy")
    desk.reporter.entered(fewer, 8)
    desk.reporter.committed(Commit(20, 1000, 4.0))
    make_desk(enter=False).reporter.continues(fewer)
    (switch,) = events_of(desk.workdir, "switch")
    assert (switch["reason"], switch["units"], switch["commit_secs"]) == ("policy", 8, None)


def test_a_switch_whose_phase_was_not_written_either_is_written_with_it(
    desk: Desk, make_desk: Callable[..., Desk]
) -> None:
    later = make_desk(enter=False)
    later.reporter.continues(later.asp)
    assert [(e["epoch"], e["units"]) for e in events_of(desk.workdir, "phase_entered")] == [(1, 0), (2, 50)]
    (switch,) = events_of(desk.workdir, "switch")
    assert (switch["from"], switch["to"], switch["units"], switch["commit_secs"]) == ("bsp", "asp", 50, None)


def test_a_switch_that_was_written_is_not_written_again_though_a_later_epoch_bears_it(
    desk: Desk, make_desk: Callable[..., Desk]
) -> None:
    desk.switch(last_applied=200.0)
    death = replace(desk.asp, epoch=Epoch(3, 77), reason="death")
    desk.reporter.entered(death, 50)
    desk.reporter.committed(Commit(50, 1000, 4.0))
    desk.after(0.1, first_and_last=(203.0, 203.0))
    make_desk(enter=False).reporter.continues(death)
    assert [switch["epoch"] for switch in events_of(desk.workdir, "switch")] == [3]


def test_switches_of_a_life_that_was_resumed_from_disk_are_its_own_affair(
    desk: Desk, make_desk: Callable[..., Desk]
) -> None:
    desk.switch(last_applied=200.0)
    desk.recorder.events.write("run_started", epoch=2)
    resumed = replace(desk.bsp, epoch=Epoch(3, 77), reason="resume")
    desk.reporter.entered(resumed, 50)
    make_desk(enter=False).reporter.continues(resumed)
    assert events_of(desk.workdir, "switch") == []


# --- metrics ---


def test_an_interval_counts_what_was_applied_and_reported_in_it(desk: Desk) -> None:
    desk.after(0.9, num_applied=9, intake=Intake(loss_sum=6.0, num_losses=2, staleness=[0, 4]))
    assert desk.metrics() == [], "the interval is not over"
    heard = Intake(loss_sum=3.0, num_losses=1, staleness=[2])
    desk.after(1.1, num_applied=20, intake=heard, rates={0: 5.0, 3: 2.5})
    desk.after(0.5, num_applied=25)
    desk.after(0.5, num_applied=28)
    first, second = desk.metrics()
    assert (first["units"], first["examples"], first["epoch"], first["protocol"]) == (20, 160, 1, "bsp")
    assert first["examples_per_sec"] == pytest.approx(20 * UNIT_SIZE / 2.0)
    assert first["loss"] == pytest.approx(9.0 / 3)
    assert first["staleness"] == {"mean": 2.0, "p95": 4, "max": 4}
    assert first["workers"] == {"0": 40.0, "3": 20.0}, "in examples"
    assert first["learning_rate"] == pytest.approx(4 * RATE), "of an update of four units"
    assert second["examples_per_sec"] == pytest.approx(8 * UNIT_SIZE / 1.0)
    assert second["loss"] is None and second["staleness"]["max"] == 0, "what was told is told once"


def test_an_interval_says_how_long_each_worker_computed_and_waited(desk: Desk) -> None:
    desk.after(0.5, intake=Intake(compute_secs={0: 0.25, 3: 0.5}, wait_secs={0: 0.125, 3: 0.0}))
    desk.after(0.5, intake=Intake(compute_secs={0: 0.5}, wait_secs={0: 0.25}))
    desk.after(1.0)
    first, second = desk.metrics()
    assert (first["compute_secs"], first["wait_secs"]) == ({"0": 0.75, "3": 0.5}, {"0": 0.375, "3": 0.0})
    assert (second["compute_secs"], second["wait_secs"]) == ({}, {}), "nobody has reported since"


def test_a_resumed_run_counts_its_first_interval_from_where_it_resumed(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(applied=40)
    desk.after(2.0, num_applied=44)
    assert desk.metrics()[0]["examples_per_sec"] == pytest.approx(4 * UNIT_SIZE / 2.0)


def test_hooks_are_called_at_their_units_and_once_however_many_were_passed(make_desk: Callable[..., Desk]) -> None:
    seen: dict[int, list[int]] = {10: [], 25: []}
    hooks = [(lambda metrics, every=every: seen[every].append(metrics.units), every) for every in seen]
    desk = make_desk(hooks=hooks, applied=20)
    for applied in (20, 24, 29, 30, 31, 55, 59, 60):
        desk.after(0.01, num_applied=applied)
    assert seen == {10: [30, 55, 60], 25: [29, 55]}
    assert [line["units"] for line in desk.metrics()] == [29, 30, 55, 60], "each with the metrics of its moment"


def test_a_hook_that_ended_the_run_is_not_called_again_by_its_end(make_desk: Callable[..., Desk]) -> None:
    def fail(metrics: Any) -> None:
        raise ZeroDivisionError("the hook's own")

    desk = make_desk(hooks=[(fail, 10)])
    with pytest.raises(ZeroDivisionError):
        desk.after(0.1, num_applied=12)
    desk.chief.num_applied = 24
    assert desk.reporter.finish("failed", "a hook's own error").exit == "failed"


# --- what else a tick takes, and the end ---


def comings(desk: Desk) -> list[tuple[str, Any, Any]]:
    """Return (kind, role or worker, pid) of what the record says of processes."""
    told = [event for event in events_of(desk.workdir) if event["kind"].startswith(("role_", "worker_"))]
    return [(event["kind"], event.get("role", event.get("worker")), event.get("pid")) for event in told]


def test_roles_that_came_and_went_are_events(desk: Desk) -> None:
    worker, server = hello(1, pid=7), hello(0, role="server")
    desk.after(0.1, intake=Intake(joined=[worker, server], lost=[RoleEvent("worker", 1, 7, "signal SIGKILL", 5.0)]))
    assert comings(desk) == [
        ("role_started", "worker", 7),
        ("worker_joined", 1, None),
        ("role_started", "server", server.pid),
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
    ]


def test_the_user_is_shown_which_process_was_started_again(desk: Desk) -> None:
    shown = []
    desk.recorder.progress.note = shown.append
    desk.after(0.1, intake=Intake(restarted=[RoleEvent("worker", 1, 8, "restart after signal SIGKILL", 5.0)]))
    assert shown == ["worker 1: restart after signal SIGKILL"]
def test_a_process_that_was_given_up_and_then_ended_is_lost_once(desk: Desk) -> None:
    given_up, ended = (RoleEvent("worker", 1, 7, reason, 5.0) for reason in ("no sign of life", "signal SIGKILL"))
    desk.after(0.1, intake=Intake(joined=[hello(1, pid=7)]))
    desk.after(0.1, intake=Intake(lost=[given_up]))
    desk.after(0.1, intake=Intake(lost=[ended], joined=[hello(1, pid=8)]))
    assert comings(desk)[2:] == [
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
        ("role_started", "worker", 8),
        ("worker_joined", 1, None),
    ]


def test_who_was_lost_while_nobody_was_there_to_write_is_told_by_the_next_chief(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    first.after(0.1, intake=Intake(joined=[hello(1, pid=7), hello(2, pid=9)]))
    first.after(0.1, intake=Intake(lost=[RoleEvent("worker", 2, 9, "no sign of life", 5.0)]))
    first.recorder.close()
    second = Desk(tmp_path)
    lost = [RoleEvent("worker", 2, 9, "signal SIGKILL", 6.0), RoleEvent("worker", 1, 7, "signal SIGKILL", 6.0)]
    second.after(0.1, intake=Intake(joined=[hello(1, pid=8)], lost=lost))
    second.recorder.close()
    assert comings(second)[-4:] == [
        ("role_lost", "worker", 7),
        ("worker_left", 1, None),
        ("role_started", "worker", 8),
        ("worker_joined", 1, None),
    ]
    assert sum(kind == "role_lost" for kind, _, _ in comings(second)) == 2


def test_spans_of_a_clock_that_is_ahead_stand_where_the_chiefs_would_have_put_them(desk: Desk) -> None:
    span = Span("compute", "worker", 106.0, 0.5, 1, 1)
    desk.after(2.0, intake=Intake(spans=[("worker", 0, (span,), -5.0)]))
    desk.recorder.timeline.write()
    trace = json.loads((desk.workdir / "timeline.json").read_text())["traceEvents"]
    assert [event["ts"] for event in trace if event["ph"] == "X"] == [1e6], "a second after the run began"


def test_the_seconds_of_earlier_lives_go_on_with_the_first_unit_leased(desk: Desk) -> None:
    desk.clock.advance(50.0)
    assert desk.reporter.seconds() == 30.0
    desk.chief.first_leased = 145.0
    assert desk.reporter.seconds() == 35.0


def test_a_phase_that_went_on_while_the_chief_was_away_took_that_time_too(make_desk: Callable[..., Desk]) -> None:
    later = make_desk(enter=False, told_until=-7.0)
    later.clock.advance(50.0)
    assert later.reporter.seconds() == 30.0, "nothing is under way yet"
    later.reporter.continues(later.asp)
    assert later.reporter.seconds() == 30.0 + 57.0
    later.chief.first_leased = 149.0
    assert later.reporter.seconds() == 30.0 + 57.0


def test_the_summary_says_what_was_told(desk: Desk) -> None:
    desk.reporter.evaluated(60, None)
    desk.reporter.evaluated(60, {"accuracy": 0.75, "loss": 0.5})
    desk.after(0.5, num_applied=60, first_leased=100.0, intake=Intake(staleness=[1, 3]))
    desk.after(0.5, num_applied=80, intake=Intake(staleness=[5]))
    summary = desk.reporter.finish("preempted", None)
    assert (summary.exit, summary.error, summary.plan) == ("preempted", None, "bsp:50%,asp")
    assert (summary.units.applied, summary.examples, summary.seconds) == (80, 80 * UNIT_SIZE, 31.0)
    assert summary.final == {"accuracy": 0.75, "loss": 0.5}
    assert summary.staleness["mean"] == 3.0, "over the whole run"
    assert desk.metrics()[-1]["units"] == 80
    assert events_of(desk.workdir)[-1]["kind"] == "run_finished"
    assert [event["examples"] for event in events_of(desk.workdir, "evaluation")] == [60 * UNIT_SIZE]
    assert json.loads((desk.workdir / "summary.json").read_text())["seconds"] == 31.0


def test_a_change_of_members_is_written_without_waiting_for_a_commit_and_its_stall_is_known_from_then_on(desk: Desk):
    others = replace(desk.bsp, members=(0, 2, 3), reason="policy")
    desk.reporter.ended(capture_of(last_applied=99.5))
    desk.chief.first_and_last = (0.0, 0.0)
    desk.reporter.entered(others, 20)
    desk.reporter.switching(desk.bsp, others, capture_of(last_applied=99.5), TIMES, 0.25, commits=False)
    assert desk.reporter.switch_pending and desk.reporter.stalls(same_protocol=True) == ()
    desk.after(0.5, first_and_last=(100.25, 100.25))
    (switch,) = events_of(desk.workdir, "switch")
    assert (switch["reason"], switch["commit_secs"], switch["stall_secs"]) == ("policy", None, 0.5)
    assert not desk.reporter.switch_pending
    assert desk.reporter.stalls(same_protocol=True) == (0.5,) and desk.reporter.stalls(same_protocol=False) == ()


def test_what_a_policy_decides_is_an_event_with_its_numbers(desk: Desk):
    numbers = {"expected_secs": 20.0, "saved_secs": 3.0, "cost_secs": 0.5, "units_left": 40, "threshold": 18.0}
    decision = {**numbers, "policy": "elastic", "action": "stay", "workers": [2], "rates": {"2": 5.0}, "why": "so"}
    desk.reporter.decided(**decision)
    (event,) = events_of(desk.workdir, "policy_decided")
    assert decision.items() <= event.items()
