"""The switch manager: takes a run from phase to phase as the switch machine says, and commits behind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from hybridsync import protocols
from hybridsync.chief.board import Board
from hybridsync.chief.meshes import Meshes
from hybridsync.clock import Clock
from hybridsync.config import to_json
from hybridsync.errors import CheckpointError, HybridSyncError, PhaseBroken, Preempted, WaitTimeout
from hybridsync.messages import Capture, RoleEvent
from hybridsync.plan import Epoch, Phase
from hybridsync.ports import HolderPort, ServerPort
from hybridsync.protocols.base import Path
from hybridsync.run import Run
from hybridsync.switching import machine
from hybridsync.switching.commits import COMMIT_DEADLINE_SECS, Commit, Committer, result_of
from hybridsync.switching.machine import Command, Step
from hybridsync.switching.recovery import GATHER_SECS, UNREACHED, Keeper, Reach, Recovery, Start, give_up
from hybridsync.switching.reporter import Reporter, StageTimes
from hybridsync.telemetry.summary import Summary

TICK_SECS = 0.05
START_DEADLINE_SECS = 600.0
"""For every role to register: imports and compilation of all of them on few cores."""
SAY_SECS = 20.0
"""How long the wait for roles goes without a word."""
DRAIN_DEADLINE_SECS = 60.0
STUCK_SECS = 2.0
"""The shortest time without a completed lock-step step after which somebody is given up."""
SILENT_SHARE = 0.5
"""Of that time without a heartbeat: who is stopped, and not only waiting for others."""
SETTLE_SECS = 3.0
"""A restarted chief takes up the run when it has heard of nobody new for so long; calls are repeated every second."""
LONG_UNIT_SECS = 6.0
"""What a restarted chief takes a unit for, until it has seen one."""
MAX_BROKEN = 10
"""How many phases in a row may break before one applies a unit."""
RETRY_SECS = 1.0
"""Between two tries to make a state durable."""
LANES = 16


class Epochs(Protocol):
    """Hands out epoch numbers, each once ever."""

    def reserve(self, above: int = 0) -> Epoch: ...


class Manager:
    """Runs one run from its starting state to its end, in the calling thread.

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
      evict: has the process ended of a role that was given up; None where roles are threads, which cannot be.
      forget: called with the sequence of the state that a run goes on from when updates behind it are lost.
      restarted: another manager took the run to where it is; roles may be in the middle of a phase.
      lanes: how many communicators one member order can have before another order is used.
      clock: for stage times and deadlines.
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
        committer: Committer,
        reporter: Reporter,
        keeper: Keeper,
        clock: Clock,
        evict: Callable[[RoleEvent], None] | None = None,
        forget: Callable[[int], object] = lambda sequence: None,
        restarted: bool = False,
        lanes: int = LANES,
    ) -> None:
        self._run, self._chief, self._start = run, chief, start
        self._servers, self._holder_at, self._epochs = servers, holder_at, epochs
        self._committer, self._reporter, self._clock = committer, reporter, clock
        self._evict, self._forget, self._restarted = evict, forget, restarted
        gather_secs = GATHER_SECS if evict else START_DEADLINE_SECS
        self._recovery = Recovery(chief, holder_at, keeper, start.source, clock, gather_secs)
        self._meshes = Meshes(run.config.workers, lanes)
        self._ends = run.plan.ends(run.config.workload)
        self._capture, self._source = start.capture, start.source
        self._phase: Phase | None = None
        self._before: Phase | None = None
        self._epoch: Epoch | None = None
        self._path = Path.SYNC
        self._times = StageTimes()
        self._unit_secs = 0.0
        self._reason, self._why = start.reason, ""
        self._num_broken = 0
        self._guess_secs = LONG_UNIT_SECS if restarted else 0.0
        self._commit: Future[Commit] | None = None
        self._submitted: Capture | None = start.capture if start.committed else None
        self._evaluations: deque[tuple[int, Future]] = deque()
        self._next_save = 0.0
        self._save_secs = 0.0
        self._training = threading.Event()  # clear while a switch's next phase has not applied its first unit
        self._training.set()
        self._progress = self._moved = (clock.monotonic(), 0)
        self._next_evaluation = run.config.telemetry.evaluate_units or None
        self._evaluate = False
        self._ending = False

    def run(self) -> Summary:
        """Run to the end of the workload or to a preemption; returns the summary that was written.

        Raises:
          HybridSyncError: the run could not go on; the summary says "failed", as for any other exception.
        """
        try:
            return self._story()
        except HybridSyncError as error:
            self._chief.fail(error)
            self._reporter.finish("failed", str(error))
            raise
        except BaseException as error:  # a hook's own error, or the user's interrupt: nobody may train on
            failure = HybridSyncError(f"the run was broken off by {type(error).__name__}: {error}")
            self._chief.fail(failure)
            self._reporter.finish("failed", str(failure))
            raise
        finally:
            self._training.set()
            self._chief.finish()
            self._committer.close()

    def _story(self) -> Summary:
        try:
            self._train()
        except Preempted:
            self._ending = True
            if self._commit is not None:
                self._reporter.committed(self._await_commit())
            if self._capture is not self._submitted:  # gathered, or captured for a regroup
                self._commit_now()
                self._reporter.committed(self._await_commit())
        while self._evaluations:
            self._collect_evaluation()
        completed = self._chief.num_applied >= self._run.config.workload
        return self._reporter.finish("completed" if completed else "preempted", None)

    def _train(self) -> None:
        if not self._start.committed:
            self._commit_now()
            self._reporter.committed(self._await_commit())
        if self._capture.held.units >= self._run.config.workload:  # the earlier life had no time for its summary
            self._evaluate = True
            self._commit_now()
            self._reporter.committed(self._await_commit())
            return
        state, commands = self._rejoin() if self._restarted else (None, ())
        if state is None:
            self._await_all()
            state, commands = machine.start(self._start.epoch)
        queue = deque(commands)
        while queue or state.step is not Step.DONE:
            try:
                event = self._execute(queue.popleft()) if queue else self._watch()
            except PhaseBroken as broken:
                self._why = str(broken)
                queue.clear()
                event = machine.Broken()
            if event is not None:
                state, commands = machine.advance(state, event)
                self._ending = state.step is Step.DONE
                queue.extend(commands)

    def _rejoin(self) -> tuple[machine.Switching | None, tuple[Command, ...]]:
        """Take up what the roles are in the middle of, where an earlier chief left them; None where that is nothing.

        An asynchronous phase whose servers are in it goes on as it is. Any other is broken: its workers wait for
        units already, and the next epoch begins from the newest state they hold.
        """
        self._await_settled()
        standings = self._chief.standings()
        phase = max((standing.phase for standing in standings.values()), key=lambda p: p.epoch, default=None)
        if phase is None:
            self._chief.adopt(None, Path.SYNC)
            return None, ()
        self._phase, self._epoch, self._path = phase, phase.epoch, protocols.parse(phase.spec).path
        served = [s for (role, _), s in standings.items() if role == "server" and s.phase.epoch == phase.epoch]
        whole = self._path is Path.SERVER and len(served) == len(phase.servers) and all(s.open for s in served)
        if whole:
            with Reach(self._chief, "the state could not be asked for"):
                self._take(final=False)
            self._chief.restore(self._capture, rolled_back=False)
        self._chief.adopt(phase, self._path, "" if whole else "the chief was restarted")
        self._reporter.continues(phase)
        for members, lane in self._reporter.meshes_used():
            self._meshes.used(members, lane)
        state = machine.Switching(Step.RUN, phase.epoch.number)
        if whole:
            self._chief.open_leases()
            return state, ()
        return machine.advance(state, machine.Broken())

    def _await_settled(self) -> None:
        """Wait until every role has been heard of, or none has come for SETTLE_SECS."""
        known, since = 0, self._clock.monotonic()
        while self._clock.monotonic() - since < SETTLE_SECS:
            heard = len(self._chief.live_workers()) + self._chief.num_live_servers()
            if heard >= self._run.config.workers + self._run.config.servers:
                return
            if heard != known:
                known, since = heard, self._clock.monotonic()
            self._chief.watch(lambda: False, TICK_SECS)

    # --- commands ---

    def _execute(self, command: Command) -> machine.Event | None:
        return {
            Command.STOP_LEASES: self._drain,
            Command.CAPTURE: self._capture_final,
            Command.CAPTURE_LIVE: self._capture_live,
            Command.GATHER: self._gather,
            Command.COMMIT: self._commit_now,
            Command.AWAIT_COMMIT: self._committed,
            Command.RESERVE: self._reserve,
            Command.ANNOUNCE: self._announce,
            Command.RESUME_LEASES: self._chief.open_leases,
            Command.FINISH: self._chief.finish,
        }[command]()

    def _watch(self) -> machine.Event:
        """Let the phase run until something is due."""
        assert self._phase is not None
        while True:
            over = self._chief.watch(self._is_over, TICK_SECS)
            self._tick()
            if self._commit is not None and self._commit.done():
                return self._committed()
            if over or self._chief.preempted:
                self._unit_secs = self._measure_unit()
                last = self._chief.preempted or self._phase.end_units >= self._run.config.workload
                if self._is_short() and not self._chief.preempted:
                    self._reason = "dropped"
                    return machine.Regroup()
                self._reason = "planned"
                return machine.Begin(last=last)
            self._check_progress()
            if self._has_joined():
                self._reason = "join"
                return machine.Regroup()
            if self._commit is None and self._save_is_due():
                return machine.Checkpoint()

    def _drain(self) -> machine.Event:
        started = self._clock.monotonic()
        self._chief.close_leases()
        limit = max(STUCK_SECS if self._evict else DRAIN_DEADLINE_SECS, 10 * self._unit_secs)
        while self._path is Path.SYNC and not self._chief.wait_until(self._is_drained, TICK_SECS):
            self._tick()
            if self._chief.broken:
                raise self._chief.as_broken()
            if self._clock.monotonic() - started > limit:
                self._give_up(self._chief.missing_drained(), f"the last step was not finished within {limit:.3g} s")
        self._times = StageTimes()
        self._note_stage("drain", started)
        return machine.Drained()

    def _capture_final(self) -> machine.Event:
        started = self._clock.monotonic()
        capture = self._take(final=True)
        self._chief.record(capture)
        self._chief.release_all()
        self._check_members(capture)
        self._reporter.tick()
        self._reporter.ended(capture)
        self._evaluate = not self._chief.preempted
        self._training.clear()
        self._note_stage("capture", started)
        return machine.Captured()

    def _capture_live(self) -> machine.Event:
        self._evaluate = self._evaluation_is_due()
        if self._evaluate:
            every = self._run.config.telemetry.evaluate_units
            self._next_evaluation = (self._chief.num_applied // every + 1) * every
        self._take(final=False)
        return machine.Captured()

    def _take(self, *, final: bool) -> Capture:
        assert self._phase is not None
        role, role_id = ("server", 0) if self._path is Path.SERVER else ("worker", self._phase.members[0])
        with Reach(self._chief, f"the state of {role} {role_id} could not be captured"):
            source = self._chief.address_of(role, role_id)
            capture = self._holder_at(source).capture(self._phase.epoch, final)
        first, last = self._chief.stamps_of(role, role_id, capture)
        self._capture, self._source = replace(capture, first_applied=first, last_applied=last), source
        return self._capture

    def _gather(self) -> machine.Event:
        """Find the newest state that someone holds, and make the ledger say what it does."""
        started = self._clock.monotonic()
        reason = self._chief.gather()
        self._take_losses()
        lost = 0
        if self._phase is not None:
            captured = (self._capture, self._source)
            unit_secs, self._guess_secs = self._measure_unit() or self._guess_secs, 0.0
            found = self._recovery.gather(self._phase, self._path, captured, unit_secs)
            self._capture, self._source = found.capture, found.source
            lost = self._chief.restore(found.capture, rolled_back=found.rolled_back)
            self._forget(found.capture.held.sequence)
            self._reporter.broke(found.capture, reason, lost)
        self._meshes.lose()
        self._num_broken += 1
        if self._num_broken > MAX_BROKEN:
            raise give_up(self._num_broken, reason)
        self._reason = "death"
        self._note_stage("gather", started)
        self._times = StageTimes()
        last = self._chief.preempted or self._capture.held.units >= self._run.config.workload
        self._evaluate = last and not self._chief.preempted
        return machine.Gathered(last=last)

    def _commit_now(self) -> None:
        capture = self._submitted = self._capture
        ledger = self._chief.ledger.to_json(capture.applied, capture.dropped)
        self._commit, evaluation = self._committer.submit(
            capture,
            self._source,
            ledger,
            self._record_of(capture),
            evaluate=self._evaluate,
            after=self._training,
        )
        if self._evaluate:
            self._evaluations.append((capture.held.units, evaluation))

    def _committed(self) -> machine.Event:
        try:
            commit = self._await_commit()
        except (CheckpointError, *UNREACHED) as error:
            self._commit = None
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
        assert self._commit is not None
        self._training.set()
        pending, what = self._commit, f"the checkpoint of epoch {self._capture.held.epoch}"
        deadline = self._clock.monotonic() + COMMIT_DEADLINE_SECS
        while not self._chief.wait_until(pending.done, TICK_SECS) and self._clock.monotonic() < deadline:
            self._tick()
            if self._chief.broken and not (self._ending or self._chief.gathering):
                raise self._chief.as_broken()
        commit = result_of(pending, what, secs=0.0)
        self._commit = None
        self._save_secs = commit.secs
        self._next_save = self._clock.monotonic() + self._run.config.checkpoint.secs
        return commit

    def _reserve(self) -> machine.Event:
        started = self._clock.monotonic()
        self._epoch = self._epochs.reserve(above=self._start.epoch)
        self._note_stage("reserve", started)
        return machine.Reserved(self._epoch.number)

    def _announce(self) -> machine.Event:
        assert self._epoch is not None
        started = self._clock.monotonic()
        units = self._capture.held.units
        index = next(i for i, end in enumerate(self._ends) if end > units)
        protocol = self._run.stages[index]
        self._await_needed(protocol.path)
        members, lane = tuple(range(self._run.config.workers)), 0
        if protocol.path is Path.SYNC:
            members, lane = self._meshes.next(self._chief.live_workers())
        phase = Phase(
            epoch=self._epoch,
            spec=self._run.plan.stages[index].spec,
            members=members,
            lane=lane,
            end_units=self._ends[index],
            applied=self._capture.applied,
            dropped=self._chief.ledger.all_dropped(self._capture.applied, self._capture.dropped),
            sequence=self._capture.held.sequence,
            source=self._source,
            capture_id=self._capture.capture_id,
            fingerprint=self._capture.held.fingerprint,
            servers=tuple(self._servers()) if protocol.path is Path.SERVER else (),
            reason=self._reason,
        )
        self._before, self._phase, self._path = self._phase, phase, protocol.path
        if protocol.path is Path.SERVER:
            with Reach(self._chief, f"a server could not enter epoch {phase.epoch}"):
                for server in self._servers().values():
                    server.enter(phase)
        self._chief.announce(phase, protocol.path)
        self._reporter.entered(phase, units, self._why)
        self._why = ""
        self._note_stage("enter", started)
        if self._before is not None and phase.reason == "planned":
            self._reporter.switching(self._before, phase, self._capture, self._times, self._unit_secs)
        return machine.Entered()

    # --- what a phase needs while it runs ---

    def _tick(self) -> None:
        self._chief.expire()
        self._reclaim_tail()
        if self._chief.stamps()[0]:
            self._training.set()
        for worker, incarnation in self._take_losses():
            if self._path is Path.SERVER and self._phase is not None and not self._chief.broken:
                with Reach(self._chief, f"a server could not be told of the loss of worker {worker}"):
                    for server in self._servers().values():
                        server.fence(self._phase.epoch, worker, incarnation)
        self._reporter.tick()
        while self._evaluations and self._evaluations[0][1].done():
            self._collect_evaluation()

    def _take_losses(self) -> list[tuple[int, int]]:
        """Return the workers lost since the last call, with their incarnations; those given up are to end."""
        for event in self._chief.take_evicted():
            if self._evict is not None:
                self._evict(event)
        lost = self._chief.take_fenced()
        if lost:
            self._meshes.lose()
        return lost

    def _has_joined(self) -> bool:
        """Whether a lock-step phase goes on without a worker that is here by now."""
        assert self._phase is not None
        if self._path is not Path.SYNC or not self._chief.stamps()[0] or self._reporter.switch_pending:
            return False
        return bool(set(self._chief.live_workers()) - set(self._phase.members))

    def _reclaim_tail(self) -> None:
        """Give the last units of an asynchronous phase to others when nothing was applied for drain_secs."""
        now, applied = self._clock.monotonic(), self._chief.num_applied
        if applied != self._progress[1] or self._phase is None or self._path is not Path.SERVER:
            self._progress = now, applied
        elif now - self._progress[0] > self._run.config.drain_secs and self._chief.nothing_left(self._phase):
            self._progress = now, applied
            held = self._chief.reclaim()
            if held:
                self._reporter.note(f"the last units of epoch {self._phase.epoch} are given to others too: {held}")

    def _check_progress(self) -> None:
        """Give up the members for whom a lock-step phase stands still.

        Raises:
          PhaseBroken: by which the others go on.
          WaitTimeout: they are threads, which cannot be given up.
        """
        now, applied = self._clock.monotonic(), self._chief.num_applied
        stepping = bool(self._chief.stamps()[0])
        if stepping:
            self._num_broken = 0
        if self._path is not Path.SYNC or applied != self._moved[1]:
            self._moved = now, applied
            return
        limit = max(STUCK_SECS, 10 * self._measure_unit()) if stepping else START_DEADLINE_SECS
        if now - self._moved[0] <= limit:
            return
        self._moved = now, applied
        self._give_up(self._chief.stuck(SILENT_SHARE * limit), f"no lock-step step was completed for {limit:.3g} s")

    def _give_up(self, workers: list[int], why: str) -> None:
        """Go on without those for whom a lock-step phase stands still.

        Raises:
          WaitTimeout: they are threads, which cannot be given up.
        """
        if self._evict is None:
            raise WaitTimeout(
                f"{why}; workers {workers or self._chief.behind()} are behind: run the same command again to resume "
                "from the last checkpoint"
            )
        for worker in workers:
            self._chief.evict(worker, f"{why}, and it was not waiting for the others")
        self._chief.break_phase(why)

    def _is_drained(self) -> bool:
        return not self._chief.missing_drained() or bool(self._chief.broken)

    def _is_over(self) -> bool:
        assert self._phase is not None
        if self._path is Path.SYNC:
            return len(self._chief.drained()) == len(self._phase.members)
        return self._chief.num_applied >= self._phase.end_units

    def _is_short(self) -> bool:
        """Whether a lock-step phase has ended with units dropped, so that its stage goes on with fresh ones."""
        assert self._phase is not None
        units = [held.units for held in self._chief.drained().values() if held is not None]
        return self._path is Path.SYNC and max(units, default=self._phase.end_units) < self._phase.end_units

    def _save_is_due(self) -> bool:
        """Whether a periodic save is due, and the phase does not end before it would be committed."""
        assert self._phase is not None
        save = self._committer.durable and self._clock.monotonic() >= self._next_save
        if not save and not self._evaluation_is_due():
            return False
        if not self._chief.stamps()[0]:
            return False
        rate = sum(self._chief.worker_rates().values())
        left = (self._phase.end_units - self._chief.num_applied) / rate if rate else 0.0
        return left > 2 * self._save_secs + 0.5

    def _evaluation_is_due(self) -> bool:
        return self._next_evaluation is not None and self._chief.num_applied >= self._next_evaluation

    def _collect_evaluation(self) -> None:
        units, evaluation = self._evaluations.popleft()
        self._reporter.evaluated(units, result_of(evaluation, f"the evaluation at unit {units}"))

    def _measure_unit(self) -> float:
        """Return the mean seconds of one worker's unit in this phase's last second."""
        rate = sum(self._chief.worker_rates().values())
        assert self._phase is not None
        return len(self._phase.members) / rate if rate else 0.0

    def _check_members(self, capture: Capture) -> None:
        """Compare what the members of a lock-step phase hold: they must be equal, bit for bit."""
        for worker, held in self._chief.drained().items():
            if held is None or held.epoch != capture.held.epoch:
                continue
            if held.fingerprint != capture.held.fingerprint:
                raise HybridSyncError(
                    f"worker {worker} ended epoch {capture.held.epoch} with fingerprint {held.fingerprint}, "
                    f"{self._source} with {capture.held.fingerprint}; lock-step replicas must be equal: run the same "
                    "command again to resume from the last checkpoint"
                )

    def _await_all(self) -> None:
        """Wait until every role of the run takes part (see `_await_roles`)."""
        self._await_roles(self._run.config.workers, self._run.config.servers)

    def _await_needed(self, path: Path) -> None:
        """Wait until a phase can begin: with the workers that are left, and with every server where it is served."""
        self._await_roles(1, self._run.config.servers if path is Path.SERVER else 0)

    def _await_roles(self, num_workers: int, num_servers: int) -> None:
        """Wait until so many roles take part; the record goes on meanwhile.

        Raises:
          Preempted: the run was asked to stop; what it has is captured and on its way to the disk.
          WaitTimeout: a role did not come.
        """

        def here() -> bool:
            return len(self._chief.live_workers()) >= num_workers and self._chief.num_live_servers() >= num_servers

        now = self._clock.monotonic()
        deadline, say_at = now + START_DEADLINE_SECS, now + SAY_SECS
        while not self._chief.watch(here, TICK_SECS):
            now = self._clock.monotonic()
            missing = (
                f"workers {self._chief.missing_workers()} have not registered; "
                f"{self._chief.num_live_servers()} of {self._run.config.servers} servers have"
            )
            if self._chief.preempted:
                raise Preempted(f"asked to stop while {missing}; run the same command again")
            if now >= deadline:
                raise WaitTimeout(f"after {START_DEADLINE_SECS:g} s: {missing}")
            if now >= say_at:
                self._reporter.note(f"waiting: {missing}")
                say_at = deadline
            self._tick()
        self._reporter.tick()

    def _record_of(self, capture: Capture) -> dict[str, Any]:
        """What a checkpoint stores beside state and ledger."""
        return {
            "config": to_json(self._run.config),
            "source": self._run.describe_source(),
            "epoch": self._epoch.number if self._epoch else self._start.epoch,
            "sequence": capture.held.sequence,
            "fingerprint": capture.held.fingerprint,
            "seconds": self._reporter.seconds(),
        }

    def _note_stage(self, stage: str, started: float) -> None:
        ended = self._clock.monotonic()
        self._times.secs[stage] = ended - started
        self._reporter.span(stage, started, ended)
