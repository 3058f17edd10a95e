"""A worker's process: in the process group, client of the chief and the server, holder of its replica."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from absl import logging

from hybridsync.collectives.backend import Place
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_FAILED, HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.core.work_deadlines import COMPILE_SECS, SLACK_SECS, TRAINING_SECS, Watching
from hybridsync.devices.placement import let_go_of_arguments, local_devices
from hybridsync.interfaces.messages import Hello
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ReportReply
from hybridsync.protocols.base import FLOAT32
from hybridsync.runtime.role.compilations import Compilations, own_log
from hybridsync.runtime.role.heartbeat import (
    CHIEF_SECS,
    Heartbeat,
    ReconnectingChiefClient,
    hello,
)
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.role.worker_wiring import unit_tracer, worker_context, worker_loop, worker_recorder
from hybridsync.runtime.wiring import collectives_of, transport_of
from hybridsync.security.keyring import Keyring
from hybridsync.server.partition import partition
from hybridsync.storage.apply_log import open_apply_log
from hybridsync.training.compiled_programs import Parameters, Programs
from hybridsync.training.evaluation import StateEvaluator
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState
from hybridsync.training.wire import narrowed_parameters
from hybridsync.transport.directory import Readers
from hybridsync.transport.link import Services
from hybridsync.worker.link import ServerLink
from hybridsync.worker.loop import WorkerLoop
from hybridsync.worker.replica import Replica
from hybridsync.worker.unit_tracer import WRITE_SECS

JOIN_SECS = 300.0
REPORT_SECS = 0.5
"""Between two heartbeats; the chief answers earlier when it has news."""


def run_worker(
    spec: RoleSpec,
    keys: Keyring,
    make_run: Callable[[], Run],
    chief_address: Callable[[], str],
    at_unit: Callable[[int], None],
    report: Callable[[dict], None],
    watchdog: Watching,
) -> int:
    """Join the process group, train until the chief says that the run is over, and return the exit code.

    Args:
      spec: role of this process, and the addresses of the others.
      keys: keys of this process.
      make_run: builds task and optimizer; called after the join, because it may touch JAX.
      chief_address: waits until the chief serves, and returns its address; called once the programs are compiled.
      at_unit: records which unit is computed, should this process end on it.
      report: sends a report to the supervisor: {"joined": ...} once its collectives wait for no other worker any more.
      watchdog: watchdog of this process.

    Raises:
      HybridSyncError: refused input, or the run could not go on.
    """
    loop: WorkerLoop | None = None
    # To find its service, then for the others
    with watchdog.work("joining the process group", 2 * JOIN_SECS + SLACK_SECS):
        place = Place(
            spec.coordinator,
            spec.role_id,
            spec.slots or tuple(range(spec.num_workers)),
            spec.host,
            spec.num_devices,
            reborn=spec.restart_count > 0,
            timeout_secs=JOIN_SECS,
        )
        make_collectives = collectives_of(spec.collective).join(place)
    report({"joined": spec.coordinator})
    run = make_run()
    assert run.workdir is not None
    clock = SYSTEM_CLOCK
    recorder = worker_recorder(run, spec.role_id, clock)
    recorder.at_unit, recorder.watchdog = at_unit, watchdog
    compilations = Compilations(recorder.compiled, watchdog, own_log)
    devices = local_devices(run.config.devices.platform)  # asked for by name: JAX may have fallen back to the CPU
    programs = run.programs(donate_parameters=True, placement=run.placement(devices, 1))
    collectives = make_collectives(programs)
    with watchdog.work("compiling the programs", COMPILE_SECS):
        local_updates = {stage.change(run.config.workers) == "replace" for stage in run.stages if stage.local_updates}
        wires = {stage.wire_dtype for stage in run.stages} - {FLOAT32}
        several = run.config.policy.assigns_several
        warm_up(programs, several=several, local_updates=local_updates, wires=wires)
        let_go_of_arguments()
        if spec.restart_count == 0:  # its members meet when a phase names it: none waits here for one that has died
            collectives.prepare(
                sums=any(stage.mode.moves_together for stage in run.stages),
                groups=any(stage.mode.has_group_rounds for stage in run.stages),
            )
    compilations.say_all("the first phase")

    chief_at = chief_address()  # which has opened the workdir: before, what is in it is not this run's
    apply_log = open_apply_log(run.workdir, run.config.telemetry.apply_log, others_note_too=True)
    transport = transport_of(spec.link, keys)
    readers = Readers(transport.holder)
    replica = Replica(programs, readers, clock, apply_log, transport.allocate)
    own_state = [stage.mode for stage in run.stages if not stage.mode.is_served]
    if own_state:
        holder = own_state[0].holder(tuple(range(run.config.workers)))
        replica.reserve(captured=holder == ("worker", spec.role_id))
    evaluate = None
    if run.is_measured_by_workers(programs.state):  # by links of its own: a revoked phase closes the replica's
        own = run.evaluator(programs.placement, watchdog.progress)
        evaluate = StateEvaluator(own, programs.state_layout, Readers(transport.holder)).evaluate
    services = Services(holder=replica, state_bytes=programs.state_layout.nbytes, evaluate=evaluate)
    serving = transport.serve(services, spec.listen, calls=5, watchdog=watchdog)

    def hello_now() -> Hello:
        stands = loop.role_state() if loop else None
        return hello(spec, serving.address, programs.state_layout.schema_hash, stands, programs.frozen.digests())

    chief = ReconnectingChiefClient(transport.chief(chief_at, CHIEF_SECS + run.config.hang.silent_secs), hello_now)

    def ended(error: HybridSyncError | None) -> None:
        if error is not None:  # the main thread may hang in a collective, or train in vain
            logging.error("worker %d ends: %s", spec.role_id, error)
            logging.flush()
            os._exit(EXIT_FAILED)

    def link_of(phase: Phase) -> ServerLink:
        let_go_of_arguments()  # the last total among them
        collectives.rest()
        return transport.link(phase.servers, partition(programs, run.config.servers, phase.protocol.wire_dtype))

    tracer = unit_tracer(run, f"worker-{spec.role_id}")
    with ThreadPoolExecutor(1, "leases") as ahead:
        loop = worker_loop(
            run,
            worker_context(run, spec.role_id, programs, recorder, chief, tracer=tracer),
            chief,
            replica,
            communicator_of=collectives.communicator,
            link_of=link_of,
            ahead=ahead,
        )
        recorder.incarnation = chief.register().incarnation

        def heard(phase_id: PhaseId, reply: ReportReply) -> None:
            if reply.revoked and loop.is_inside(phase_id):  # else it is on its way already, and may read a state
                readers.close()
                loop.revoke(phase_id, "the chief has revoked the phase")

        heartbeat = Heartbeat(
            chief, recorder.take_report, 0.0, threading.Event(), ended, hold_secs=REPORT_SECS, heard=heard
        )
        heartbeat.start()
        with watchdog.work("the loop over phases", TRAINING_SECS):
            loop.run()
        if tracer is not None:
            with watchdog.work("writing a trace", WRITE_SECS + SLACK_SECS):
                tracer.close()
    heartbeat.stop()
    serving.stop()
    return 0


def warm_up(
    programs: Programs, *, several: bool = False, local_updates: Collection[bool] = (), wires: Collection[str] = ()
) -> None:
    """Compile and run the programs once, on zeros, as the phases will call them.

    Without devices of its own a worker has its replica's parameters on the default device, and a server's reply and a
    total as views in host memory. Neither is bound to a device, so that one compiled program takes both.

    Args:
      programs: programs of the run.
      several: whether a member may take several units of a lock-step step, whose gradients it sums up.
      local_updates: for the plan's phases with local updates, whether a push replaces the servers' parameters.
      wires: number formats in which the parameters of the plan's phases travel.
    """
    update = programs.compile_update()
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), programs.state)
    state: TrainState = programs.placement.put(zeros)
    gradient = programs.gradient(Parameters(state.params, state.model_state), 0)
    for wire in wires:
        shapes = narrowed_parameters(programs.parameters, wire)
        arrived = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
        jax.block_until_ready(programs.gradient(arrived, 0, wire))
    if several:
        jax.block_until_ready(programs.sum((gradient, gradient)))
    for replaces in local_updates:  # a worker that had few units in its first such phase would compile in a later one
        opt_state = programs.placement.at_worker(zeros.opt_state, 0)
        parameters, moved = Parameters(state.params, state.model_state), None
        for _ in range(2):  # the first step since a version has moved nothing yet, and is a program of its own
            parameters, opt_state, moved = programs.local_step(
                parameters, opt_state, moved, gradient, at=0, factor=1.0, replaces=replaces
            )
        difference = programs.difference(gradient, moved)
        jax.block_until_ready(programs.combine(parameters, difference, 1.0, replaces))
    total = programs.placement.at_replica(jax.device_get(gradient))
    update.join()
    jax.block_until_ready(programs.update(state, total, units=1, factor=1.0, blend=1.0))
