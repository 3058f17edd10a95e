"""A parameter server's process: the primary, or another server's store, behind gRPC, on CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, WaitTimeout
from hybridsync.core.work_deadlines import COMPILE_SECS, Watching
from hybridsync.devices.placement import let_go_of_arguments
from hybridsync.interfaces.messages import Hello
from hybridsync.interfaces.reports import Report
from hybridsync.runtime.role.compilations import Compilations, own_log
from hybridsync.runtime.role.heartbeat import (
    CHIEF_SECS,
    Heartbeat,
    ReconnectingChiefClient,
    hello,
)
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.role.server_wiring import primary_services
from hybridsync.runtime.wiring import transport_of
from hybridsync.security.keyring import Keyring
from hybridsync.server.endpoint import OptimizerEndpoint
from hybridsync.server.partition import PRIMARY, Contributions, partition
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import ParameterPool
from hybridsync.server.replication import Peers
from hybridsync.server.secondary import Secondary
from hybridsync.storage.apply_log import open_apply_log
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.run import Run
from hybridsync.transport.directory import Directory, Readers
from hybridsync.transport.link import Services

REPORT_SECS = 0.2
RUN_SECS = 365 * 86400.0


def run_server(spec: RoleSpec, keys: Keyring, run: Run, chief_address: Callable[[], str], watchdog: Watching) -> int:
    """Serve until the chief says that the run is over, and return the exit code.

    Args:
      spec: role of this process, and the addresses of the others.
      keys: keys of this process.
      run: what to run.
      chief_address: waits until the chief serves, and returns its address; called once the programs are compiled.
      watchdog: watchdog of this process.

    Raises:
      HybridSyncError: the chief refused this process or is gone, or the servers cannot go on together.
    """
    assert run.workdir is not None
    compile_secs: list[float] = []
    compilations = Compilations(compile_secs.append, watchdog, own_log)
    clock, workers = SYSTEM_CLOCK, run.config.workers
    programs = run.programs(donate_parameters=True)
    completed = threading.Event()
    over = threading.Event()
    failure: list[HybridSyncError] = []

    def ended(error: HybridSyncError | None) -> None:
        if error is not None:
            failure.append(error)
        over.set()

    num_servers = run.config.servers
    with watchdog.work("compiling the programs", COMPILE_SECS):
        parts = partition(programs, num_servers)
        part = parts[spec.role_id]
        own = part.programs
        warm_up(own)
        let_go_of_arguments()
    compilations.say_all("the first phase")
    chief_at = chief_address()  # which has opened the workdir: before, what is in it is not this run's
    apply_log = open_apply_log(run.workdir, run.config.telemetry.apply_log)
    transport = transport_of(spec.link, keys)
    readers = Readers(transport.holder)
    backend: Primary | Secondary
    if spec.role_id == PRIMARY:
        connect = partial(transport.peer, state_bytes=programs.state_layout.nbytes)
        peers = Peers(parts, Directory(connect, lambda address: address in peers.servers), ended)
        pool = ParameterPool(own.parameters_layout, transport.allocate, part.narrow_parameters)
        backend = Primary(
            programs,
            pool,
            readers,
            clock=clock,
            apply_log=apply_log,
            completed=completed,
            peers=peers,
            watchdog=watchdog,
            failed=ended,
            allocate=transport.allocate,
        )
        offered = primary_services(run, programs, backend, clock, Contributions(part))
        offered = replace(offered, num_buffers=workers + 2)
    else:
        backend = Secondary(part, readers, clock, watchdog=watchdog, failed=ended, allocate=transport.allocate)
        early = max(protocol.num_answered_early(workers) for protocol in run.stages)
        offered = Services(holder=backend, server=backend, shard=backend, num_buffers=2 * workers + 2 + early)
    if any(stage.mode.is_served for stage in run.stages):
        backend.reserve()
    opt_layout = part.opt_state.layout
    services = replace(
        offered,
        state_bytes=programs.state_layout.nbytes,
        optimizer=OptimizerEndpoint(backend, opt_layout),
        contribution_bytes=own.contribution_layout.nbytes,
        narrow_bytes=part.narrow_bytes,
        opt_state_bytes=opt_layout.nbytes,
    )
    serving = transport.serve(services, spec.listen, calls=3 * workers + 4, watchdog=watchdog)

    def hello_now() -> Hello:
        return hello(spec, serving.address, programs.state_layout.schema_hash, backend.role_state())

    chief = ReconnectingChiefClient(transport.chief(chief_at, CHIEF_SECS + run.config.hang.silent_secs), hello_now)
    incarnation = chief.register().incarnation

    def drain() -> Report:
        secs = sum(compile_secs)
        compile_secs.clear()
        return backend.take_report().as_report(spec.role_id, incarnation, secs)

    Heartbeat(chief, drain, REPORT_SECS, completed, ended).start()
    if not over.wait(RUN_SECS):
        raise WaitTimeout(f"server {spec.role_id} served for {RUN_SECS:g} s and the chief has not ended the run")
    serving.stop()
    readers.close()  # a state that is being fetched is not needed any more, and the process would wait for it
    if failure:
        raise failure[0]
    return 0


def warm_up(programs: Programs) -> None:
    """Compile and run the sum and the update once, on zeros, as a phase will call them."""
    jax.block_until_ready(programs.sum((programs.one, programs.one)))
    state = programs.placement.put_at_server(jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), programs.state))
    jax.block_until_ready(programs.update(state, programs.one, units=1, factor=1.0, blend=1.0))
