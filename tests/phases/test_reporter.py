"""What the record says of switches, of phases that broke and of what a policy decides, by a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.core.plan import PhaseId
from hybridsync.phases.run_context import Commit, Measured
from hybridsync.policies.straggler_detector import Decision
from tests.phases.harness import TIMES, WORKLOAD, Harness, snapshot_of
from tests.roles import phase_of
from tests.trainers import events_of

# --- stragglers ---


def test_who_is_flagged_and_cleared_is_written_with_the_numbers_that_it_rests_on(harness: Harness) -> None:
    flagged = Decision(2, True, rate=4.0, centre=10.0, threshold=9.0, rounds=4, workers=8)
    harness.chief.reports.decisions += [flagged, replace(flagged, flagged=False, rate=9.5)]
    harness.after(0.1)
    (event,) = events_of(harness.workdir, "straggler_flagged")
    assert {**asdict(flagged), **event} == {**event, "flagged": True}
    (event,) = events_of(harness.workdir, "straggler_cleared")
    assert (event["worker"], event["rate"], event["threshold"], event["phase"]) == (2, 9.5, 9.0, 1)


# --- the switch ---


def test_a_switch_is_written_once_its_stall_and_its_commit_are_known(harness: Harness) -> None:
    harness.switch(last_applied=200.0)
    harness.after(0.1)
    assert harness.reporter.switch_pending and events_of(harness.workdir, "switch") == []
    harness.after(0.1, stamps=(203.0, 203.0))
    assert harness.reporter.switch_pending and events_of(harness.workdir, "switch") == []
    harness.reporter.committed(Commit(50, 1000, 4.0))
    assert not harness.reporter.switch_pending
    (switch,) = events_of(harness.workdir, "switch")
    assert (switch["from"], switch["to"], switch["units"], switch["phase"]) == ("bsp", "asp", 50, 2)
    stages = [switch[f"{stage}_secs"] for stage in ("drain", "capture", "reserve", "enter", "commit", "compile")]
    assert stages == [0.1, 0.2, 0.3, 0.4, 4.0, 0.0]
    assert switch["stall_secs"] == pytest.approx(203.0 - 200.0 - 0.5), "less one unit's time"
    assert harness.switches == [switch]
    harness.after(0.1)
    harness.reporter.committed(Commit(60, 1000, 9.0))
    assert len(events_of(harness.workdir, "switch")) == 1


def test_a_switch_whose_commit_is_known_first_waits_for_the_first_update(harness: Harness) -> None:
    harness.switch(last_applied=200.0)
    harness.reporter.committed(Commit(50, 1000, 4.0))
    harness.after(0.1)
    assert harness.reporter.switch_pending
    harness.after(0.1, stamps=(200.2, 200.2), reports=ReportBuffer(compile_secs=0.25))
    (switch,) = events_of(harness.workdir, "switch")
    assert (switch["stall_secs"], switch["compile_secs"]) == (0.0, 0.25), "no stall is shorter than none"


def test_the_stall_of_a_phase_that_ended_at_once_is_read_from_its_snapshot(harness: Harness) -> None:
    harness.switch(last_applied=200.0)
    harness.reporter.committed(Commit(50, 1000, 4.0))
    harness.reporter.ended(snapshot_of(first_applied=202.0, last_applied=202.5))
    assert events_of(harness.workdir, "switch")[0]["stall_secs"] == pytest.approx(1.5)


def test_a_switch_before_which_nothing_was_applied_has_no_stall(harness: Harness) -> None:
    harness.switch(last_applied=0.0)
    harness.reporter.committed(Commit(0, 1000, 4.0))
    harness.after(0.1, stamps=(300.0, 300.0))
    assert events_of(harness.workdir, "switch")[0]["stall_secs"] == 0.0


def test_a_switch_whose_commit_was_lost_is_written_with_the_next_one(harness: Harness) -> None:
    harness.switch(last_applied=200.0)
    harness.after(0.1, stamps=(203.0, 203.0))
    harness.reporter.not_durable(50, "the disk is full")
    third = phase_of(3, "bsp", end=WORKLOAD)
    harness.reporter.ended(snapshot_of(last_applied=300.0))
    harness.chief.stamps = (0.0, 0.0)
    harness.reporter.entered(third, 80)
    harness.reporter.switching(harness.asp, third, snapshot_of(last_applied=300.0), TIMES, 0.5)
    harness.reporter.committed(Commit(80, 1000, 4.0))
    assert [event["to"] for event in events_of(harness.workdir, "switch")] == ["asp"]
    assert harness.reporter.switch_pending
    harness.after(0.1, stamps=(301.0, 301.0))
    first, second = events_of(harness.workdir, "switch")
    assert (first["stall_secs"], second["stall_secs"]) == (2.5, 0.5)
    assert (first["commit_secs"], second["commit_secs"]) == (4.0, 4.0)
    assert not harness.reporter.switch_pending


# --- phases that broke, and those that another chief began ---


def test_a_broken_phase_ends_with_why_and_the_next_begins_with_it(harness: Harness) -> None:
    snapshot = snapshot_of()
    harness.reporter.broke(snapshot, "worker 2 was lost (signal SIGKILL)", 0)
    harness.reporter.entered(harness.asp, 50, "phase 1 cannot go on: worker 2 was lost (signal SIGKILL)")
    (ended,) = events_of(harness.workdir, "phase_ended")
    assert (ended["units"], ended["fingerprint"]) == (50, snapshot.held.fingerprint)
    assert ended["why"] == "worker 2 was lost (signal SIGKILL)"
    before, after = events_of(harness.workdir, "phase_entered")
    assert "why" not in before and after["why"].startswith("phase 1 cannot go on")
    assert events_of(harness.workdir, "rollback") == []


def test_units_that_are_lost_with_a_phase_are_written(harness: Harness) -> None:
    harness.reporter.broke(snapshot_of(), "server 0 was lost (signal SIGKILL)", 7)
    (rollback,) = events_of(harness.workdir, "rollback")
    assert (rollback["to_units"], rollback["rolled_back"], rollback["phase"]) == (50, 7, 1)


def test_a_phase_that_an_earlier_chief_wrote_down_is_not_written_again(harness: Harness) -> None:
    harness.reporter.continues(harness.bsp)
    assert [event["phase"] for event in events_of(harness.workdir, "phase_entered")] == [1]
    assert harness.reporter.event("run_finished", exit="completed")["phase"] == 1


def test_a_phase_whose_begin_was_lost_with_its_chief_is_written_by_the_next(harness: Harness) -> None:
    harness.reporter.continues(harness.asp)
    entered = events_of(harness.workdir, "phase_entered")[-1]
    assert (entered["phase"], entered["units"], entered["why"]) == (2, 50, "the chief was lost while it began")


def test_a_commit_without_a_disk_is_no_checkpoint(harness: Harness) -> None:
    harness.reporter.committed(Commit(8, 0, 0.0))
    assert events_of(harness.workdir, "checkpoint") == []
    harness.reporter.committed(Commit(16, 77, 0.5))
    (checkpoint,) = events_of(harness.workdir, "checkpoint")
    assert (checkpoint["units"], checkpoint["bytes"], checkpoint["secs"]) == (16, 77, 0.5)


def test_a_disk_on_which_checkpoints_are_slow_is_named_and_again_once_it_is_twice_as_slow(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(harness.reporter, "show_line", shown.append)
    for units, secs in ((8, 4.0), (16, 6.0), (24, 11.0), (32, 12.0), (40, 23.0)):
        harness.reporter.committed(Commit(units, 2_500_000, secs))
    assert [line.split(":")[0] for line in shown] == [
        "the checkpoint at unit 16 took 6.0 s for 2.5 MB",
        "the checkpoint at unit 32 took 12.0 s for 2.5 MB",
    ]


def test_a_switch_that_its_chief_did_not_live_to_write_is_written_by_the_next_one(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    harness.switch(last_applied=200.0)
    harness.reporter.committed(Commit(50, 1000, 4.0))
    assert events_of(harness.workdir, "switch") == []
    later = make_harness(enter=False)
    later.reporter.continues(later.asp)
    later.reporter.continues(later.asp)
    (switch,) = events_of(harness.workdir, "switch")
    assert later.switches == [switch]
    known = {"from": "bsp", "to": "asp", "reason": "planned", "units": 50, "phase": 2}
    assert {key: switch[key] for key in known} == known
    assert switch["fingerprint"] == harness.asp.fingerprint
    assert switch["commit_secs"] == 4.0
    stages = ("drain_secs", "capture_secs", "reserve_secs", "enter_secs", "compile_secs", "stall_secs")
    assert [switch[stage] for stage in stages] == [None] * 6


def test_a_lost_switch_whose_own_commit_failed_is_covered_by_the_next_one(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    harness.reporter.committed(Commit(40, 1000, 3.0))
    harness.switch(last_applied=200.0)
    harness.reporter.not_durable(50, "the disk is full")
    harness.reporter.committed(Commit(60, 1000, 4.0))
    later = make_harness(enter=False)
    later.reporter.continues(later.asp)
    assert [switch["commit_secs"] for switch in events_of(harness.workdir, "switch")] == [4.0]


def test_a_lost_change_of_members_is_covered_by_no_commit(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    fewer = replace(harness.bsp, id=PhaseId(2, 77), members=(0, 1), applied=((0, 8),), reason="policy")
    harness.reporter.entered(fewer, 8)
    harness.reporter.committed(Commit(20, 1000, 4.0))
    make_harness(enter=False).reporter.continues(fewer)
    (switch,) = events_of(harness.workdir, "switch")
    assert (switch["reason"], switch["units"], switch["commit_secs"]) == ("policy", 8, None)


def test_a_switch_whose_phase_was_not_written_either_is_written_with_it(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    later = make_harness(enter=False)
    later.reporter.continues(later.asp)
    assert [(e["phase"], e["units"]) for e in events_of(harness.workdir, "phase_entered")] == [(1, 0), (2, 50)]
    (switch,) = events_of(harness.workdir, "switch")
    assert (switch["from"], switch["to"], switch["units"], switch["commit_secs"]) == ("bsp", "asp", 50, None)


def test_a_switch_that_was_written_is_not_written_again_though_a_later_phase_bears_it(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    harness.switch(last_applied=200.0)
    death = replace(harness.asp, id=PhaseId(3, 77), reason="death")
    harness.reporter.entered(death, 50)
    harness.reporter.committed(Commit(50, 1000, 4.0))
    harness.after(0.1, stamps=(203.0, 203.0))
    make_harness(enter=False).reporter.continues(death)
    assert [switch["phase"] for switch in events_of(harness.workdir, "switch")] == [3]


def test_switches_of_a_life_that_was_resumed_from_disk_are_its_own_affair(
    harness: Harness, make_harness: Callable[..., Harness]
) -> None:
    harness.switch(last_applied=200.0)
    harness.recorder.events.write("run_started", phase=2)
    resumed = replace(harness.bsp, id=PhaseId(3, 77), reason="resume")
    harness.reporter.entered(resumed, 50)
    make_harness(enter=False).reporter.continues(resumed)
    assert events_of(harness.workdir, "switch") == []


def test_a_change_of_members_is_written_without_waiting_for_a_commit_and_its_stall_is_known_from_then_on(
    harness: Harness,
):
    others = replace(harness.bsp, members=(0, 2, 3), reason="policy")
    harness.reporter.ended(snapshot_of(last_applied=99.5))
    harness.chief.stamps = (0.0, 0.0)
    harness.reporter.entered(others, 20)
    harness.reporter.switching(harness.bsp, others, snapshot_of(last_applied=99.5), TIMES, 0.25, commits=False)
    assert harness.reporter.switch_pending and harness.reporter.stalls(same_protocol=True) == ()
    harness.after(0.5, stamps=(100.25, 100.25))
    (switch,) = events_of(harness.workdir, "switch")
    assert (switch["reason"], switch["commit_secs"], switch["stall_secs"]) == ("policy", None, 0.5)
    assert not harness.reporter.switch_pending
    assert harness.reporter.stalls(same_protocol=True) == (0.5,) and harness.reporter.stalls(same_protocol=False) == ()


def test_what_a_policy_decides_is_an_event_with_its_numbers(harness: Harness):
    numbers = {"expected_secs": 20.0, "saved_secs": 3.0, "cost_secs": 0.5, "units_left": 40, "threshold": 18.0}
    decision = {**numbers, "policy": "elastic", "action": "stay", "workers": [2], "rates": {"2": 5.0}, "why": "so"}
    harness.reporter.decided(**decision)
    (event,) = events_of(harness.workdir, "policy_decided")
    assert decision.items() <= event.items()


# --- places of evaluations ---


def test_restarted_chief_measures_the_places_that_its_predecessor_had_not_measured(harness: Harness) -> None:
    def written(kind: str, **fields: Any) -> None:
        harness.recorder.events.write(kind, phase=1, **fields)

    reporter = harness.reporter
    # An earlier session went further than its last commit.
    written("evaluation", units=70, examples=8, accuracy=0.5, loss=1.0)
    written("run_started", reason="resume")
    assert reporter.measured_until(applied=45) == 45, "a session's own start"
    reporter.entered(harness.bsp, 45)
    assert reporter.measured_until(applied=52) == 45
    written("evaluation", units=50, examples=8, accuracy=0.5, loss=1.0)
    written("evaluation_skipped", first=60, last=60, places=1, units=66, why="the one before it took too long")
    reporter.entered(harness.asp, 66)
    assert reporter.measured_until(applied=52) == 60, "whatever the last commit has"
    written("evaluation", examples=8, accuracy=0.5, loss=1.0)
    assert reporter.measured_until(applied=52) == 60, "a line may lack its units"


def test_place_whose_evaluation_gives_no_figures_is_reported_and_a_restarted_chief_leaves_it(harness: Harness) -> None:
    reporter = harness.reporter
    harness.recorder.events.write("run_started", phase=0, reason="fresh")
    reporter.entered(harness.bsp, 0)
    reporter.evaluated(61, 0.5, lambda: Measured({}, 0.5), 60)
    reporter.evaluated(75, 0.5, lambda: 1 / 0)  # at the end of a phase, between two places
    reporter.evaluated(80, 0.5, lambda: 1 / 0, 80)
    reporter.evaluated(90, 0.5, lambda: None, 90)  # the task measures nothing
    skipped = events_of(harness.workdir, "evaluation_skipped")
    assert [(event["first"], event["last"], event["units"]) for event in skipped] == [(60, 60, 61), (80, 80, 80)]
    assert {event["why"] for event in skipped} == {"its evaluation gave no figures"}
    assert reporter.measured_until(applied=70) == 80


def test_a_run_says_at_its_end_how_many_evaluations_it_left_out(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(harness.reporter, "show_line", shown.append)
    harness.reporter.skipped((20, 40), 61, "a save was under way")
    harness.reporter.skipped((60,), 66, "a save was under way")
    harness.reporter.finish("completed", None)
    assert shown[-2].startswith("3 evaluations of telemetry.evaluate_units=")
