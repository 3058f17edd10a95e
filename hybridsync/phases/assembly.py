"""Builds the controller of a run from what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hybridsync.chief.run_control import RunControl
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import SLACK_SECS, UNWATCHED, Watching
from hybridsync.interfaces.ports import PhaseIds, ServerPort, SnapshotSource
from hybridsync.phases.checkpointing import Commits, CommitStage, SaveSchedule
from hybridsync.phases.controller import Controller, RunStage, Stages
from hybridsync.phases.entry import EntryStage, ServerEntry, StartCall, side_by_side
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.member_waits import START_DEADLINE_SECS, TICK_SECS, MemberWaits
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import GATHER_SECS, CaptureStage, GatherStage, Recovery, Rejoining
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import CommittedSource, ControllerState, RunContext, Start
from hybridsync.policies.online import Policy, policy_of
from hybridsync.telemetry.switch_costs import StageTimer
from hybridsync.training.run import Run

LONG_UNIT_SECS = 6.0
"""A restarted chief assumes that a unit takes this long, until it has seen one."""


@dataclass(frozen=True, kw_only=True)
class ControllerSpec:
    """What stands around a run's controller. Its defaults are those of a first chief whose roles are processes."""

    servers: Callable[[], Mapping[str, ServerPort]]
    """Returns the servers by address; called when they are needed."""
    holder_at: Callable[[str], SnapshotSource]
    """Returns the role at an address that can take a snapshot of the state."""
    phase_ids: PhaseIds
    """Reserves phase numbers."""
    committer: Commits
    """Commits and evaluates in the background of the training."""
    reporter: Reporter
    committed_source: CommittedSource
    """Source of the last committed state, used if no role holds a newer one."""
    clock: Clock
    """For stage times and deadlines."""
    threads: bool = False
    """Roles are threads of this process, which cannot be given up."""
    renew: Callable[[], None] = lambda: None
    """Has every worker's process started again in a new process group; threads have none that could be used up."""
    forget: Callable[[int], object] = lambda sequence: None
    """Called with the sequence of the state that a run continues from when later updates are lost."""
    restarted: bool = False
    """An earlier controller brought the run to its current phase; roles may be in the middle of it."""
    restarts: bool = False
    """The run is saved and ends at each planned switch; whoever started it starts all roles again."""
    num_devices: int = NUM_DEVICES
    """Local devices of each worker, among which a mesh chooses."""
    tick_secs: float = TICK_SECS
    """Interval at which a phase is checked of which no news arrives."""
    policy: Policy | None = None
    """For stragglers in lock-step; None takes the configuration's."""
    begin: StartCall = side_by_side
    """Begins the call by which a server enters a phase."""
    watchdog: Watching = UNWATCHED
    """The watchdog of the process."""


def assemble(run: Run, control: RunControl, start: Start, spec: ControllerSpec) -> Controller:
    """Return the controller of one run.

    Args:
      run: what to run.
      control: members, leases, announcements.
      start: the state to start from.
      spec: what stands around the controller.
    """
    config, clock, reporter, watchdog = run.config, spec.clock, spec.reporter, spec.watchdog
    state = ControllerState(start.snapshot, start.source, start.reason, start.phase_number)
    timer = StageTimer(clock, reporter.span)
    pace = ProgressWatchdog(control, config.hang, config.drain_secs, clock, reporter, threads=spec.threads)
    policy_driver = PolicyDriver(
        run, control, reporter, spec.policy or policy_of(config.policy), clock, detours=start.detours
    )
    saving = SaveSchedule(
        run,
        control,
        spec.committer,
        reporter,
        clock,
        submitted=start.snapshot if start.committed else None,
        detours=policy_driver.saved_detours,
        watchdog=watchdog,
    )
    process_groups = ProcessGroups(
        control,
        spec.committed_source,
        chief_address=start.source,
        holder_at=spec.holder_at,
        renew=spec.renew,
        tell=reporter.renewed,
        num_devices=spec.num_devices,
    )
    # The upkeep comes first: everything built below calls its tick while it waits.
    upkeep = Housekeeping(
        state,
        control,
        spec.servers,
        pace=pace,
        saving=saving,
        process_groups=process_groups,
        reporter=reporter,
        watchdog=watchdog,
    )
    context = RunContext(
        config=config,
        control=control,
        state=state,
        reporter=reporter,
        saving=saving,
        pace=pace,
        timer=timer,
        clock=clock,
        tick=upkeep.tick,
        watchdog=watchdog,
    )
    arrivals = MemberWaits(control, config, clock, upkeep.tick, reporter.show_line)
    recovery = Recovery(
        context,
        spec.holder_at,
        spec.committed_source,
        chief_address=start.source,
        gather_secs=START_DEADLINE_SECS if spec.threads else GATHER_SECS,
    )
    commit, capture_stage = CommitStage(context), CaptureStage(context, spec.holder_at)
    gather = GatherStage(
        context,
        recovery,
        process_groups,
        upkeep,
        spec.forget,
        guess_secs=LONG_UNIT_SECS if spec.restarted else 0.0,
    )
    entry = EntryStage(
        context,
        spec.servers,
        spec.phase_ids,
        policy_driver=policy_driver,
        arrivals=arrivals,
        process_groups=process_groups,
        # Not `tick`, which calls on servers that may not have entered yet.
        entering=ServerEntry(control, clock, upkeep.look_around, reporter.show_line, spec.begin),
        upkeep=upkeep,
    )
    rejoining = Rejoining(
        context,
        arrivals,
        policy_driver,
        process_groups=process_groups,
        capture_stage=capture_stage,
        gather=gather,
    )
    return Controller(
        context,
        start,
        Stages(
            control=control,
            run=RunStage(context, policy_driver, commit, spec.tick_secs, restarts=spec.restarts),
            capture_stage=capture_stage,
            gather=gather,
            entry=entry,
            commit=commit,
        ),
        arrivals=arrivals,
        rejoining=rejoining if spec.restarted else None,
        committer=spec.committer,
        forget=spec.forget,
        stage_secs=SLACK_SECS + (config.workers + config.servers + 4) * transfer_secs(start.snapshot.num_bytes),
    )
