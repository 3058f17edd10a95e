"""The controller of a run: it follows the phase-change machine and has the stages carry its commands out.

`assemble` builds it from what stands around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from hybridsync.chief.run_state import RunControl
from hybridsync.collectives.device_choice import NUM_DEVICES
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import HybridSyncError, PhaseBroken, Preempted, StoppedShort, described
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import SLACK_SECS, UNWATCHED, Watching
from hybridsync.interfaces.ports import ServerPort, SnapshotSource
from hybridsync.phases import state_machine
from hybridsync.phases.checkpointing import Commits, CommitStage, SaveSchedule
from hybridsync.phases.entry import START_DEADLINE_SECS, EntryStage, MemberWaits, ServerEntry, StartCall, side_by_side
from hybridsync.phases.housekeeping import Housekeeping, ProgressWatchdog
from hybridsync.phases.policy_driver import PolicyDriver
from hybridsync.phases.process_groups import ProcessGroups
from hybridsync.phases.recovery import GATHER_SECS, CaptureStage, GatherStage, Recovery, Rejoining
from hybridsync.phases.reporter import Reporter
from hybridsync.phases.run_context import TICK_SECS, CommittedSource, ControllerState, RunContext, Start
from hybridsync.phases.state_machine import Command, Event, Step, Switching
from hybridsync.policies.online import Policy, policy_of
from hybridsync.telemetry.summary import Summary
from hybridsync.telemetry.switch_costs import StageTimer
from hybridsync.training.run import Run


class RunStage:
    """Watches the current phase.

    Args:
      run: what the stages of a run share.
      policy_driver: knows whether the phase is to be left for another one.
      commits: the commit in progress.
      tick_secs: interval, in seconds, at which a phase is checked of which no news arrives.
      restarts: whether the run is saved and ends at a planned switch.
    """

    def __init__(
        self,
        run: RunContext,
        policy_driver: PolicyDriver,
        commits: CommitStage,
        tick_secs: float,
        *,
        restarts: bool,
    ) -> None:
        self._run, self._policy_driver, self._commits, self._tick_secs = run, policy_driver, commits, tick_secs
        self._restarts = restarts

    def watch(self) -> state_machine.Event:
        """Let the phase run until something is due.

        Raises:
          PhaseBroken: the phase lost a member without which it cannot go on, or a callback has stopped the run.
          WaitTimeout: it stands still, and its workers are threads, which cannot be given up.
        """
        phase = self._run.state.current_phase
        self._run.state.restarts = False  # a phase that was to end so may have broken
        while True:
            over = self._run.control.watch(
                lambda chief: chief.is_over(phase), min(self._tick_secs, self._run.saving.secs_to_retry)
            )
            self._run.tick()
            if self._commits.is_over:
                return self._commits.await_commit()
            with self._run.control.turn() as chief:
                preempted, stop_reason = chief.preempted, chief.stop_reason
                first_applied, _ = chief.phase_members.first_and_last()
                if not over and stop_reason is not None and not phase.mode.has_group_rounds:
                    # A drain would apply all units in hand. The newest state that a role holds is whole, and is found
                    # as after a loss; replicas that meet in groups are one state after a drain alone.
                    chief.break_phase(f"a callback has stopped the run: {stop_reason}")
                    raise chief.as_broken()
            if over or preempted:
                return self._ends()
            self._run.pace.check(phase)
            if first_applied:
                self._run.state.num_broken = 0
            if (leaves := self._policy_driver.change_of(phase)) is not None:
                self._run.state.unit_secs = self._run.pace.unit_secs(phase)
                event, self._run.state.reason = leaves
                return event
            if self._run.saving.is_due(phase):
                return state_machine.Checkpoint()

    def _ends(self) -> state_machine.Event:
        """Return how the phase is left that is over, or that a signal ends."""
        state, phase = self._run.state, self._run.state.current_phase
        state.unit_secs = self._run.pace.unit_secs(phase)
        with self._run.control.turn() as chief:
            preempted = chief.preempted
            is_short = phase.mode.is_short(phase.end_units, chief.phase_members.units_reached())
        if is_short and not preempted:
            state.reason = "dropped"
            return state_machine.Regroup()
        state.reason = "planned"
        is_last = preempted or phase.end_units >= self._run.config.workload
        state.restarts = self._restarts and not is_last
        return state_machine.EndPhase(last=is_last or state.restarts)


@dataclass(frozen=True)
class Stages:
    """Carries out the machine's commands: one class a stage, which share a `ControllerState` and nothing else.

    Args:
      control: control of the run, which opens the leases and ends the run.
      run, capture_stage, gather, entry, commit: stages of the run, one each.
    """

    control: RunControl
    run: RunStage
    capture_stage: CaptureStage
    gather: GatherStage
    entry: EntryStage
    commit: CommitStage

    def execute(self, command: Command) -> Event | None:
        """Carry `command` out; returns what the machine is told of it, None where that is nothing.

        Raises:
          PhaseBroken: a member was lost without which the phase cannot go on.
          Preempted: the run was asked to stop while roles were waited for.
          HybridSyncError: the run cannot go on.
        """
        carry_out: dict[Command, Callable[[], Event | None]] = {
            Command.STOP_LEASES: self.capture_stage.drain,
            Command.CAPTURE: self.capture_stage.capture_final,
            Command.CAPTURE_LIVE: self.capture_stage.capture_live,
            Command.GATHER: self.gather.gather,
            Command.COMMIT: self.commit.submit,
            Command.AWAIT_COMMIT: self.commit.await_commit,
            Command.AWAIT_RETRY: self.commit.await_retry,
            Command.RESERVE: self.entry.reserve,
            Command.ANNOUNCE: self.entry.announce,
            Command.RESUME_LEASES: self._open_leases,
            Command.FINISH: self.control.finish,
        }
        return carry_out[command]()

    def _open_leases(self) -> None:
        with self.control.turn() as chief:
            chief.open_leases()


class Controller:
    """Takes one run from its starting state to its end, in the calling thread (`assemble` builds it).

    Args:
      run: what the stages of a run share.
      start: the state to start from.
      stages: carry the commands out.
      arrivals: waits for the roles that a run begins with.
      rejoining: takes up what an earlier controller left; None for the first one.
      committer: is closed at the end.
      forget: called with the sequence of the state that a run continues from when later updates are lost.
      stage_secs: seconds that one stage may take before the watchdog ends the process.
    """

    def __init__(
        self,
        run: RunContext,
        start: Start,
        stages: Stages,
        *,
        arrivals: MemberWaits,
        rejoining: Rejoining | None,
        committer: Commits,
        forget: Callable[[int], object],
        stage_secs: float,
    ) -> None:
        self._run, self._start, self._stages = run, start, stages
        self._arrivals, self._rejoining, self._committer = arrivals, rejoining, committer
        self._forget, self._stage_secs = forget, stage_secs
        self._switching: Switching | None = None  # that is followed; None before the first phase

    def run(self) -> Summary:
        """Run to the end of the workload or to a preemption; returns the summary that was written.

        An error that is not the run's own comes from a signal's handler of the user's, or from a defect, and may come
        out of any line. The newest state that a role holds is saved in spite of it. Then it is raised, but for
        KeyboardInterrupt: by that the run was preempted.

        Raises:
          HybridSyncError: the run could not go on, or could not save all that was applied when it was asked to stop;
            the summary contains "failed", as for any other exception.
        """
        try:
            try:
                self._train_or_stop(self._train)
            except (KeyboardInterrupt, SystemExit, Exception) as error:
                if isinstance(error, HybridSyncError):
                    raise
                self._save_in_spite_of(error)
                if not isinstance(error, KeyboardInterrupt):
                    raise
            return self._finish()
        except BaseException as error:
            own = isinstance(error, HybridSyncError)
            failure = error if own else HybridSyncError(f"the run was broken off by {described(error)}")
            with self._run.control.turn() as chief:
                chief.waits.fail(failure)  # no role may train on
            self._run.reporter.finish("failed", str(failure))
            raise
        finally:
            self._run.saving.training.set()
            self._run.control.finish()
            self._committer.close()

    def _train_or_stop(self, train: Callable[[], None]) -> None:
        try:
            train()
        except Preempted as asked:  # while those who were to train on were waited for: it names who is missing
            self._run.reporter.show_line(str(asked))
            self._run.state.is_ending = True
            self._commit_newest()

    def _finish(self) -> Summary:
        self._run.saving.collect(all_of_them=True)
        with self._run.control.turn() as chief:
            saved, failure = chief.ledger.num_applied, chief.members.all_quarantined()
            stop_reason, refusal, preempted = chief.stop_reason, chief.refusal, chief.preempted
        completed = saved >= self._run.config.workload
        if not completed and failure is not None:
            raise failure
        if not completed and (lost := self._run.state.lost_at_stop):
            why = self._run.state.lost_why
            raise StoppedShort(
                f"asked to stop, the run has saved {saved:,} units, but not the {lost:,} applied after them: {why}; "
                "run the same command again, which applies them again"
            )
        if completed:
            return self._run.reporter.finish("completed", None)
        how = "restarting" if self._run.state.restarts and not preempted else "preempted"
        return self._run.reporter.finish(how if stop_reason is None else "stopped", refusal or None)

    def _save_in_spite_of(self, error: BaseException) -> None:
        """Break the phase off at whatever stage it is, and commit the newest state that a role holds.

        Raises:
          BaseException: `error`, where nothing could be saved.
        """
        self._run.state.broken_by = f"the run was broken off by {described(error)}"
        with self._run.control.turn() as chief:
            chief.preempt()
            chief.break_phase(self._run.state.broken_by)
        switching = self._switching
        try:
            if switching is None:  # no phase was entered: the state is the one that the run starts from
                self._run.state.is_ending = True
                self._commit_newest()
                return
            # What was under way may have been broken off before it was noted: what is committed now, counts.
            gathering = replace(switching, committing=self._stages.commit.is_under_way, step=Step.GATHER)
            self._train_or_stop(partial(self._follow, gathering, (Command.GATHER,)))
        except Exception as another:  # the error that ends the run is the first one
            raise error from another

    def _train(self) -> None:
        state, commit = self._run.state, self._stages.commit
        if not self._start.committed:
            commit.commit()
        if state.snapshot.held.units >= self._run.config.workload:  # the earlier session had no time for its summary
            self._forget(state.snapshot.held.sequence)  # a group round without units may have followed
            state.evaluates = True
            commit.commit()
            return
        self._follow(*self._begin())

    def _begin(self) -> tuple[Switching, tuple[Command, ...]]:
        """Return the machine to follow, with its first commands: that of an earlier chief's phase, or a new one."""
        if self._rejoining is not None and (taken_up := self._rejoining.rejoin_phase()) is not None:
            return taken_up
        self._arrivals.await_all()
        self._run.reporter.tick()
        return state_machine.start(self._start.phase_number)

    def _follow(self, switching: Switching, commands: tuple[Command, ...]) -> None:
        """Carry the machine's commands out, and tell it what came of each, until it is done."""
        queue = deque(commands)
        while queue or switching.step is not Step.DONE:
            self._switching = switching
            doing = queue[0].name if queue else Step.RUN.name
            try:
                with self._run.watchdog.work(f"the stage {doing}", self._stage_secs):
                    event = self._stages.execute(queue.popleft()) if queue else self._stages.run.watch()
            except PhaseBroken as broken:
                self._run.state.broken_by = str(broken)
                queue.clear()  # they belong to the way that is broken off
                event = state_machine.Broken()
            if event is not None:
                switching, commands = state_machine.advance(switching, event)
                self._run.state.is_ending = switching.step is Step.DONE
                queue.extend(commands)

    def _commit_newest(self) -> None:
        """Commit the newest state that somebody holds; whoever held the last one may be gone."""
        commit = self._stages.commit
        while commit.is_under_way or not commit.covers_newest:
            if not commit.is_under_way:
                commit.submit()
            if isinstance(commit.await_commit(), state_machine.CommitFailed):
                self._stages.gather.gather()


LONG_UNIT_SECS = 6.0
"""A restarted chief assumes that a unit takes this long, until it has seen one."""


@dataclass(frozen=True, kw_only=True)
class ControllerSpec:
    """What stands around a run's controller. Its defaults are those of a first chief whose roles are processes."""

    servers: Callable[[], Mapping[str, ServerPort]]
    """Returns the servers by address; called when they are needed."""
    holder_at: Callable[[str], SnapshotSource]
    """Returns the role at an address that can take a snapshot of the state."""
    reserve_phase: Callable[[int], PhaseId]
    """Returns the next phase, with a number above all handed out and above the given one."""
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
        spec.reserve_phase,
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
