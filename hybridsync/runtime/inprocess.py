"""The in-process runtime: chief, server and workers are objects and threads of one process, without sockets.

The workers share the default device. Lock-step workers meet at a rendezvous and share one replica; asynchronous ones
call the primary directly. There is one store, whatever number of servers the run is configured for.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from hybridsync import __version__
from hybridsync.chief.chief import Chief
from hybridsync.chief.run_state import RunState
from hybridsync.collectives.thread_mean import Mixer, ThreadMixer
from hybridsync.collectives.thread_sum import Collective, Rendezvous
from hybridsync.config import Stragglers
from hybridsync.core.clock import Clock
from hybridsync.core.errors import HybridSyncError, RoleLost
from hybridsync.core.plan import Epoch
from hybridsync.emulation.device import Emulation
from hybridsync.emulation.link_delays import DelayedPort, Pacing, check_speed, emulated
from hybridsync.interfaces.messages import Hello
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report
from hybridsync.phases.assembly import assemble
from hybridsync.phases.checkpointing import Committer
from hybridsync.phases.recovery import Start
from hybridsync.phases.reporter import Hook, Reporter
from hybridsync.policies.straggler_detector import detector_of
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER
from hybridsync.server.endpoint import Endpoint
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import DevicePublisher
from hybridsync.storage.apply_log import APPLY_LOG, FileApplyLog, NullApplyLog, forget
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.evaluation import Evaluator
from hybridsync.training.snapshot import Holding, Kept
from hybridsync.training.state import TrainState
from hybridsync.transport.inprocess import InProcessTransport
from hybridsync.transport.link import Services
from hybridsync.workdir.opening import Opening, start_capture
from hybridsync.worker.context import WorkerContext
from hybridsync.worker.group_runner import GroupRunner
from hybridsync.worker.link import ServerLink
from hybridsync.worker.lockstep_runner import LockstepRunner
from hybridsync.worker.loop import WorkerLoop
from hybridsync.worker.replica import Replica
from hybridsync.worker.self_probe import Measuring
from hybridsync.worker.server_runner import ServerRunner
from hybridsync.worker.stats import WorkerRecorder

CHIEF, REPLICA, PRIMARY = "inprocess:chief", "inprocess:replica", "inprocess:server"
REPORT_SECS = 0.1
JOIN_SECS = 60.0


class InProcess:
    """One run in this process.

    Args:
      opening: where the run begins.
      recorder: events, metrics, timeline, progress.
      clock: for everything that reads time.
      hooks: (function, every so many units).
    """

    def __init__(self, opening: Opening, recorder: Recorder, clock: Clock, hooks: list[tuple[Hook, int]]) -> None:
        self._opening, self._recorder, self._clock = opening, recorder, clock
        self._hooks = hooks
        run = opening.run
        self._programs = programs = run.programs(donate_parameters=False)
        detector = detector_of(run.config.policy)
        schema = programs.state_layout.schema_hash
        self.chief = Chief(RunState(opening.ledger, run.config.workers, schema, clock, math.inf, detector=detector))
        self._holding = Holding(programs.state_layout)
        logged = run.workdir is not None and run.config.telemetry.apply_log
        apply_log = FileApplyLog(run.workdir / APPLY_LOG) if logged and run.workdir else NullApplyLog()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._transport = transport = InProcessTransport()
        self._primary = Primary(programs, DevicePublisher(), transport.holder, clock, apply_log, self._wake)
        wire = emulated(run.config.emulation, run.config.servers)
        sizes = programs.contribution_layout.nbytes, programs.parameters_layout.nbytes
        check_speed(run.config.emulation, run.config.workers, run.config.servers, *sizes)
        stragglers = Stragglers(run.config.emulation.stragglers, run.config.workload)
        port = DelayedPort(Endpoint(self._primary, None), Pacing(wire, *sizes, clock, stragglers=stragglers))
        primary = self._primary
        transport.serve(Services(holder=primary, server=primary, parameters=port, optimizer=primary), PRIMARY)
        self._replica = Replica(programs, transport.holder, clock, apply_log)
        transport.serve(Services(holder=self._replica), REPLICA)
        self._rendezvous: dict[Epoch, Rendezvous] = {}
        self._mixers: dict[Epoch, ThreadMixer] = {}
        self._lock = threading.Lock()
        self._recorders = [
            WorkerRecorder(worker, clock, run.config.telemetry.timeline, run.config.policy.detects)
            for worker in range(run.config.workers)
        ]
        self._loops: dict[int, WorkerLoop] = {}
        self._server_incarnation = 0
        self._committer: Committer | None = None

    @property
    def state(self) -> TrainState:
        """The newest state that was committed; the one the run started from before the first commit."""
        committed = self._committer.state if self._committer else None
        return self._opening.state if committed is None else committed

    def run(self) -> Summary:
        """Run to the end or to a preemption; returns the summary that was written.

        Raises:
          HybridSyncError: the run could not go on; what a worker's task raised is the cause of a `RoleLost`.
          Exception: a hook's own error, as it was raised.
        """
        opening, run, clock = self._opening, self._opening.run, self._clock
        capture = start_capture(opening, self._holding)
        kept = Kept(self._holding, capture, opening.state)
        self._transport.serve(Services(holder=kept, chief=self.chief.service), CHIEF)
        reporter = Reporter(
            run,
            self.chief.control,
            self._recorder,
            clock,
            seconds=opening.seconds,
            hooks=self._hooks,
            switches=opening.switches,
        )
        layout, evaluator = self._programs.state_layout, Evaluator(run.task)
        self._committer = Committer(opening.store, layout, self._transport.holder, evaluator, clock, kept.keep)
        manager = assemble(
            replace(run, config=replace(run.config, servers=1)),  # threads share the one store
            self.chief.control,
            Start(capture, CHIEF, opening.reason, opening.epoch, opening.committed, opening.detours),
            servers=lambda: {PRIMARY: self._transport.server(PRIMARY)},
            holder_at=self._transport.holder,
            epochs=opening.epochs,
            committer=self._committer,
            reporter=reporter,
            keeper=kept,
            clock=clock,
            forget=self._forget,
            threads=True,
        )
        schema = self._programs.state_layout.schema_hash
        self._server_incarnation = self.chief.service.register(self._hello("server", 0, PRIMARY, schema)).incarnation
        workers = ThreadPoolExecutor(run.config.workers, "worker")
        for worker in range(run.config.workers):
            workers.submit(self._work, worker, schema).add_done_callback(self._worker_ended)
        heart = threading.Thread(target=self._beat, name="heart", daemon=True)
        heart.start()
        try:
            return manager.run()
        finally:
            self._break_off("the run is over")
            workers.shutdown(wait=True)
            self._stop.set()
            self._wake.set()
            heart.join(JOIN_SECS)

    # --- the roles' threads ---

    def _work(self, worker: int, schema: str) -> None:
        recorder, service = self._recorders[worker], self._transport.chief(CHIEF)
        run = self._opening.run
        recorder.incarnation = service.register(self._hello("worker", worker, REPLICA, schema)).incarnation
        emulation = Emulation(run.config.emulation, run.config.workload)
        context = WorkerContext(worker, service, self._programs, recorder, emulation)
        engines = {
            LOCKSTEP: LockstepRunner(context, self._replica, self._collective_of, None),
            SERVER: ServerRunner(context, self._link_of, None),
            GROUP: GroupRunner(context, service, self._replica, self._mixer_of, logs=run.config.telemetry.apply_log),
        }
        measuring = Measuring(worker, self._programs, self._replica, recorder, emulation)
        loop = WorkerLoop(worker, service, engines, self._replica, recorder, self._clock, measuring)
        self._loops[worker] = loop
        loop.run()

    def _worker_ended(self, worker: Future) -> None:
        """End the run by what a worker raised; the task's own errors stay visible as the cause."""
        error = worker.exception()
        if error is None:
            return
        if not isinstance(error, HybridSyncError):
            failure = RoleLost(f"a worker failed: {type(error).__name__}: {error}; correct the task and run again")
            failure.__cause__ = error
            error = failure
        self.chief.control.fail(error)
        self._break_off(str(error))

    def _break_off(self, reason: str) -> None:
        with self._lock:
            meetings = [*self._rendezvous.values(), *self._mixers.values()]
        for each in meetings:
            each.break_off(reason)

    def _beat(self) -> None:
        """Report for every role, and at once when the primary has applied the phase's last unit."""
        while not self._stop.is_set():
            self._wake.wait(REPORT_SECS)
            self._wake.clear()
            progress = self._primary.drain()
            self.chief.service.report(
                Report(
                    role="server",
                    id=0,
                    incarnation=self._server_incarnation,
                    epoch=progress.epoch,
                    sequence=progress.sequence,
                    applied=progress.applied,
                    dropped=progress.dropped,
                    staleness=progress.staleness,
                    first_applied=progress.first_applied,
                    last_applied=progress.last_applied,
                    spans=progress.spans,
                    doing=progress.doing,
                )
            )
            for worker, recorder in enumerate(self._recorders):
                if not recorder.incarnation:
                    continue
                report = recorder.drain()
                if self.chief.service.report(report).revoked and worker in self._loops:
                    self._loops[worker].revoke(report.epoch, "the chief has revoked the phase")

    def _forget(self, sequence: int) -> None:
        workdir = self._opening.run.workdir
        if workdir is not None:
            forget(workdir / APPLY_LOG, sequence)

    # --- how roles find each other ---

    def _link_of(self, phase: Phase) -> ServerLink:
        return self._transport.link(phase.servers)

    def _collective_of(self, phase: Phase) -> Collective:
        with self._lock:
            if phase.epoch not in self._rendezvous:
                self._rendezvous[phase.epoch] = Rendezvous(phase.members, self._programs.total)
            return self._rendezvous[phase.epoch]

    def _mixer_of(self, phase: Phase) -> Mixer:
        with self._lock:
            if phase.epoch not in self._mixers:
                self._mixers[phase.epoch] = ThreadMixer()
            return self._mixers[phase.epoch]

    @staticmethod
    def _hello(role: str, role_id: int, address: str, schema: str) -> Hello:
        return Hello(role, role_id, os.getpid(), socket.gethostname(), address, schema, __version__)
