"""A worker that goes on to report, and never ends its unit: who waits for it, waits no longer than its limit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hybridsync.config import CheckpointConfig, HangConfig
from hybridsync.lab.simulator.cluster import Cluster, Death, Device, Hang, Scenario, Slow
from hybridsync.lab.simulator.event_loop import VirtualClock
from hybridsync.lab.testing.checks import Violation
from hybridsync.lab.testing.schedules import Schedule
from hybridsync.lab.testing.trials import QUICK, Outcome, run_of, try_schedule
from hybridsync.phases import housekeeping, hung_members
from hybridsync.protocols import REGISTRY
from hybridsync.protocols.modes import SERVER
from hybridsync.telemetry.events import NullEventLog
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run
from tests.lab.simulator.runs import tally_run

UNIT_SECS = 0.05
HANG_SECS = 1.0
STUCK_SECS = QUICK.compute_secs
WAITED = (
    *("bsp", "bsp_server", "backup", "backup(m=2)", "ssp(staleness=2)", "dssp(lower=1,range=4)", "hsp"),
    *("psplus(staleness=1)", "localsgd(steps=5)", "diloco(steps=5)", "preduce", "preduce(groups=arrival)", "adpsgd"),
)
ASYNCHRONOUS = [name for name, cls in REGISTRY.items() if cls.mode is SERVER and not cls.awaits_workers]
EVEN = Cluster(devices=(Device(UNIT_SECS),))

Events = list[tuple[float, dict[str, Any]]]


def tried(
    plan: str,
    scenario: Scenario,
    *,
    workers: int = 4,
    units: int = 300,
    save_secs: float = 1.0,
    hang: HangConfig = QUICK,
) -> tuple[Outcome, Events]:
    """Run and check a scenario; returns what came of it, and who was lost when."""
    make = run_of(tally_run())

    def run_with(schedule: Schedule) -> Run:
        run = make(schedule)
        config = dataclasses.replace(run.config, checkpoint=CheckpointConfig(secs=save_secs), hang=hang)
        return dataclasses.replace(run, config=config)

    lost: Events = []

    def recorder_of(clock: VirtualClock) -> Recorder:
        class Log(NullEventLog):
            def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
                if kind == "role_lost":
                    lost.append((clock.monotonic(), {"phase": phase, **fields}))
                return super().write(kind, phase=phase, wall=wall, **fields)

        return dataclasses.replace(Recorder.null(clock), events=Log(clock))

    schedule = Schedule(0, plan, workers, 1, units, frozenset(), scenario)
    outcome = try_schedule(schedule, run_with, recorder_of)
    assert (outcome.exit, outcome.units) == ("completed", units)
    return outcome, lost


def hanging(*workers: int, **more: Any) -> Scenario:
    return Scenario(cluster=EVEN, hangs=tuple(Hang(worker, HANG_SECS) for worker in workers), **more)


def waits_from(plan: str) -> float:
    """Return when somebody waits for a worker that hangs from HANG_SECS on, at the latest."""
    if plan == "backup":  # three of four go on until its units alone are left, which then go to them
        return 7.0
    return HANG_SECS + (6 * UNIT_SECS if "(" in plan or plan == "dssp" else 2 * UNIT_SECS)


@pytest.mark.parametrize("plan", WAITED)
def test_a_worker_that_hangs_while_others_wait_is_given_up_by_name_within_its_limit_and_replaced(plan: str) -> None:
    outcome, lost = tried(plan, hanging(1))
    if plan == "backup(m=2)":  # two of the three others are enough at any time
        assert lost == []
        return
    ((at, event), *more) = lost
    assert (event["role"], event["id"], more) == ("worker", 1, [])
    assert HANG_SECS + STUCK_SECS < at < waits_from(plan) + STUCK_SECS + 2.0, "its word and theirs are a second old"
    assert f"{STUCK_SECS:g} s" in event["reason"] and "worker 1 " in event["reason"]
    assert outcome.rolled_back == 0 or REGISTRY[plan.partition("(")[0]].mode.name == "group"


def test_every_protocol_is_tried() -> None:
    assert {plan.partition("(")[0] for plan in (*WAITED, *ASYNCHRONOUS)} == set(REGISTRY)


@pytest.mark.parametrize("plan", ASYNCHRONOUS)
def test_nobody_is_given_up_whom_nobody_waits_for_and_its_units_go_to_others_at_the_end(plan: str) -> None:
    outcome, lost = tried(plan, hanging(1))
    assert lost == [] and outcome.rolled_back == 0
    assert outcome.seconds < 300 / 3 * UNIT_SECS + 2.0 + 2.0, "the others' time, and drain_secs"


@pytest.mark.parametrize("plan", ["asp:50%,bsp", "asp:50%,preduce", "asp:50%,ssp"])
def test_the_next_phase_waits_no_longer_for_a_worker_that_hangs_in_the_one_before(plan: str) -> None:
    outcome, ((_, event), *more) = tried(plan, hanging(1))
    assert event["id"] == 1 and "computing one unit" in event["reason"] and more == []
    assert outcome.seconds < 15.0 and (outcome.rolled_back == 0 or "preduce" in plan)


@pytest.mark.parametrize("plan", ["asp", "gba", "ssp", "bsp_server", "localsgd(steps=5)", "bsp"])
@pytest.mark.parametrize("workers", [1, 3])
def test_where_everybody_hangs_everybody_is_given_up(plan: str, workers: int) -> None:
    outcome, lost = tried(plan, hanging(*range(workers)), workers=workers, units=60 * workers)
    assert sorted(event["id"] for _, event in lost) == list(range(workers))
    assert max(at for at, _ in lost) < 6.0 and outcome.rolled_back == 0


@pytest.mark.parametrize(
    "plan", ["bsp", "bsp_server", "backup", "ssp", "hsp", "psplus", "localsgd(steps=5)", "preduce", "asp"]
)
@pytest.mark.parametrize(
    "slow",
    [
        (Slow(1, factor=5.0, start_secs=1.0),),
        tuple(Slow(1, factor=2.0, start_secs=1.0 + 4.0 * i) for i in range(3)),  # eight times slower, by and by
        (Slow(1, delay_secs=STUCK_SECS - 0.2, start_secs=1.0, stop_secs=1.5),),
    ],
    ids=["suddenly", "gradually", "once"],
)
def test_a_slow_worker_is_never_given_up(plan: str, slow: tuple[Slow, ...]) -> None:
    slow_unit = Scenario(cluster=Cluster(devices=(Device(0.3),)), slow=slow)
    _, lost = tried(plan, slow_unit, units=80)
    assert lost == []


def test_a_worker_with_many_units_between_two_group_rounds_is_not_given_up_for_them() -> None:
    uneven = Scenario(cluster=Cluster(devices=(Device(0.2), Device(0.2), Device(0.2), Device(0.3))))
    _, lost = tried("preduce(every=30)", uneven, units=800, save_secs=1000.0)
    assert lost == []


@pytest.mark.parametrize("plan", ["ssp", "bsp_server", "hsp"])
def test_a_worker_that_hung_before_the_chief_was_lost_is_given_up_once_by_the_next_one(plan: str) -> None:
    killed, back = 2.0, 6.0
    _, lost = tried(plan, hanging(1, deaths=(Death("chief", 0, killed, back),)))
    ours = [at for at, event in lost if "computing one unit" in event["reason"]]
    assert len(ours) == 1 and ours[0] > killed + back + STUCK_SECS


@pytest.mark.parametrize("plan", ["ssp", "bsp_server", "localsgd(steps=5)", "preduce"])
def test_a_hang_tells_the_same_story_every_time(plan: str) -> None:
    assert tried(plan, hanging(2)) == tried(plan, hanging(2))


def test_a_hang_that_nobody_looks_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no member ever hangs, as before; the schedule stands still and says so."""
    monkeypatch.setattr(housekeeping, "judge", lambda *args, **options: hung_members.Judgement({}, {}))
    with pytest.raises(Violation, match="has not ended after"):
        tried("ssp", hanging(1))


def test_a_limit_that_ignores_how_slow_a_worker_is_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: everybody has two seconds."""
    monkeypatch.setattr(hung_members, "STEPS", 0)
    slow = Scenario(cluster=Cluster(devices=(Device(3.0), Device(0.3))))
    with pytest.raises(AssertionError, match="given up"):
        assert tried("ssp", slow, workers=2, units=60)[1] == [], "somebody was given up"
