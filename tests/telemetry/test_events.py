import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.telemetry.events import FIELDS, EventLog, NullEventLog, read_events
from tests.telemetry.clocks import ManualClock

# The workdir is a promise to other programs: this table is written out a second time on purpose.
PROMISED = {
    "run_started": "",
    "role_started": "role id pid host address",
    "role_lost": "role id reason",
    "phase_entered": "protocol members reason units learning_rate units_per_update",
    "training_started": "start_up_secs",
    "phase_ended": "",
    "switch": "from to reason units drain_secs capture_secs reserve_secs enter_secs commit_secs compile_secs "
    "stall_secs fingerprint",
    "straggler_flagged": "worker rate threshold",
    "straggler_cleared": "worker rate threshold",
    "worker_joined": "",
    "worker_left": "",
    "policy_decided": "policy action workers rates threshold why expected_secs saved_secs cost_secs units_left",
    "switch_ordered": "number protocol units why",
    "order_dropped": "number protocol why",
    "stop_ordered": "why",
    "hang_suspected": "role id doing limit_secs setting",
    "rollback": "to_units rolled_back",
    "evaluation": "examples accuracy loss",
    "evaluation_skipped": "first last places units why",
    "checkpoint": "units bytes secs",
    "save_failed": "units error",
    "user_code_failed": "code error times",
    "unit_quarantined": "unit workers reason",
    "worker_quarantined": "worker reason",
    "world_renewed": "why",
    "run_finished": "",
}


def test_kinds_and_their_fields_are_those_that_readers_rely_on() -> None:
    assert {kind: set(fields) for kind, fields in FIELDS.items()} == {
        kind: set(fields.split()) for kind, fields in PROMISED.items()
    }


def test_a_line_holds_time_kind_phase_and_the_kinds_fields(tmp_path: Path) -> None:
    clock = ManualClock()
    log = EventLog(tmp_path, clock)
    log.elapsed.begin(clock.monotonic())
    clock.advance(1.5)
    written = log.write("checkpoint", phase=2, units=40, bytes=1024, secs=0.25)
    log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [written]
    assert written == {
        "t": 1.5,
        "wall": 1_700_000_001.5,
        "kind": "checkpoint",
        "phase": 2,
        "units": 40,
        "bytes": 1024,
        "secs": 0.25,
    }


def train(log: EventLog, clock: ManualClock, secs: float) -> None:
    """Let a session lease its first unit now, and train for some seconds."""
    log.write("run_started", phase=0)
    log.write("training_started", phase=1, start_up_secs=0.5)
    log.elapsed.begin(clock.monotonic())
    clock.advance(secs)
    log.write("phase_ended", phase=1)
    log.close()


def test_time_stands_still_until_a_sessions_first_unit_is_leased(tmp_path: Path) -> None:
    clock = ManualClock()
    log = EventLog(tmp_path, clock, opened=90.0)
    clock.advance(7.0)
    log.write("run_started", phase=0)
    assert log.elapsed.start_up_secs(clock.monotonic()) == 17.0
    log.write("training_started", phase=1, start_up_secs=16.0)
    log.elapsed.begin(clock.monotonic() - 1.0)
    log.write("phase_ended", phase=1)
    log.close()
    assert [event["t"] for event in read_events(tmp_path)] == [0.0, 0.0, 1.0]


def test_wall_time_of_a_figure_leaves_out_the_pause_before_a_resume(tmp_path: Path) -> None:
    clock = ManualClock()
    first = EventLog(tmp_path, clock)
    assert first.elapsed.wall() == clock.wall()
    began = clock.wall()
    train(first, clock, 7.0)
    assert first.elapsed.wall() == clock.wall()
    clock.advance(1000.0)
    second = EventLog(tmp_path, clock)
    assert second.elapsed.wall() == began + 7.0
    second.elapsed.begin(clock.monotonic())
    clock.advance(2.0)
    assert second.elapsed.wall() == began + 9.0
    second.close()


def test_a_resume_cuts_a_torn_last_line_and_its_time_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    train(EventLog(tmp_path, clock), clock, 7.0)
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"t":7.5,"wall":1.0,"ki')

    later = ManualClock(now=3.0)  # another boot: its monotonic clock is behind
    train(EventLog(tmp_path, later), later, 2.0)
    assert [(event["kind"], event["t"]) for event in read_events(tmp_path)] == [
        ("run_started", 0.0),
        ("training_started", 0.0),
        ("phase_ended", 7.0),
        ("run_started", 7.0),
        ("training_started", 7.0),
        ("phase_ended", 9.0),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t": None}, "t is null, not a number"),
        ({"wall": "noon"}, 'wall is "noon", not a number'),
        ({"kind": 3}, "kind is 3, not a text"),
        ({"phase": -1}, "phase is -1, not a count"),
        *(({name: ...}, f"{name} is missing") for name in ("t", "wall", "kind", "phase")),
    ],
)
def test_a_line_without_what_every_line_holds_is_refused_by_its_number(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    clock = ManualClock()
    train(EventLog(tmp_path, clock), clock, 7.0)
    path = tmp_path / "events.jsonl"
    lines = path.read_text().splitlines()
    edited = {name: value for name, value in {**json.loads(lines[1]), **change}.items() if value is not ...}
    path.write_text("\n".join([lines[0], json.dumps(edited), lines[2], ""]))
    with pytest.raises(WorkdirError, match=f"events.jsonl is damaged in line 2, {said}: restore"):
        EventLog(tmp_path, clock)


@pytest.mark.parametrize(("wall_secs", "outage"), [(12.5, 12.5), (-3600.0, 0.0)], ids=["later", "set-back"])
def test_the_time_without_a_chief_counts_where_the_run_went_on(tmp_path: Path, wall_secs: float, outage: float) -> None:
    clock = ManualClock()
    train(EventLog(tmp_path, clock), clock, 7.0)
    later = ManualClock(now=3.0, wall_now=clock.wall_now + wall_secs)
    log = EventLog(tmp_path, later, restarted=True)
    assert log.elapsed.runs and log.elapsed.at(3.0 - outage - 1.0) == 6.0, "spans of the outage and before it"
    later.advance(2.0)
    log.write("phase_ended", phase=1)
    log.close()
    assert [event["t"] for event in read_events(tmp_path, "phase_ended")] == [7.0, 7.0 + outage + 2.0]


def test_a_chief_restarted_before_the_sessions_first_unit_finds_that_time_stands_still(tmp_path: Path) -> None:
    clock = ManualClock()
    train(EventLog(tmp_path, clock), clock, 7.0)
    log = EventLog(tmp_path, clock)
    log.write("run_started", phase=1)
    log.close()
    clock.advance(5.0)
    log = EventLog(tmp_path, clock, restarted=True)
    assert not log.elapsed.runs and log.elapsed() == 7.0
    log.close()


def test_a_restarted_chief_that_finds_no_line_begins_at_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ManualClock(), restarted=True)
    assert log.write("run_started", phase=0)["t"] == 0.0
    log.close()


def test_bytes_that_never_became_durable_are_cut_as_well(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ManualClock())
    log.write("run_started", phase=0)
    log.close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b"\0" * 40 + b"\n")
    log = EventLog(tmp_path, ManualClock())
    log.write("run_finished", phase=1)
    log.close()
    assert [event["kind"] for event in read_events(tmp_path)] == ["run_started", "run_finished"]


def test_a_reader_meets_whole_lines_only_while_a_line_is_torn(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"t":0.0,"wall":1.0,"kind":"run_started","phase":0}\n{"t":')
    assert [event["kind"] for event in read_events(tmp_path)] == ["run_started"]
    assert read_events(tmp_path, kind="switch") == []


@pytest.mark.parametrize("null", [False, True])
def test_an_unknown_kind_a_missing_field_and_a_phase_that_is_no_number_are_our_bugs(tmp_path: Path, null: bool) -> None:
    not_a_number: Any = (1, 99)
    log = NullEventLog(ManualClock()) if null else EventLog(tmp_path, ManualClock())
    with pytest.raises(AssertionError, match="unknown kind of event 'switched'"):
        log.write("switched", phase=1)
    with pytest.raises(AssertionError, match="a rollback event lacks rolled_back"):
        log.write("rollback", phase=1, to_units=3)
    with pytest.raises(AssertionError, match='cannot be read: to_units is "3", not a count'):
        log.write("rollback", phase=1, to_units="3", rolled_back=1)
    with pytest.raises(AssertionError, match="by number"):
        log.write("run_started", phase=not_a_number)
    log.close()
    assert read_events(tmp_path) == []


def test_an_event_handed_over_later_keeps_the_wall_time_at_which_it_happened(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ManualClock())
    event = log.write("role_lost", phase=1, wall=12.0, role="chief", id=0, reason="SIGKILL")
    assert (event["wall"], event["t"]) == (12.0, 0.0)
    log.close()


def test_numbers_that_json_does_not_know_become_null_and_numpy_scalars_numbers(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ManualClock())
    log.write("evaluation", phase=1, examples=np.int64(8), accuracy=np.float32(0.5), loss=float("nan"))
    log.close()
    assert "NaN" not in (tmp_path / "events.jsonl").read_text()
    event = read_events(tmp_path)[0]
    assert (event["examples"], event["accuracy"], event["loss"]) == (8, 0.5, None)


def test_lines_of_several_threads_stay_whole_and_in_time_order(tmp_path: Path) -> None:
    class Ticking(ManualClock):
        def monotonic(self) -> float:
            self.now += 0.001
            return self.now

    log = EventLog(tmp_path, Ticking())
    log.write("training_started", phase=1, start_up_secs=0.0)
    log.elapsed.begin(100.0)
    threads = [
        threading.Thread(target=lambda: [log.write("phase_ended", phase=1, pad="x" * 500) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    log.close()
    times = [event["t"] for event in read_events(tmp_path)]
    assert len(times) == 201 and times[0] < times[-1]
    assert times == sorted(times)


def test_lines_that_a_full_disk_refuses_wait_and_come_in_order_when_there_is_room(tmp_path: Path, monkeypatch) -> None:
    log = EventLog(tmp_path, ManualClock())
    log.write("run_started", phase=0)
    write, taken = os.write, iter((None, 7))

    def full(descriptor: int, data: bytes) -> int:
        if (size := next(taken, 0)) is None:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for phase in (1, 2, 3):
            log.write("phase_ended", phase=phase)
        assert [event["phase"] for event in read_events(tmp_path)] == [0]
    log.write("run_finished", phase=4)
    log.close()
    assert [event["phase"] for event in read_events(tmp_path)] == [0, 1, 2, 3, 4]


def test_lines_that_still_wait_at_the_end_are_told(tmp_path: Path, monkeypatch) -> None:
    log = EventLog(tmp_path, ManualClock())

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", full)
        log.write("run_started", phase=0)
        log.close()
