"""What each stage of a phase change does: it is let run, drained, captured or gathered, reserved, entered, committed.

`machine.py` says what comes next, and `manager.py` goes by it; what happens here is kept between the stages: the newest
state and who holds it, the phase that it belongs to, and why it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from hybridsync import protocols
from hybridsync.chief.board import Board
from hybridsync.chief.meshes import NUM_DEVICES, Mesh
from hybridsync.clock import Clock
from hybridsync.deadlines import transfer_secs
from hybridsync.errors import CheckpointError
from hybridsync.messages import Capture
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.policies.online import Policy, policy_of
from hybridsync.ports import Epochs, HolderPort, ServerPort
from hybridsync.protocols.modes import SyncMode
from hybridsync.run import Run
from hybridsync.switching import machine
from hybridsync.switching.arrivals import START_DEADLINE_SECS, TICK_SECS, Arrivals
from hybridsync.switching.commits import Commit, Commits
from hybridsync.switching.entering import Begin, Entering, side_by_side
from hybridsync.switching.pace import SILENT_SHARE, Pace
from hybridsync.switching.recovery import GATHER_SECS, GONE, UNREACHED, Keeper, Reach, Recovery, Start, give_up
from hybridsync.switching.reporter import Reporter
from hybridsync.switching.saving import Saving
from hybridsync.switching.steering import Steering
from hybridsync.switching.switches import SWITCHED, StageTimes, commits_switch
from hybridsync.switching.worlds import Worlds, check_replicas
from hybridsync.watching import SLACK_SECS, UNWATCHED, Watching

LONG_UNIT_SECS = 6.0
"""What a restarted chief takes a unit for, until it has seen one."""
MAX_BROKEN = 10
"""How many phases in a row may break before one applies a unit."""
RETRY_SECS = 1.0
"""Between two tries to make a state durable."""


class Stages:
    """Carries the stages out for one run, in the thread of whoever calls them.

    Args:
      run: what to run.
      chief: members, leases, announcements.
      start: the state to start from.
      servers: id -> server, called when it is needed.
      holder_at: address -> role that can capture the state.
      epochs: reserves epoch numbers.
      committer: commits and evaluates behind the training.
      reporter: writes the record.
      keeper: of the last committed state, for when nobody holds a newer one.
      threads: roles are threads of this process, which cannot be given up.
      renew: has every worker's process started again in a new world; threads have none that could be used up.
      forget: called with the sequence of the state that a run goes on from when updates behind it are lost.
      restarted: another manager took the run to where it is; roles may be in the middle of a phase.
      num_devices: local devices of each worker, among which a mesh chooses.
      tick_secs: how often a phase is looked after that nobody tells anything of.
      policy: what is done about stragglers in lock-step; None takes the configuration's.
      begin: begins the call by which a server enters a phase.
      clock: for stage times and deadlines.
      watchdog: of the process.
    """

    def __init__(
        self,
        run: Run,
        chief: Board,
        start: Start,
        *,
        servers: Callable[[], Mapping[str, ServerPort]],
        holder_at: Callable[[str], HolderPort],
        epochs: Epochs,
        committer: Commits,
        reporter: Reporter,
        keeper: Keeper,
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
    ) -> None:
        self._watchdog = watchdog
        num_roles = run.config.workers + run.config.servers
        self._stage_secs = SLACK_SECS + (num_roles + 4) * transfer_secs(start.capture.num_bytes)
        self._run, self._chief, self._start = run, chief, start
        self._servers, self._holder_at, self._epochs = servers, holder_at, epochs
        self._committer, self._reporter, self._clock = committer, reporter, clock
        self._forget, self._restarted, self._tick_secs = forget, restarted, tick_secs
        self._arrivals = Arrivals(chief, run.config, clock, self._tick, reporter.note)
        self._entering = Entering(chief, clock, self._look_around, reporter.note, begin)
        self._pace = Pace(chief, run.config.drain_secs, clock, reporter.note, threads=threads)
        gather_secs = START_DEADLINE_SECS if threads else GATHER_SECS
        submitted = start.capture if start.committed else None
        policy = policy or policy_of(run.config.policy)
        self._steering = steering = Steering(run, chief, reporter, policy, clock, start.detours)
        self._saving = Saving(run, chief, committer, reporter, clock, submitted, steering.told, watchdog)
        await_newer = partial(self._saving.await_newer, tick=self._tick)
        self._recovery = Recovery(chief, holder_at, keeper, start.source, clock, await_newer, gather_secs, watchdog)
        self._worlds = Worlds(chief, keeper, start.source, holder_at, renew, reporter.renewed, num_devices)
        self._capture, self._source = start.capture, start.source
        self._phase: Phase | None = None
        self._epoch: Epoch | None = None
        self._times = StageTimes()
        self._unit_secs, self._num_broken = 0.0, 0
        self._reason, self._why = start.reason, ""
        self._guess_secs = LONG_UNIT_SECS if restarted else 0.0
        self._evaluate = self._ending = False

    def _watch(self) -> machine.Event:
        """Let the phase run until something is due."""
        assert self._phase is not None
        is_over = partial(self._pace.is_over, self._phase)
        while True:
            over = self._chief.watch(is_over, self._tick_secs)
            self._tick()
            if self._saving.done:
                return self._committed()
            if over or self._chief.preempted:
                self._unit_secs = self._pace.unit_secs(self._phase)
                last = self._chief.preempted or self._phase.end_units >= self._run.config.workload
                if self._pace.is_short(self._phase) and not self._chief.preempted:
                    self._reason = "dropped"
                    return machine.Regroup()
                self._reason = "planned"
                return machine.Begin(last=last)
            self._pace.check(self._phase)
            if self._chief.stamps()[0]:
                self._num_broken = 0
            if (leaves := self._steering.look(self._phase)) is not None:
                self._unit_secs = self._pace.unit_secs(self._phase)
                event, self._reason = leaves
                return event
            if self._saving.is_due(self._phase):
                return machine.Checkpoint()

    def _drain(self) -> machine.Event:
        assert self._phase is not None
        started = self._clock.monotonic()
        self._chief.close_leases()
        limit = self._pace.step_limit_secs(self._phase)
        while not self._phase.mode.is_served and not self._chief.wait_until(self._pace.is_drained, TICK_SECS):
            self._tick()
            if self._chief.broken:
                raise self._chief.as_broken()
            if self._clock.monotonic() - started > limit:
                why = f"the last step was not finished within {limit:.3g} s"
                self._pace.give_up(self._chief.stuck(SILENT_SHARE * limit), why)  # the others wait for those in a step
        self._times = StageTimes()
        self._note_stage("drain", started)
        if ended := not self._phase.mode.is_served and self._pace.units_reached() >= self._phase.end_units:
            self._reason = "planned"
        return machine.Drained(ended, last=self._phase.end_units >= self._run.config.workload)

    def _capture_final(self) -> machine.Event:
        started = self._clock.monotonic()
        capture = self._take(final=True)
        self._chief.record(capture)
        self._chief.release_all()
        check_replicas(self._chief.drained(), capture, self._source)
        self._reporter.tick()
        self._reporter.ended(capture)
        self._evaluate = capture.held.units >= self._run.config.workload or not self._chief.preempted
        self._saving.training.clear()
        self._note_stage("capture", started)
        return machine.Captured(last=capture.held.units >= self._run.config.workload)

    def _capture_live(self) -> machine.Event:
        self._evaluate = self._saving.take_evaluation()
        self._take(final=False)
        return machine.Captured()

    def _take(self, *, final: bool) -> Capture:
        assert self._phase is not None
        if self._phase.mode.has_group_rounds:
            self._pace.await_together(self._phase, self._tick, final=final)
        role, role_id = self._phase.mode.holder(self._phase.members)
        with Reach(self._chief, f"the state of {role} {role_id} could not be captured"):
            source = self._chief.address_of(role, role_id)
            if source == self._source:
                self._source = GONE  # a holder has room for one capture: should this one fail, the last is lost too
            capture = self._holder_at(source).capture(self._phase.epoch, final)
        first, last = self._chief.stamps_of(role, role_id, capture)
        self._capture, self._source = replace(capture, first_applied=first, last_applied=last), source
        return self._capture

    def _gather(self) -> machine.Event:
        """Find the newest state that someone holds, and make the ledger say what it does."""
        started = self._clock.monotonic()
        reason = self._chief.gather() or self._why  # the way into a run's first phase has no phase to say it
        self._take_fenced()
        if self._phase is not None:
            captured = (self._capture, self._source)
            unit_secs, self._guess_secs = self._pace.unit_secs(self._phase) or self._guess_secs, 0.0
            found = self._recovery.gather(self._phase, captured, unit_secs)
            self._capture, self._source = found.capture, found.source
            self._go_on_from(found.capture, reason, rolled_back=found.rolled_back)
        self._worlds.lose()
        self._num_broken += 1
        if self._num_broken > MAX_BROKEN:
            raise give_up(self._num_broken, reason)
        self._reason = "death"
        self._note_stage("gather", started)
        self._times = StageTimes()
        self._evaluate = self._capture.held.units >= self._run.config.workload
        last = self._evaluate or self._chief.preempted
        return machine.Gathered(last=last)

    def _go_on_from(self, capture: Capture, why: str, *, rolled_back: bool) -> None:
        """Make ledger, apply log and record say what `capture` does, and what it lacks."""
        lost = self._chief.restore(capture, rolled_back=rolled_back)
        self._forget(capture.held.sequence)
        self._reporter.broke(capture, why, lost)

    def _commit_now(self) -> None:
        epoch = self._epoch.number if self._epoch else self._start.epoch
        self._saving.submit(self._capture, self._source, epoch, evaluate=self._evaluate)

    def _committed(self) -> machine.Event:
        try:
            commit = self._await_commit()
        except (CheckpointError, *UNREACHED) as error:
            if self._ending and isinstance(error, CheckpointError):  # nothing goes on that could be saved later
                raise
            if self._ending:
                self._why = f"the last state could not be fetched: {error}"
                self._chief.break_phase(self._why)
                return machine.CommitFailed()
            self._reporter.not_durable(self._capture.held.units, str(error))
            self._chief.wait_until(lambda: self._chief.preempted or bool(self._chief.broken), RETRY_SECS)
            return machine.CommitFailed()
        self._reporter.committed(commit)
        return machine.Committed()

    def _await_commit(self) -> Commit:
        def tick() -> None:
            self._tick()
            if self._chief.broken and not (self._ending or self._chief.gathering):
                raise self._chief.as_broken()

        return self._saving.wait(tick)

    def _reserve(self) -> machine.Event:
        started = self._clock.monotonic()
        self._epoch = self._epochs.reserve(above=self._start.epoch)
        self._note_stage("reserve", started)
        return machine.Reserved(self._epoch.number)

    def _announce(self) -> machine.Event:
        assert self._epoch is not None
        started = self._clock.monotonic()
        units = self._capture.held.units
        leg = self._steering.settle(units)
        mode = protocols.parse(leg.spec).mode
        self._arrivals.await_needed(mode)
        self._reporter.tick()
        members, lane = tuple(range(self._run.config.workers)), 0
        if not mode.is_served:
            members, lane = self._worlds.mesh(self._steering.members(), mode) or self._renew_world(mode)
        phase = Phase(
            epoch=self._epoch,
            spec=leg.spec,
            members=members,
            lane=lane,
            end_units=leg.end_units,
            applied=self._capture.applied,
            dropped=self._chief.ledger.all_dropped(self._capture.applied, self._capture.dropped),
            sequence=self._capture.held.sequence,
            source=self._source,
            capture_id=self._capture.capture_id,
            fingerprint=self._capture.held.fingerprint,
            servers=tuple(self._servers()) if mode.is_served else (),
            reason=self._reason,
            shares=self._steering.shares(members) if mode.moves_together else (),
        )
        before, self._phase = self._phase, phase
        if mode.is_served:
            with Reach(self._chief, f"a server could not enter epoch {phase.epoch}"):
                self._entering.enter(phase, self._servers(), self._capture.num_bytes)
        self._chief.announce(phase, self._steering.left_out(phase))
        self._pace.begin()
        self._reporter.entered(phase, units, self._why)
        self._why = ""
        self._note_stage("enter", started)
        if before is not None and phase.reason in SWITCHED:
            usual = self._steering.step_secs(phase) if phase.reason == "policy" else 0.0
            unit_secs = self._unit_secs / before.deal.num_rounds  # of those of a step, one is waited for
            unit_secs = usual if usual and phase.shares else min(unit_secs, usual or unit_secs)
            commits = commits_switch(before.spec, phase.spec, phase.reason)
            self._reporter.switching(before, phase, self._capture, self._times, unit_secs, commits)
        return machine.Entered()

    def _renew_world(self, mode: SyncMode) -> Mesh:
        self._capture, self._source = self._worlds.renew(self._capture, self._source)
        self._take_fenced()
        self._arrivals.await_all()
        mesh = self._worlds.mesh(self._steering.members(), mode)
        assert mesh is not None, "a new world has meshes"
        return mesh

    # --- what a phase needs while it runs ---

    def _look_around(self) -> None:
        """Judge who is silent and go on with the record; servers hear of lost workers once they have entered."""
        self._watchdog.progress()
        self._chief.expire()
        self._reporter.tick()

    def _tick(self) -> None:
        self._watchdog.progress()
        self._chief.expire()
        self._pace.reclaim_tail(self._phase)
        if self._chief.stamps()[0]:
            self._saving.training.set()
        for worker, incarnation in self._take_fenced():
            if self._phase is not None and self._phase.mode.is_served and not self._chief.broken:
                with Reach(self._chief, f"a server could not be told of the loss of worker {worker}"):
                    for server in self._servers().values():
                        server.fence(self._phase.epoch, worker, incarnation)
        self._reporter.tick()
        self._saving.collect()

    def _take_fenced(self) -> list[tuple[int, int]]:
        """Return the workers lost since the last call, with their incarnations."""
        lost = self._chief.take_fenced()
        if lost:
            self._worlds.lose()
        return lost

    def _note_stage(self, stage: str, started: float) -> None:
        ended = self._clock.monotonic()
        self._times.secs[stage] = ended - started
        self._reporter.span(stage, started, ended)
