"""The chief's process: ledger, membership, switches, checkpoints, evaluation; in no process group, on CPU."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TextIO

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_PREEMPTED
from hybridsync.core.work_deadlines import LOOP_SECS, Watching
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.ports import ServerPort, SnapshotSource
from hybridsync.runtime.heartbeat import use_compilation_cache
from hybridsync.runtime.wiring.chief import ChiefRole
from hybridsync.runtime.wiring.transport import transport_of
from hybridsync.telemetry.progress import open_progress
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.run import Run
from hybridsync.transport.directory import Directory
from hybridsync.transport.link import Services, Transport
from hybridsync.workdir.opening import AlreadyCompleted, Opening, Resume, open_run

TELL_SECS = 5.0
"""How long the chief waits for roles to hear that the run is over; they report every half second."""


def run_chief(
    run: Run,
    *,
    resume: Resume,
    init_from: Path | None,
    convert_units: bool,
    address: str,
    token: str,
    restarted: bool,
    coordinator: str,
    collective: str,
    link: str,
    num_devices: int,
    num_threads: int | None,
    report: Callable[[dict], None],
    watchdog: Watching,
    screen: TextIO = sys.stderr,
    lock_fd: int | None = None,
) -> int:
    """Open the run, serve its roles, take it to its end, and return the exit code.

    Args:
      run: what to run.
      resume: see `open_run`.
      init_from: see `open_run`.
      convert_units: see `open_run`.
      address: to serve on.
      token: of the run.
      restarted: another chief served this run before, whose roles may still train.
      coordinator: address where the supervisor, this process's parent, serves the process group.
      collective: how the workers sum among themselves.
      link: how buffers go between processes.
      num_devices: local devices of each worker, among which a mesh of the process group chooses.
      num_threads: with which XLA computes in each role; None leaves it to XLA.
      report: tells the supervisor: {"address": ...} once served.
      watchdog: of this process.
      screen: where progress is shown.
      lock_fd: by which the supervisor has locked the workdir; None where it has not.

    Raises:
      HybridSyncError: refused input, or the run could not go on.
    """
    clock = SYSTEM_CLOCK
    try:
        with watchdog.work("opening the run", LOOP_SECS):
            opening = open_run(
                run,
                resume=resume,
                init_from=init_from,
                convert_units=convert_units,
                alive=restarted,
                lock_fd=lock_fd,
            )
    except AlreadyCompleted as done:
        print(f"{done}; nothing is left to do", file=screen, flush=True)
        return EXIT_COMPLETED
    run = opening.run
    assert run.workdir is not None and opening.lock is not None
    use_compilation_cache(run.workdir)
    recorder = Recorder.open(
        run.workdir,
        clock,
        timeline=run.config.telemetry.timeline,
        progress=open_progress(run.config.workload, screen, clock),
        restarted=restarted,
    )
    try:
        with watchdog.work("the run", LOOP_SECS):
            summary = _manage(
                *(opening, recorder, transport_of(link, token), address, restarted),
                *(coordinator, collective, num_devices, num_threads, report, watchdog),
            )
    finally:
        recorder.close()
        opening.lock.release()
    return EXIT_COMPLETED if summary.exit == "completed" else EXIT_PREEMPTED


def _manage(
    opening: Opening,
    recorder: Recorder,
    transport: Transport,
    address: str,
    restarted: bool,
    coordinator: str,
    collective: str,
    num_devices: int,
    num_threads: int | None,
    report: Callable[[dict], None],
    watchdog: Watching,
) -> Summary:
    run = opening.run
    layout = Layout.of(run.abstract_state())

    def evict(event: RoleEvent) -> None:
        quarantine = event.reason if event.quarantined else ""
        report({"kill": {"role": event.role, "id": event.id, "pid": event.pid, "quarantine": quarantine}})

    role = ChiefRole(opening, layout, SYSTEM_CLOCK, restarted=restarted, evict=evict, allocate=transport.allocate)
    committed, control = role.committed, role.chief.control
    services = Services(holder=committed, state_bytes=layout.nbytes, chief=role.chief.service)
    serving = transport.serve(services, address, calls=4 * run.config.workers + 8, watchdog=watchdog)
    bound = serving.address
    report({"address": bound})
    here = {"phase": opening.phase_number, "id": 0, "host": socket.gethostname()}
    if not restarted:
        bits = {"collective": collective, "num_threads": num_threads}  # the last ones of each result depend on them
        opening.announce(recorder, runtime="processes", address=bound, **bits)
        recorder.events.write("role_started", role="supervisor", pid=os.getppid(), address=coordinator, **here)
    recorder.events.write("role_started", role="chief", pid=os.getpid(), address=bound, **here)
    other_holder_at = Directory(partial(transport.holder, state_bytes=layout.nbytes), control.is_live)
    server_at = Directory(partial(transport.server, state_bytes=layout.nbytes), control.is_live)

    def holder_at(address: str) -> SnapshotSource:
        return committed if address == bound else other_holder_at(address)

    def servers() -> Mapping[str, ServerPort]:
        addresses = [control.address_of("server", index) for index in range(run.config.servers)]
        return {server: server_at(server) for server in addresses}

    controller = role.controller(
        bound,
        recorder,
        servers=servers,
        holder_at=holder_at,
        renew=lambda: report({"renew": True}),
        num_devices=num_devices,
        watchdog=watchdog,
    )
    try:
        return controller.run()
    finally:
        report({"over": True})
        control.await_all_informed(TELL_SECS)
        serving.stop(grace_secs=1.0, wait_secs=TELL_SECS)
