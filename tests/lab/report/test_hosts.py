"""The report's table of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.report.hosts import HostRow, hosts
from hybridsync.lab.report.page import page
from hybridsync.lab.report.reading import shown_record
from tests.lab.report.workdirs import completed


def started(t: float, worker: int, host: str) -> dict:
    return {"kind": "role_started", "t": t, "role": "worker", "id": worker, "host": host}


def left(t: float, worker: int) -> dict:
    return {"kind": "worker_left", "t": t, "worker": worker}


EVENTS = [
    *(started(0.0, worker, host) for worker, host in enumerate("aab")),
    {"kind": "role_started", "t": 0.0, "role": "server", "id": 0, "host": "c"},
    left(4.0, 2),
    started(6.0, 2, "a"),
    left(7.0, 0),
    {"kind": "run_started", "t": 8.0, "reason": "resume"},
    started(9.0, 2, "b"),
]
LINES = [{"applied_by": {"a": {"0": 8, "1": 8}}}, {}, {"applied_by": {"a": {"2": 4}, "b": {"2": 5}}}]


def test_a_host_has_the_time_in_which_one_of_its_workers_was_there() -> None:
    assert hosts(EVENTS, LINES, 25, 10.0) == (
        HostRow("a", (0, 1, 2), 20, 8.0 - 1.0 + 0.0),
        HostRow("b", (2,), 5, 4.0 + 1.0),
    )


def test_units_are_brought_up_to_those_applied_and_a_server_makes_no_host() -> None:
    assert [row.units for row in hosts(EVENTS, LINES, 50, 10.0)] == [40, 10]
    assert [row.units for row in hosts(EVENTS, [], 50, 10.0)] == [0, 0], "a run of an earlier version"
    assert hosts([started(0.0, 0, "a"), *EVENTS[3:4]], LINES[:1], 16, 10.0) == ()


def test_the_page_has_the_table_where_there_are_several(tmp_path: Path) -> None:
    folder = completed(tmp_path / "one")
    assert "What each host contributed" not in page([shown_record(folder, "one")])
    events, metrics = folder / "events.jsonl", folder / "metrics.jsonl"
    first, rest = events.read_text().split('"host":"here"', 1)
    events.write_text(first + '"host":"<x>"' + rest)
    lines = metrics.read_text().replace('"applied_by":{}', '"applied_by":{"<x>":{"0":30},"here":{"1":70}}')
    metrics.write_text(lines)
    text = page([shown_record(folder, "two")])
    assert "What each host contributed" in text and "<td>&lt;x&gt;</td>" in text and "<x>" not in text
    metrics.write_text(lines.replace('{"0":30}', '{"0":"many"}'))
    assert shown_record(folder, "two").num_unreadable == len(metrics.read_text().splitlines())


def test_a_worker_that_starts_without_a_host_is_a_damaged_record(tmp_path: Path) -> None:
    folder = completed(tmp_path / "one")
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"host":"here",', "", 1))
    with pytest.raises(WorkdirError, match=r"host"):
        shown_record(folder, "one")
