"""What is refused of a run's record before anything is computed, on a record that is written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridsync.core.errors import WorkdirError
from hybridsync.lab.replay.logged_run import read_record

ENTERED = {
    "kind": "phase_entered", "phase": 1, "units": 0, "protocol": "bsp", "members": [0, 1], "lane": 0,
    "fingerprint": "f",
}  # fmt: skip


STARTED = {"kind": "run_started", "phase": 0, "reason": "start", "runtime": "inprocess"}


def record(workdir: Path, started: dict[str, Any] = STARTED, **fields: Any) -> Path:
    """Write a run of one lock-step update of three units, whose phase was entered with `fields`."""
    events = [
        started,
        {**ENTERED, **fields},
        {"kind": "run_finished", "phase": 1, "exit": "completed"},
    ]
    update = {
        "phase": 1, "sequence": 1, "units": [0, 1, 2], "base": 0, "rate": 3.0, "weight": 3.0, "blend": 1.0,
    }  # fmt: skip
    config = {"config": {"workload": 3, "unit_size": 1, "telemetry": {"apply_log": True}}}
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (workdir / "apply_log").write_text(json.dumps(update) + "\n")
    return workdir


def test_members_and_their_shares_are_read(tmp_path: Path) -> None:
    (phase,) = read_record(record(tmp_path, shares=[2, 1])).phases
    assert (phase.members, phase.shares, phase.assignment.num_places) == ((0, 1), (2, 1), 3)


@pytest.mark.parametrize(
    "shares", [[2, 1, 1], [3], [0, 0], [-1, 4], [2, 1.0], [True, 2], ["2", "1"], "21", 3, None, {"0": 2}]
)
def test_shares_that_are_not_each_members_units_are_named_with_the_members(tmp_path: Path, shares: Any) -> None:
    with pytest.raises(WorkdirError) as error:
        read_record(record(tmp_path, shares=shares))
    assert str(error.value) == (
        f"the events of {tmp_path} are damaged: phase 1 was entered with the shares {shares} for the members [0, 1], "
        "which are not the units of a step of each; restore events.jsonl"
    )


@pytest.mark.parametrize("members", [[], [0, 0], [-1, 0], ["0", "1"], 2, None])
def test_members_that_are_no_workers_are_named(tmp_path: Path, members: Any) -> None:
    with pytest.raises(WorkdirError) as error:
        read_record(record(tmp_path, members=members))
    assert str(error.value) == (
        f"the events of {tmp_path} are damaged: phase 1 was entered with the members {members}, which are no worker "
        "ids, each once; restore events.jsonl"
    )


@pytest.mark.parametrize(("recorded", "kind"), [({}, "host"), ({"collective": "shm"}, "shm")])
def test_the_collective_is_read_and_that_of_older_runs_is_known(
    tmp_path: Path, recorded: dict[str, Any], kind: str
) -> None:
    (phase,) = read_record(record(tmp_path, {**STARTED, "runtime": "processes", **recorded}, shares=[2, 1])).phases
    assert phase.collective == kind


@pytest.mark.parametrize("collective", ["ring", "", None, 3, ["shm"]])
def test_a_collective_that_nobody_knows_is_named(tmp_path: Path, collective: Any) -> None:
    with pytest.raises(WorkdirError) as error:
        read_record(record(tmp_path, {**STARTED, "runtime": "processes", "collective": collective}))
    assert str(error.value) == (
        f"the events of {tmp_path} say that the run's collective was {collective!r}, which is none of host, shm; "
        "restore events.jsonl, or replay with the version that ran it"
    )


@pytest.mark.parametrize("newest", [[], [0]], ids=["older version", "this version"])
def test_a_push_whose_newest_version_an_older_version_did_not_log_is_refused(tmp_path: Path, newest: list[int]) -> None:
    workdir = record(tmp_path, protocol="psplus")
    update = json.loads((workdir / "apply_log").read_text())
    update["stepped"] = [[0, 1, 0, 0, 3, *newest]]  # worker, incarnation, restart count, base, units
    (workdir / "apply_log").write_text(json.dumps(update) + "\n")
    if newest:
        assert read_record(workdir).phases
        return
    with pytest.raises(WorkdirError, match=r"update 1 in phase 1 .*an older version .* replay it with that version"):
        read_record(workdir)


def test_a_phase_is_gone_on_from_by_the_next_one_with_updates_and_not_by_one_that_was_lost(tmp_path: Path) -> None:
    """Phase 2 began from what phase 1 left at its end; that died, and phase 3 went on from a checkpoint before it."""
    workdir = record(tmp_path, protocol="localsgd", fingerprint="start")
    first = json.loads((workdir / "apply_log").read_text()) | {"stepped": [[0, 1, 0, 0, 3, 0]]}
    then = first | {"phase": 3, "sequence": 2, "units": [3, 4, 5], "base": 1, "stepped": [[0, 1, 0, 1, 3, 0]]}
    left = {"phase": 1, "sequence": 1, "left": [[0, 1]]}
    lines = [first, left, then, {"phase": 3, "sequence": 2, "left": [[0, 1]]}]
    (workdir / "apply_log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entered = [
        {**ENTERED, "protocol": "localsgd", "phase": phase, "units": units, "fingerprint": fingerprint}
        for phase, units, fingerprint in [(1, 0, "start"), (2, 3, "lost"), (3, 3, "kept"), (4, 6, "lost, too")]
    ]
    events = [STARTED, *entered, {"kind": "run_finished", "phase": 4, "exit": "completed"}]
    (workdir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    phases = read_record(workdir).phases
    assert [(phase.number, phase.left, phase.after) for phase in phases] == [(1, ((0, 1),), "kept"), (3, ((0, 1),), "")]
