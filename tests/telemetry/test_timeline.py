import json
import os
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.errors import WorkdirTaken
from hybridsync.interfaces.reports import Span
from hybridsync.telemetry.events import Elapsed
from hybridsync.telemetry.timeline import Timeline
from tests.telemetry.clocks import ManualClock, running


def _step(start: float, phase: int = 1) -> Span:
    return Span("step", "sync", start, 0.5, phase, 4)


def _read(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "timeline.json").read_text())


def _spans(workdir: Path) -> list[dict[str, Any]]:
    return [event for event in _read(workdir)["traceEvents"] if event["ph"] == "X"]


def test_spans_become_complete_events_in_microseconds_of_the_runs_time(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, running(ManualClock(now=100.0)))
    timeline.add("worker", 3, [_step(102.0)])
    timeline.write()
    assert _spans(tmp_path) == [
        {
            "ph": "X",
            "name": "step",
            "cat": "sync",
            "pid": 10_003,
            "tid": 0,
            "ts": 2_000_000.0,
            "dur": 500_000.0,
            "args": {"phase": 1, "units": 4},
        }
    ]


def test_spans_before_a_sessions_first_unit_are_left_out_and_one_that_reaches_over_it_begins_there(
    tmp_path: Path,
) -> None:
    elapsed = Elapsed(ManualClock(now=100.0), 7.0)
    timeline = Timeline(tmp_path, elapsed)
    timeline.add("chief", 0, [Span("enter", "switch", 101.0, 3.0, 1, 0)])
    elapsed.begin(105.0)
    timeline.add("worker", 3, [_step(102.0), _step(104.75), _step(106.0)])
    timeline.write()
    assert [(span["ts"], span["dur"]) for span in _spans(tmp_path)] == [(7e6, 250_000.0), (8e6, 500_000.0)]


def test_each_role_is_one_process_row_and_each_category_one_thread_row(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, running(ManualClock()))
    timeline.add("worker", 0, [_step(1.0), Span("compute", "worker", 1.0, 0.4, 1, 1)])
    timeline.add("server", 0, [Span("apply", "server", 2.0, 0.1, 2, 1)])
    timeline.add("chief", 0, [Span("drain", "switch", 2.0, 0.1, 2, 0)])
    timeline.write()
    rows = [event for event in _read(tmp_path)["traceEvents"] if event["ph"] == "M"]
    processes = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    threads = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert sorted(processes.values()) == ["chief", "server 0", "worker 0"]
    assert {(processes[pid], name) for (pid, _), name in threads.items()} == {
        ("worker 0", "sync"),
        ("worker 0", "worker"),
        ("server 0", "server"),
        ("chief", "switch"),
    }
    assert all(threads[span["pid"], span["tid"]] == span["cat"] for span in _spans(tmp_path))


def test_a_long_phase_keeps_its_two_ends_and_says_how_much_it_left_out(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, running(ManualClock(now=0.0)), per_phase=4)
    timeline.add("worker", 0, [_step(float(second)) for second in range(10)])
    timeline.add("worker", 0, [_step(20.0, phase=2)])
    timeline.write()
    assert [span["ts"] / 1e6 for span in _spans(tmp_path)] == [0, 1, 8, 9, 20]
    assert _read(tmp_path)["otherData"]["left_out"] == 6


def test_the_file_never_exceeds_its_limit_and_loses_the_oldest_first(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, running(ManualClock(now=0.0)), limit=3)
    timeline.add("worker", 0, [_step(float(phase), phase) for phase in range(1, 6)])
    timeline.write()
    assert [span["args"]["phase"] for span in _spans(tmp_path)] == [3, 4, 5]
    assert _read(tmp_path)["otherData"]["left_out"] == 2


def test_a_resume_keeps_the_earlier_spans_rows_and_count(tmp_path: Path) -> None:
    first = Timeline(tmp_path, running(ManualClock(now=0.0)), per_phase=2)
    first.add("worker", 1, [_step(1.0), _step(2.0), _step(3.0)])
    first.write()
    second = Timeline(tmp_path, running(ManualClock(now=50.0), 10.0), per_phase=2)
    second.add("worker", 1, [Span("compute", "worker", 51.0, 0.1, 2, 1), _step(51.0, phase=2)])
    second.write()
    spans = _spans(tmp_path)
    assert [(span["cat"], span["ts"] / 1e6) for span in spans] == [
        ("sync", 1),
        ("sync", 3),
        ("worker", 11),
        ("sync", 11),
    ]
    assert len({span["tid"] for span in spans if span["cat"] == "sync"}) == 1
    assert _read(tmp_path)["otherData"]["left_out"] == 1


def test_a_damaged_file_gives_way_to_a_new_timeline(tmp_path: Path) -> None:
    (tmp_path / "timeline.json").write_text('{"traceEvents": [')
    timeline = Timeline(tmp_path, running(ManualClock(now=0.0)))
    timeline.add("worker", 0, [_step(1.0)])
    timeline.write()
    assert len(_spans(tmp_path)) == 1


def test_spans_of_another_host_stand_where_the_chiefs_clock_would_have_put_them(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, running(ManualClock(now=100.0)))
    timeline.add("chief", 0, [_step(102.0)])
    timeline.add("worker", 0, [_step(7_002.0)], offset=-6_900.0)
    timeline.write()
    assert [span["ts"] for span in _spans(tmp_path)] == [2_000_000.0, 2_000_000.0]


def test_a_timeline_without_spans_is_no_damage_to_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elapsed = running(ManualClock())
    Timeline(tmp_path, elapsed).write()
    Timeline(tmp_path, elapsed).write()
    assert "damaged" not in caplog.text
    assert _read(tmp_path)["traceEvents"] == []


# --- sessions that are killed ---


def _timeline(workdir: Path, offset: float = 0.0, **options: Any) -> Timeline:
    return Timeline(workdir, running(ManualClock(now=0.0), offset), **options)


def _starts(workdir: Path) -> list[float]:
    return [span["ts"] / 1e6 for span in _spans(workdir)]


def test_spans_of_a_life_that_was_killed_are_in_the_next_ones_timeline(tmp_path: Path) -> None:
    first = _timeline(tmp_path)
    first.add("worker", 1, [_step(1.0)])
    first.write()
    killed = _timeline(tmp_path, 10.0)
    killed.add("worker", 1, [Span("compute", "worker", 1.0, 0.1, 2, 1), _step(1.0, phase=2)])
    killed.add("chief", 0, [Span("drain", "switch", 2.0, 0.1, 2, 0)])
    killed_too = _timeline(tmp_path, 20.0)
    killed_too.add("worker", 1, [_step(1.0, phase=3)])
    last = _timeline(tmp_path, 30.0)
    last.add("worker", 1, [_step(1.0, phase=4), Span("compute", "worker", 2.0, 0.1, 4, 1)])
    last.write()
    assert _starts(tmp_path) == [1, 11, 11, 12, 21, 31, 32]
    rows = [row for row in _read(tmp_path)["traceEvents"] if row.get("name") == "thread_name"]
    threads = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows}
    assert len(rows) == len(threads) == 3
    assert all(threads[span["pid"], span["tid"]] == span["cat"] for span in _spans(tmp_path))
    assert os.listdir(tmp_path) == ["timeline.json"], "nothing is left to take up"


def test_a_session_that_is_killed_between_the_timeline_and_the_parts_removal_doubles_nothing(tmp_path: Path) -> None:
    timeline = _timeline(tmp_path)
    timeline.add("worker", 1, [_step(1.0)])
    part = (tmp_path / "timeline.part").read_bytes()
    timeline.write()
    (tmp_path / "timeline.part").write_bytes(part)
    _timeline(tmp_path).write()
    assert _starts(tmp_path) == [1]


def test_a_torn_part_keeps_what_stands_before_the_tear(tmp_path: Path) -> None:
    killed = _timeline(tmp_path)
    for second in (1.0, 2.0):
        killed.add("worker", 1, [_step(second)])
    with (tmp_path / "timeline.part").open("ab") as file:
        file.write(b'{"ph":"X","name":"st')
    again = _timeline(tmp_path)
    again.add("worker", 1, [_step(3.0)])
    _timeline(tmp_path).write()
    assert _starts(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b'{"left_out":0}\n', b"[]\n", b'{"after":0,"left_out":0}\n\0\0'])
def test_a_part_that_holds_nothing_is_given_up(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "timeline.part").write_bytes(content)
    timeline = _timeline(tmp_path)
    timeline.add("worker", 1, [_step(1.0)])
    _timeline(tmp_path).write()
    assert _starts(tmp_path) == [1]


def test_the_part_stays_bounded_and_has_what_the_timeline_keeps(tmp_path: Path) -> None:
    bounds = {"per_phase": 4, "compact_above": 20}
    killed = _timeline(tmp_path, **bounds)
    for second in range(100):
        killed.add("worker", 0, [_step(float(second))])
        assert len((tmp_path / "timeline.part").read_bytes().splitlines()) <= 21
    _timeline(tmp_path, **bounds).write()
    starts = _starts(tmp_path)
    assert {0, 1, 98, 99} <= set(starts) and len(starts) <= 20
    assert len(starts) + _read(tmp_path)["otherData"]["left_out"] == 100
    assert os.listdir(tmp_path) == ["timeline.json"]


def test_a_disk_that_refuses_the_part_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    timeline = _timeline(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        timeline.add("worker", 1, [_step(1.0)])
    timeline.add("worker", 1, [_step(2.0)])
    timeline.write()
    assert _starts(tmp_path) == [1, 2]
    assert caplog.text.count("Input/output error") == 1


def test_whose_workdir_was_taken_over_leaves_the_timeline_and_its_part_to_the_other_chief(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fence() -> None:
        raise WorkdirTaken("another chief has it")

    timeline = _timeline(tmp_path, compact_above=20, per_phase=4, fence=fence)
    for second in range(100):
        timeline.add("worker", 0, [_step(float(second))])
    with pytest.raises(WorkdirTaken):
        timeline.write()
    assert os.listdir(tmp_path) == ["timeline.part"]
    assert caplog.text.count("another chief has it") == 1
