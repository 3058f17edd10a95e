"""Builds the controller of a run from what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from hybridsync.chief.run_control import RunControl
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import SLACK_SECS, UNWATCHED, Watching
from hybridsync.interfaces.ports import PhaseIds, ServerPort, SnapshotSource
from hybridsync.phases.checkpointing import Commits, CommitStage, SaveSchedule
from hybridsync.phases.controller import Controller, Stages
from hybridsync.phases.entry import Begin, EntryStage, ServerEntry, side_by_side
from hybridsync.phases.housekeeping import Housekeeping
from hybridsync.phases.member_waits import START_DEADLINE_SECS, TICK_SECS, MemberWaits
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.progress_watchdog import ProgressWatchdog
from hybridsync.phases.recovery import GATHER_SECS, CaptureStage, GatherStage, Recovery, Rejoining
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import CommittedSource, ControllerState, Start
from hybridsync.phases.run_stage import RunStage
from hybridsync.policies.online import Policy, policy_of
from hybridsync.telemetry.switch_costs import StageTimer
from hybridsync.training.run import Run

LONG_UNIT_SECS = 6.0
"""A restarted chief assumes that a unit takes this long, until it has seen one."""


def assemble(
    run: Run,
    control: RunControl,
    start: Start,
    *,
    servers: Callable[[], Mapping[str, ServerPort]],
    holder_at: Callable[[str], SnapshotSource],
    phase_ids: PhaseIds,
    committer: Commits,
    reporter: Reporter,
    committed_source: CommittedSource,
    clock: Clock,
    threads: bool = False,
    renew: Callable[[], None] = lambda: None,
    forget: Callable[[int], object] = lambda sequence: None,
    restarted: bool = False,
    num_devices: int = NUM_DEVICES,
    tick_secs: float = TICK_SECS,
    policy: Policy | None = None,
    begin: Begin = side_by_side,
    watchdog: Watching = UNWATCHED,
) -> Controller:
    """Return the controller of one run.

    Args:
      run: what to run.
      control: members, leases, announcements.
      start: the state to start from.
      servers: returns the servers by address; called when they are needed.
      holder_at: returns the role at an address that can take a snapshot of the state.
      phase_ids: reserves phase numbers.
      committer: commits and evaluates in the background of the training.
      reporter: writes the record.
      committed_source: source of the last committed state, used if no role holds a newer one.
      clock: clock for stage times and deadlines.
      threads: roles are threads of this process, which cannot be given up.
      renew: has every worker's process started again in a new process group; threads have none that could be used up.
      forget: called with the sequence of the state that a run continues from when later updates are lost.
      restarted: an earlier controller brought the run to its current phase; roles may be in the middle of it.
      num_devices: local devices of each worker, among which a mesh chooses.
      tick_secs: interval, in seconds, at which a phase is checked of which no news arrives.
      policy: policy for stragglers in lock-step; None takes the configuration's.
      begin: begins the call by which a server enters a phase.
      watchdog: watchdog of the process.
    """
    config, workload, chief_address = run.config, run.config.workload, start.source
    state = ControllerState(start.snapshot, start.source, start.reason)
    timer = StageTimer(clock, reporter.span)
    pace = ProgressWatchdog(control, config.hang, config.drain_secs, clock, reporter, threads=threads)
    policy_driver = PolicyDriver(run, control, reporter, policy or policy_of(config.policy), clock, start.detours)
    submitted = start.snapshot if start.committed else None
    saving = SaveSchedule(run, control, committer, reporter, clock, submitted, policy_driver.saved_detours, watchdog)
    process_groups = ProcessGroups(
        control, committed_source, chief_address, holder_at, renew, reporter.renewed, num_devices
    )
    # The upkeep comes first: everything built below calls its tick while it waits.
    upkeep = Housekeeping(state, control, servers, pace, saving, process_groups, reporter, watchdog)
    arrivals = MemberWaits(control, config, clock, upkeep.tick, reporter.show_line)
    entering = ServerEntry(control, clock, upkeep.look_around, reporter.show_line, begin)
    gather_secs = START_DEADLINE_SECS if threads else GATHER_SECS
    await_newer = partial(saving.await_newer, tick=upkeep.tick)
    recovery = Recovery(
        control,
        holder_at,
        committed_source,
        chief_address,
        clock,
        await_newer,
        config.hang,
        gather_secs,
        watchdog,
    )

    commit = CommitStage(state, start.phase_number, control, pace, saving, reporter, upkeep.tick)
    capture_stage = CaptureStage(state, workload, control, holder_at, pace, saving, reporter, timer, upkeep.tick)
    guess_secs = LONG_UNIT_SECS if restarted else 0.0
    gather = GatherStage(
        state, workload, control, pace, recovery, process_groups, reporter, timer, upkeep, forget, guess_secs
    )
    entry = EntryStage(
        state,
        config,
        start.phase_number,
        control,
        servers,
        phase_ids,
        policy_driver=policy_driver,
        arrivals=arrivals,
        process_groups=process_groups,
        entering=entering,
        pace=pace,
        reporter=reporter,
        timer=timer,
        upkeep=upkeep,
    )
    watch = RunStage(state, workload, control, pace, policy_driver, saving, commit, upkeep.tick, tick_secs)
    rejoining = (
        Rejoining(state, control, arrivals, policy_driver, process_groups, reporter, capture_stage, gather)
        if restarted
        else None
    )
    return Controller(
        workload,
        control,
        start,
        state,
        Stages(control, watch, capture_stage, gather, entry, commit),
        arrivals=arrivals,
        rejoining=rejoining,
        saving=saving,
        committer=committer,
        reporter=reporter,
        forget=forget,
        stage_secs=SLACK_SECS + (config.workers + config.servers + 4) * transfer_secs(start.snapshot.num_bytes),
        watchdog=watchdog,
    )
