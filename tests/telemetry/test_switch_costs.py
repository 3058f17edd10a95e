"""Which switches are written when, and with what: stalls, commits, and those that their chief did not live to write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Snapshot, StateVersion
from hybridsync.telemetry.switch_costs import StageTimes, Switches, commits_switch, lost_switches
from tests.roles import phase_of

TIMES = StageTimes({"drain": 0.1, "capture": 0.2, "reserve": 0.3, "enter": 0.4, "gather": 9.0})
BSP = phase_of(1, "bsp", end=50)
ASP = replace(phase_of(2, "asp", end=100), reason="planned")
OTHERS = replace(BSP, id=PhaseId(2, 0), members=(0, 2, 3), reason="policy")


class Harness:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = [{"from": "asp", "to": "bsp", "stall_secs": None}]
        self.written: list[dict[str, Any]] = []
        self.switches = Switches(self.write, self.told)

    def write(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert kind == "switch"
        self.written.append(fields)
        return fields

    def begin(self, after: Any = ASP, last_applied: float = 10.0, unit_secs: float = 0.5, commits: bool = True) -> None:
        snapshot = Snapshot(1, StateVersion(PhaseId(1, 0), 50, 50, "f"), ((0, 50),), (), 8, 0.0, last_applied)
        self.switches.begin(BSP, after, snapshot, TIMES, unit_secs, commits)


def test_a_switch_is_written_when_both_are_known_in_either_order():
    for commit_first in (False, True):
        harness = Harness()
        harness.begin()
        if commit_first:
            harness.switches.committed(0.75)
        harness.switches.write_known(12.0, 2.0)
        assert bool(harness.written) == commit_first == (not harness.switches.pending)
        harness.switches.committed(0.75)
        harness.switches.write_known(13.0, 2.0)
        (switch,) = harness.written
        assert switch == {
            "from": "bsp",
            "to": "asp",
            "reason": "planned",
            "units": 50,
            "fingerprint": "f",
            "drain_secs": 0.1,
            "capture_secs": 0.2,
            "reserve_secs": 0.3,
            "enter_secs": 0.4,
            "compile_secs": 2.0,
            "commit_secs": 0.75,
            "stall_secs": 1.5,
        }
        assert harness.switches.written == [*harness.told[:1], switch] and not harness.switches.pending


def test_nothing_is_known_of_a_stall_before_the_first_update():
    harness = Harness()
    harness.begin()
    harness.switches.committed(0.75)
    harness.switches.write_known(0.0, 0.0)
    assert harness.switches.pending and harness.written == []


@pytest.mark.parametrize(("last_applied", "unit_secs"), [(0.0, 0.5), (11.75, 0.5)])
def test_a_stall_is_never_negative_and_none_where_nothing_was_applied_before(last_applied: float, unit_secs: float):
    harness = Harness()
    harness.begin(last_applied=last_applied, unit_secs=unit_secs)
    harness.switches.committed(0.75)
    harness.switches.write_known(12.0, 0.0)
    assert harness.written[0]["stall_secs"] == 0.0


def test_a_commit_covers_every_switch_before_it_and_none_behind_it():
    harness = Harness()
    harness.begin()
    harness.switches.write_known(12.0, 0.0)
    harness.begin(replace(ASP, spec="ssp"), last_applied=14.0)
    harness.switches.committed(0.75)
    harness.begin(replace(ASP, spec="gba"), last_applied=18.0)
    harness.switches.write_known(16.0, 0.0)
    assert [(each["to"], each["commit_secs"], each["stall_secs"]) for each in harness.written] == [
        ("asp", 0.75, 1.5),
        ("ssp", 0.75, 1.5),
    ]
    assert harness.switches.pending, "the last one has no commit yet"


def test_a_change_of_members_waits_for_no_commit_and_stalls_are_told_apart_by_the_protocol():
    harness = Harness()
    harness.begin(OTHERS, commits=False)
    harness.switches.write_known(11.0, 0.0)
    harness.begin(last_applied=12.0)
    harness.switches.committed(0.75)
    harness.switches.write_known(14.0, 0.0)
    assert harness.written[0]["commit_secs"] is None
    assert harness.switches.stalls(same_protocol=True) == (0.5,)
    assert harness.switches.stalls(same_protocol=False) == (1.5,), "without the one of which nobody knows any more"


@pytest.mark.parametrize(
    ("after", "reason", "commits"),
    [("asp", "planned", True), ("bsp", "planned", True), ("asp", "policy", True), ("bsp", "policy", False)],
)
def test_a_policys_change_of_members_alone_is_not_committed(after: str, reason: str, commits: bool):
    assert commits_switch("bsp", after, reason) == commits


def entered(protocol: str, units: int, reason: str, phase: int = 1) -> dict[str, Any]:
    fields = {"protocol": protocol, "units": units, "reason": reason, "fingerprint": f"f{units}", "phase": phase}
    return {"kind": "phase_entered", **fields}


def committed(units: int, secs: float) -> dict[str, Any]:
    return {"kind": "checkpoint", "units": units, "secs": secs}


STARTED = {"kind": "run_started"}
BEGAN = (STARTED, entered("bsp", 0, "start"))
SWITCH = {"kind": "switch", "to": "asp", "units": 50, "fingerprint": "f50"}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (BEGAN, []),
        ((*BEGAN, entered("asp", 50, "planned", 2)), [("bsp", "asp", 50, None)]),
        ((*BEGAN, entered("asp", 50, "planned", 2), committed(50, 0.5)), [("bsp", "asp", 50, 0.5)]),
        ((*BEGAN, entered("asp", 50, "planned", 2), committed(60, 0.7)), [("bsp", "asp", 50, 0.7)]),  # its own failed
        ((*BEGAN, committed(40, 0.5), entered("asp", 50, "planned", 2)), [("bsp", "asp", 50, None)]),
        ((*BEGAN, entered("asp", 50, "planned", 2), SWITCH), []),
        ((*BEGAN, entered("bsp", 50, "death", 2)), []),
        ((*BEGAN, entered("bsp", 50, "policy", 2), committed(60, 0.7)), [("bsp", "bsp", 50, None)]),  # of members
        ((*BEGAN, entered("asp", 50, "planned", 2), STARTED, entered("asp", 50, "resume", 3)), []),
    ],
)
def test_a_switch_that_no_chief_has_written_is_found_with_what_is_still_known(
    events: tuple[dict[str, Any], ...], found: list[tuple[str, str, int, float | None]]
):
    lost = lost_switches(events)
    assert [(each["from"], each["to"], each["units"], each["commit_secs"]) for each in lost] == found
    assert all(each["stall_secs"] is None and each["drain_secs"] is None for each in lost)


def test_lost_switches_are_written_under_their_own_phases():
    harness = Harness()
    harness.switches.write_lost((*BEGAN, entered("asp", 50, "planned", 2), entered("bsp", 80, "planned", 3)))
    assert [(each["phase"], each["to"]) for each in harness.written] == [(2, "asp"), (3, "bsp")]
    assert harness.switches.written[1:] == harness.written and not harness.switches.pending
