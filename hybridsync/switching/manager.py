"""The switch manager: takes a run from phase to phase as the switch machine says, and commits behind."""

from __future__ import annotations

from collections import deque

from hybridsync.errors import HybridSyncError, PhaseBroken, Preempted
from hybridsync.switching import machine
from hybridsync.switching.machine import Command, Step
from hybridsync.switching.stages import Stages
from hybridsync.telemetry.summary import Summary


class Manager(Stages):
    """Runs one run from its starting state to its end, in the calling thread (arguments: see `Stages`)."""

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
            self._saving.training.set()
            self._chief.finish()
            self._committer.close()

    def _story(self) -> Summary:
        try:
            self._train()
        except Preempted:  # while those who were to train on were waited for
            self._ending = True
            while self._saving.under_way or self._capture is not self._saving.submitted:
                if not self._saving.under_way:
                    self._commit_now()
                if isinstance(self._committed(), machine.CommitFailed):  # whoever held the state is gone
                    self._gather()
        self._saving.collect(all_of_them=True)
        completed = self._chief.num_applied >= self._run.config.workload
        if not completed and (failure := self._chief.nobody_left) is not None:
            raise failure
        return self._reporter.finish("completed" if completed else "preempted", None)

    def _train(self) -> None:
        if not self._start.committed:
            self._commit_now()
            self._reporter.committed(self._await_commit())
        if self._capture.held.units >= self._run.config.workload:  # the earlier life had no time for its summary
            self._forget(self._capture.held.sequence)  # a meeting without units may have followed
            self._evaluate = True
            self._commit_now()
            self._reporter.committed(self._await_commit())
            return
        state, commands = self._rejoin() if self._restarted else (None, ())
        if state is None:
            self._arrivals.await_all()
            self._reporter.tick()
            state, commands = machine.start(self._start.epoch)
        queue = deque(commands)
        while queue or state.step is not Step.DONE:
            doing = queue[0].name if queue else Step.RUN.name
            try:
                with self._watchdog.work(f"the stage {doing}", self._stage_secs):
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
        self._arrivals.await_settled(self._reporter.present)
        standings = self._chief.standings()
        phase = max((standing.phase for standing in standings.values()), key=lambda p: p.epoch, default=None)
        if phase is None:
            self._chief.adopt(None)
            self._go_on_from(self._capture, "the chief was restarted, and nobody was left", rolled_back=True)
            return None, ()
        self._phase, self._epoch = phase, phase.epoch
        served = [s for (role, _), s in standings.items() if role == "server" and s.phase.epoch == phase.epoch]
        whole = phase.mode.is_served and len(served) == len(phase.servers) and all(s.open for s in served)
        self._chief.adopt(phase, "" if whole else "the chief was restarted")
        self._steering.adopt(phase)
        self._reporter.continues(phase)
        for members, lane in self._reporter.meshes_used():
            self._worlds.used(members, lane)
        state = machine.Switching(Step.RUN, phase.epoch.number)
        if whole:
            try:
                self._chief.record(self._take(final=False), final=False)
                self._chief.open_leases()
                return state, ()
            except PhaseBroken as broken:  # a server is lost as well
                self._why = str(broken)
        return machine.advance(state, machine.Broken())

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
