"""The in-process runtime: chief, server and workers are objects and threads of one process, without sockets.

Workers share the default device, or have devices of their own where there are several. Lock-step workers share one
communicator and one replica; asynchronous ones call the primary directly. There is one store, whatever number of
servers the run is configured for.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
from absl import logging

from hybridsync import __version__
from hybridsync.collectives.backend import Collectives, Communicator
from hybridsync.collectives.one_process import collectives_of
from hybridsync.core.clock import SYSTEM_CLOCK, Clock
from hybridsync.core.errors import HybridSyncError, RoleLost, described
from hybridsync.core.plan import PhaseId
from hybridsync.devices.placement import SHARED_DEVICE, Placement
from hybridsync.interfaces.messages import Hello
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import SnapshotSource
from hybridsync.interfaces.reports import Report
from hybridsync.phases.reporter import Hook
from hybridsync.runtime.role.chief_wiring import ChiefRole
from hybridsync.runtime.role.compilations import Compilations
from hybridsync.runtime.role.server_wiring import primary_services
from hybridsync.runtime.role.worker_wiring import unit_tracer, worker_context, worker_loop, worker_recorder
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import DevicePublisher
from hybridsync.storage.apply_log import open_apply_log
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.state import TrainState
from hybridsync.transport.inprocess import InProcessTransport
from hybridsync.transport.link import Services
from hybridsync.workdir.opening import Opening
from hybridsync.worker.link import ServerLink
from hybridsync.worker.loop import WorkerLoop
from hybridsync.worker.replica import Replica

CHIEF, REPLICA, PRIMARY = "inprocess:chief", "inprocess:replica", "inprocess:server"
REPORT_SECS = 0.1
JOIN_SECS = 60.0


class InProcess:
    """One run in this process.

    Args:
      opening: the opened run, with its starting state.
      recorder: events, metrics, timeline, progress.
      clock: clock for everything that reads time.
      hooks: (function, every so many units).
      collectives: collectives by which the workers' threads sum and average among themselves.
      placement: where the workers compute.
      compilations: account of the start's compilations, for the log; None for none.
    """

    def __init__(
        self,
        opening: Opening,
        recorder: Recorder,
        clock: Clock,
        hooks: list[tuple[Hook, int]],
        collectives: Callable[[Programs], Collectives] = collectives_of,
        placement: Placement = SHARED_DEVICE,
        compilations: Compilations | None = None,
    ) -> None:
        self._opening, self._recorder = opening, recorder
        run = opening.run
        self._programs = programs = run.programs(donate_parameters=False, placement=placement)
        # While the workers compile their gradient, which takes longer
        has_update = run.stages[0].change(run.config.workers) == "optimizer"
        self._compiling = programs.compile_update() if has_update else None
        self.chief = ChiefRole(opening, programs.state_layout, clock, threads=True, hooks=hooks)
        apply_log = open_apply_log(run.workdir, run.config.telemetry.apply_log)
        self._wake = threading.Event()
        self.chief.run_state.on_break = self._wake.set
        self._stop = threading.Event()
        self._transport = transport = InProcessTransport()
        transport.serve(Services(holder=self.chief.committed, chief=self.chief.service), CHIEF)
        published, failed = DevicePublisher(), self._role_failed
        self._primary = primary = Primary(
            programs, published, self._holder_at, clock=clock, apply_log=apply_log, completed=self._wake, failed=failed
        )
        services = primary_services(run, programs, primary, clock, None)
        transport.serve(replace(services, optimizer=primary), PRIMARY)
        self._replica = Replica(programs, self._holder_at, clock, apply_log)
        transport.serve(Services(holder=self._replica), REPLICA)
        self._collectives = collectives(programs)
        self._communicators: dict[PhaseId, Communicator] = {}
        self._lock = threading.Lock()
        self._recorders = [worker_recorder(run, worker, clock) for worker in range(run.config.workers)]
        self._loops: dict[int, WorkerLoop] = {}
        self._server_incarnation = 0
        self._tracer = unit_tracer(run, "workers")
        self._compilations = compilations

    @property
    def state(self) -> TrainState:
        """The newest state that was committed; the one the run started from before the first commit."""
        return self.chief.state

    def run(self) -> Summary:
        """Run to the end or to a preemption; returns the summary that was written.

        Raises:
          HybridSyncError: the run could not go on; what a worker's task raised is the cause of a `RoleLost`.
          Exception: a hook's own error, as it was raised.
        """
        run = self._opening.run
        controller = self.chief.controller(
            CHIEF,
            self._recorder,
            servers=lambda: {PRIMARY: self._primary},
            holder_at=self._holder_at,
            placement=self._programs.placement,
        )
        schema = self._programs.state_layout.schema_hash
        self._server_incarnation = self.chief.service.register(self._hello("server", 0, PRIMARY, schema)).incarnation
        workers = [
            self._thread(f"worker_{worker}", "a worker", partial(self._work, worker, schema))
            for worker in range(run.config.workers)
        ]
        for worker in workers:
            worker.start()
        heartbeat = self._thread("heartbeat", "the heartbeat", self._beat)
        heartbeat.start()
        try:
            return controller.run()
        finally:
            self._break_off("the run is over")
            self._join(workers if self._compiling is None else [*workers, self._compiling])
            self._stop.set()
            self._wake.set()
            heartbeat.join(JOIN_SECS)
            if self._tracer is not None:
                self._tracer.close()

    # --- the roles' threads ---

    def _join(self, workers: list[threading.Thread]) -> None:
        """Wait for the workers' threads; one that hangs in the user's code is left behind, and named in the log."""
        deadline = SYSTEM_CLOCK.monotonic() + JOIN_SECS
        for worker in workers:
            worker.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
        if late := [worker.name for worker in workers if worker.is_alive()]:
            logging.error("The threads %s have not ended within %g s and are left behind.", ", ".join(late), JOIN_SECS)

    def _thread(self, name: str, who: str, work: Callable[[], None]) -> threading.Thread:
        """Return a thread that ends the run by what it raises."""

        def watched() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 the run ends by it, as by any error of the user's code
                self._thread_failed(who, error)

        return threading.Thread(target=watched, name=name, daemon=True)

    def _thread_failed(self, who: str, error: BaseException) -> None:
        """End the run by what a role's thread raised; the task's own errors stay visible as the cause."""
        if not isinstance(error, HybridSyncError):
            failure = RoleLost(f"{who} failed: {described(error)}; correct that and run again")
            failure.__cause__ = error
            error = failure
        self._role_failed(error)

    def _work(self, worker: int, schema: str) -> None:
        recorder, service = self._recorders[worker], self._transport.chief(CHIEF)
        recorder.incarnation = service.register(self._hello("worker", worker, REPLICA, schema)).incarnation
        run = self._opening.run
        loop = worker_loop(
            run,
            worker_context(run, worker, self._programs, recorder, service, tracer=self._tracer),
            service,
            self._replica,
            communicator_of=self._communicator_of,
            link_of=self._link_of,
        )
        self._loops[worker] = loop
        loop.run()

    def _holder_at(self, address: str) -> SnapshotSource:
        return self._transport.holder(address).port

    def _role_failed(self, error: HybridSyncError) -> None:
        with self.chief.control.turn() as chief:
            chief.waits.fail(error)
        self._break_off(str(error))

    def _break_off(self, reason: str) -> None:
        """End every wait of one worker for another, whatever the protocol."""
        with self._lock:
            waits = [self._primary.break_off, *(each.break_off for each in self._communicators.values())]
        for break_off in waits:
            break_off(reason)

    def _beat(self) -> None:
        """Report for every role, and at once when the primary has applied the phase's last unit."""
        while not self._stop.is_set():
            self._wake.wait(REPORT_SECS)
            self._wake.clear()
            served = self._primary.take_report().as_report(0, self._server_incarnation)
            self.chief.service.report(served)
            self._log_start(served)
            for worker, recorder in enumerate(self._recorders):
                if not recorder.incarnation:
                    continue
                report = recorder.take_report()
                self._log_start(report)
                if self.chief.service.report(report).revoked and worker in self._loops:
                    self._loops[worker].revoke(report.phase_id, "the chief has revoked the phase")

    def _log_start(self, report: Report) -> None:
        """Log what the start has compiled, once the first unit was applied."""
        if self._compilations is not None and report.applied:
            self._compilations.say_all("the first unit")
            self._compilations = None

    # --- how roles find each other ---

    def _link_of(self, phase: Phase) -> ServerLink:
        return self._transport.link(phase.servers)

    def _communicator_of(self, phase: Phase) -> Communicator:
        with self._lock:
            if phase.id not in self._communicators:  # all threads of the phase share one
                self._communicators[phase.id] = self._collectives.communicator(phase)
            return self._communicators[phase.id]

    def _hello(self, role: str, role_id: int, address: str, schema: str) -> Hello:
        on_cpu = self._opening.run.config.devices.platform == "cpu" or jax.default_backend() == "cpu"
        has_accelerator = role == "worker" and not on_cpu
        devices = (f"seat {role_id % self._programs.placement.num_seats}",) if has_accelerator else ()
        who = Hello(
            role, role_id, os.getpid(), host=socket.gethostname(), address=address, schema=schema, version=__version__
        )
        return replace(who, devices=devices)
