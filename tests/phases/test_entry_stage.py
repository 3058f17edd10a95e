"""Entering a phase whose members are to meet in a new process group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hybridsync.chief.ledger import Ledger
from hybridsync.collectives.backend import NO_GROUP
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.config import RunConfig, TelemetryConfig
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.phase import Phase
from hybridsync.phases.controller_state import ControllerState
from hybridsync.phases.entry_stage import EntryStage
from hybridsync.phases.process_groups import APART, NONE, ProcessGroups
from hybridsync.phases.schedule import Segment
from hybridsync.telemetry.switch_costs import StageTimer
from tests.roles import CHIEF, WORKLOAD
from tests.roles import Start as StartingState
from tests.telemetry.clocks import ManualClock


class Members:
    """Live workers, each with the process group that it has joined."""

    def __init__(self, groups: dict[int, str]) -> None:
        self.groups = groups

    def live_workers(self) -> tuple[int, ...]:
        return tuple(sorted(self.groups))

    def process_groups(self, workers: tuple[int, ...]) -> set[str]:
        return {self.groups[worker] for worker in workers}

    def evict(self, worker: int, reason: str) -> None:
        del self.groups[worker]


class Entry:
    """The entry into a lock-step phase of three workers.

    Args:
      groups: live workers, and what they have joined.
      renewals: the same once they are back, for each time that all start again.
    """

    def __init__(self, groups: dict[int, str], *renewals: dict[int, str]) -> None:
        self.members, self.renewals = Members(groups), list(renewals)
        self.told, self.announced, self.awaited = list[str](), list[Phase](), list[tuple[int, ...]]()
        state = ControllerState(StartingState().snapshot, CHIEF, "planned", phase_id=PhaseId(1, 77))
        control: Any = SimpleNamespace(
            members=self.members, ledger=Ledger(WORKLOAD), announce=lambda phase, left_out: self.announced.append(phase)
        )
        source: Any = SimpleNamespace(publish=lambda: state.snapshot)
        policy_driver: Any = SimpleNamespace(
            next_segment=lambda units: Segment("bsp", WORKLOAD, 1),
            members=self.members.live_workers,
            shares=lambda members: (),
            left_out=lambda phase: frozenset(),
        )
        arrivals: Any = SimpleNamespace(await_needed=lambda mode: None, await_again=self.await_again)
        reporter: Any = SimpleNamespace(tick=lambda: None, entered=lambda *told: None)
        pace: Any = SimpleNamespace(begin=lambda: None)
        upkeep: Any = SimpleNamespace(take_fenced=list)
        unused: Any = None
        config = RunConfig(workload=WORKLOAD, unit_size=8, workers=3, telemetry=TelemetryConfig(evaluate_units=40))
        groups_of_run = ProcessGroups(control, source, CHIEF, unused, lambda: None, self.told.append, NUM_DEVICES)
        self._stage = EntryStage(
            *(state, config, 0, control, dict, unused),
            policy_driver=policy_driver,
            arrivals=arrivals,
            process_groups=groups_of_run,
            entering=unused,
            pace=pace,
            reporter=reporter,
            timer=StageTimer(ManualClock(), lambda *span: None),
            upkeep=upkeep,
        )

    def await_again(self, workers: tuple[int, ...]) -> None:
        self.awaited.append(workers)
        self.members.groups.update(self.renewals.pop(0))

    def announce(self) -> Phase:
        self._stage.announce()
        return self.announced[-1]


def test_workers_that_have_met_enter_as_they_are():
    entry = Entry({0: "first", 1: "first"})
    phase = entry.announce()
    assert phase.members == (0, 1) and entry.told == [] and phase.evaluate_units == 40


def test_a_host_that_is_lost_while_all_start_again_is_left_out_of_the_phase():
    entry = Entry(dict.fromkeys(range(3), NO_GROUP), {0: "second", 1: "second"})
    assert entry.announce().members == (0, 1)
    assert entry.told == [NONE] and entry.awaited == [(0, 1, 2)]


def test_a_worker_that_comes_while_the_others_meet_without_it_has_all_meet_once_more():
    entry = Entry(
        dict.fromkeys(range(3), NO_GROUP),
        {0: "second", 1: "second", 2: "of its own"},
        dict.fromkeys(range(3), "third"),
    )
    assert entry.announce().members == (0, 1, 2)
    assert entry.told == [NONE, APART] and entry.awaited == [(0, 1, 2), (0, 1, 2)]
