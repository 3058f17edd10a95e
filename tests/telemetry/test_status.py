"""Where a run stands, in words: a running one by what its chief says, another one by what it left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.telemetry.events import EVENTS_FILE
from hybridsync.telemetry.status import RunStatus, answered, as_json, lines_of, written_status
from tests.telemetry.test_prometheus import ON_HOSTS, STATUS


def test_a_running_run_is_shown_in_lines() -> None:
    status = replace(STATUS, protocol="ssp", ordered="asp")
    assert lines_of(answered(status)) == [
        "run         running, 12.5 s",
        "phase       3: ssp to unit 50 (ordered); asp is ordered",
        "units       30 of 100 applied, 40 issued, 2 dropped, 8 outstanding, 1 rolled back",
        "rate        8 units/s",
        "loss        0.25",
        "staleness   max 4",
        "switches    2 switches, stalls of 0.5 s",
        "restarts    1",
        "checkpoint  unit 20, 3 s ago",
        "evaluation  unit 10: accuracy 0.5",
        "evaluation  unit 20: accuracy 0.75",
        "server 0    training",
        "worker 0    training, 6 units/s, pid 7",
        "worker 1    starting, slow, 1 restart",
    ]
    assert lines_of(answered(replace(status, is_stopping=True)))[0] == "run         saving and stopping, 12.5 s"
    assert "phase       none yet" in lines_of(answered(replace(status, phase=0)))


def test_json_has_figures_by_name() -> None:
    found = json.loads(json.dumps(as_json(answered(STATUS))))
    assert found["state"] == "running" and found["exit"] == ""
    assert found["figures"] == {"loss": 0.25, "units_per_sec": 8.0, "staleness_max": 4.0, "learning_rate": 0.1}
    assert found["evaluations"][-1] == {"units": 20, "accuracy": 0.75}
    assert found["members"][1]["sent_bytes"] == 640


def test_a_run_on_several_hosts_is_told_of_by_host() -> None:
    lines = lines_of(answered(ON_HOSTS))
    assert lines[-5:] == [
        "host        a: 21 units, 6 units/s (worker 0: 17, 1: 4)",
        "host        b: 9 units, 2 units/s (worker 1: 9)",
        "server 0    training",
        "worker 0    training, on a, 6 units/s, pid 7",
        "worker 1    training, on b, 2 units/s, 1 restart, pid 8",
    ]
    found = json.loads(json.dumps(as_json(answered(ON_HOSTS))))
    assert found["hosts"] == {
        "a": {"units": 21, "units_per_sec": 6.0, "workers": {"0": 17, "1": 4}},
        "b": {"units": 9, "units_per_sec": 2.0, "workers": {"1": 9}},
    }
    assert sum(host["units"] for host in found["hosts"].values()) == found["applied"]
    assert as_json(answered(STATUS))["hosts"] == {}


def test_a_run_that_has_ended_is_told_of_by_host_as_its_files_say(tmp_path: Path) -> None:
    started = [
        event("role_started", t, role="worker", id=worker, pid=pid, host=host, address="")
        for t, worker, pid, host in ((0.5, 0, 1, "a"), (0.5, 1, 2, "b"), (4.0, 1, 3, "a"))
    ]
    folder = left(tmp_path, *started)
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    line["applied_by"] = {"a": {"0": 15, "1": 4}, "b": {"1": 19}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    status = written_status(folder).status
    assert status.applied == 40 and sum(each.units for each in status.hosts) == 40
    assert [(each.host, each.worker, each.units) for each in status.hosts] == [("a", 0, 16), ("a", 1, 4), ("b", 1, 20)]
    assert [member.host for member in status.members] == ["", "a", "a"]


def event(kind: str, t: float, **fields: object) -> str:
    return json.dumps({"t": t, "wall": t, "kind": kind, "phase": 1, **fields}) + "\n"


def left(workdir: Path, *events: str) -> Path:
    """Leave what a run of 100 units leaves, with 40 of them in its last line of metrics."""
    config = {"config": {"workload": 100, "unit_size": 8, "workers": 2, "servers": 1}, "run": "x"}
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / EVENTS_FILE).write_text(
        event("run_started", 0.0, reason="start")
        + event("phase_entered", 1.0, protocol="asp", reason="start")
        + event("checkpoint", 2.0, units=24, bytes=10)
        + "".join(events)
    )
    line = {"t": 3.0, "units": 40, "examples": 320, "examples_per_sec": 80.0, "loss": 0.5, "learning_rate": 0.1}
    line |= {"staleness": {"mean": 1.0, "p95": 2, "max": 3}, "workers": {"0": 40.0, "1": 40.0}}
    (workdir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return workdir


def test_a_run_that_was_killed_is_told_of_by_its_record(tmp_path: Path) -> None:
    status = written_status(left(tmp_path)).status
    assert (status.exit, status.applied, status.checkpoint_units, status.protocol) == ("interrupted", 40, 24, "asp")
    assert [(member.role, member.state, member.units_per_sec) for member in status.members] == [
        ("server", "gone", 0.0),
        ("worker", "gone", 5.0),
        ("worker", "gone", 5.0),
    ]
    assert "checkpoint  unit 24" in lines_of(RunStatus("interrupted", status))


def test_a_run_that_has_ended_is_told_of_by_its_summary(tmp_path: Path) -> None:
    workdir = left(tmp_path, event("run_finished", 4.0, exit="completed"))
    units = {"workload": 100, "issued": 103, "applied": 100, "dropped": 3, "outstanding": 0, "rolled_back": 2}
    staleness = {"mean": 0.5, "p95": 1, "max": 2}
    summary = {"exit": "completed", "units": units, "seconds": 9.0, "staleness": staleness}
    (workdir / "summary.json").write_text(json.dumps(summary))
    status = written_status(workdir).status
    assert (status.exit, status.applied, status.dropped, status.rolled_back) == ("completed", 100, 3, 2)
    assert status.seconds == 9.0 and status.figure("staleness_max") == 2.0


def test_what_is_no_run_or_is_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkdirError, match="holds no run"):
        written_status(tmp_path)
    left(tmp_path, event("switch", 5.0))
    with pytest.raises(WorkdirError, match=r"is damaged \(KeyError\('stall_secs'\)\); restore"):
        written_status(tmp_path)


@pytest.mark.parametrize(
    ("since", "state", "members", "applied"),
    [(5.0, "starting", "starting", 40), (3.0, "ending", "gone", 50)],
)
def test_a_stopped_run_whose_workdir_is_locked_is_starting_or_ending(
    tmp_path: Path, since: float, state: str, members: str, applied: int
) -> None:
    workdir = left(tmp_path, event("run_finished", 4.0, exit="preempted"))
    units = {"workload": 100, "issued": 50, "applied": 50, "dropped": 0, "outstanding": 0, "rolled_back": 0}
    summary = {"exit": "preempted", "units": units, "seconds": 3.0, "staleness": {}}
    (workdir / "summary.json").write_text(json.dumps(summary))
    found = written_status(workdir, since)
    assert (found.state, found.status.applied) == (state, applied) and as_json(found)["state"] == state
    assert {member.state for member in found.status.members} == {members}
    assert lines_of(found)[0] == f"run         {state}, 3 s", "start-up is no time of the run"


def test_a_run_that_goes_on_where_no_command_reaches_it_has_not_ended(tmp_path: Path) -> None:
    found = written_status(left(tmp_path), since=-1.0)
    assert (found.state, found.status.exit, found.status.applied) == ("running, not reachable", "", 40)
    assert {member.state for member in found.status.members} == {"unknown"}


def test_a_resumed_run_that_has_written_no_line_yet_is_where_its_checkpoint_is(tmp_path: Path) -> None:
    status = written_status(left(tmp_path, event("run_started", 4.0, reason="resume", quarantined=[]))).status
    assert (status.applied, status.checkpoint_units, status.figures) == (24, 24, ())
