"""The chief's process: ledger, membership, switches, checkpoints, evaluation; in no process group, on CPU."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from absl import logging

from hybridsync.chief.run_state import RunStateSpec
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import EXIT_COMPLETED, EXIT_PREEMPTED, RESTARTING, AddressError
from hybridsync.core.work_deadlines import LOOP_SECS, Watching
from hybridsync.interfaces.messages import RoleEvent
from hybridsync.interfaces.ports import ServerPort, SnapshotSource
from hybridsync.policies.plan_checks import checked_order
from hybridsync.runtime.control_file import remove_control, write_control
from hybridsync.runtime.role.chief_wiring import ChiefRole
from hybridsync.runtime.role.role_pipe import RoleSpec
from hybridsync.runtime.wiring import transport_of
from hybridsync.security.keyring import Keyring
from hybridsync.storage.durable import Fence, HeldLock
from hybridsync.telemetry.progress import open_progress
from hybridsync.telemetry.prometheus import serve_metrics
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.run import Run
from hybridsync.transport.directory import Directory
from hybridsync.transport.link import Services, Transport
from hybridsync.workdir.opening import AlreadyCompleted, Opening, Resume, open_run
from hybridsync.workdir.resuming import Allowed

TELL_SECS = 5.0
"""How long the chief waits for roles to hear that the run is over; they report every half second."""


@dataclass(frozen=True)
class ChiefSpec:
    """How a chief opens and serves its run.

    Attributes:
      role: The chief's role: where it serves, and the collectives, links and threads of all roles.
      resume: See `open_run`; a chief that follows another goes on in any case.
      init_from: See `open_run`.
      allowed: `convert_units` and `accept_changes` of `open_run`.
      metrics: Address and port at which Prometheus finds the run's figures; port 0 for none.
      restarts: Whether all roles start again at each planned switch.
      lock: Lock of the workdir, which the supervisor has taken; None where it has not.
    """

    role: RoleSpec
    resume: Resume
    init_from: Path | None
    allowed: Allowed
    metrics: tuple[str, int]
    restarts: bool = False
    lock: HeldLock | None = None

    @property
    def is_restarted(self) -> bool:
        """Whether another chief served this run before, whose roles may still train."""
        return self.role.restart_count > 0


def run_chief(
    run: Run,
    spec: ChiefSpec,
    *,
    keys: Keyring,
    user_keys: Keyring,
    report: Callable[[dict], None],
    watchdog: Watching,
    screen: TextIO = sys.stderr,
) -> int:
    """Open the run, serve its roles, take it to its end, and return the exit code.

    Args:
      run: what to run.
      spec: the way to open and serve it.
      keys: keys of this process.
      user_keys: keys of the run's user, for the commands.
      report: sends a report to the supervisor: {"address": ...} once served.
      watchdog: watchdog of this process.
      screen: stream on which progress is shown.

    Raises:
      HybridSyncError: refused input, or the run could not go on.
    """
    clock = SYSTEM_CLOCK
    try:
        with watchdog.work("opening the run", LOOP_SECS):
            opening = open_run(
                run,
                resume="auto" if spec.is_restarted else spec.resume,
                init_from=spec.init_from,
                **spec.allowed,
                alive=spec.is_restarted,
                held=spec.lock,
                check_order=partial(checked_order, sums_refused=spec.role.sums_refused),
            )
    except AlreadyCompleted as done:
        print(done, file=screen, flush=True)
        return EXIT_COMPLETED
    run = opening.run
    assert run.workdir is not None and opening.lock is not None
    recorder = Recorder.open(
        run.workdir,
        clock,
        timeline=run.config.telemetry.timeline,
        progress=open_progress(run.config.workload, screen, clock),
        restarted=spec.is_restarted,
        opened=spec.role.opened or None,
        fence=opening.fence,
    )
    try:
        with watchdog.work("the run", LOOP_SECS):
            transport = transport_of(spec.role.link, keys)
            summary = _manage(spec, opening, recorder, transport, user_keys=user_keys, report=report, watchdog=watchdog)
    finally:
        recorder.close()
        opening.lock.release()
    if summary.exit == "restarting":
        return RESTARTING
    return EXIT_COMPLETED if summary.is_over else EXIT_PREEMPTED


def _manage(
    spec: ChiefSpec,
    opening: Opening,
    recorder: Recorder,
    transport: Transport,
    *,
    user_keys: Keyring,
    report: Callable[[dict], None],
    watchdog: Watching,
) -> Summary:
    run = opening.run
    state = run.abstract_state()
    layout = Layout.of(state)

    def evict(event: RoleEvent) -> None:
        quarantine = event.reason if event.quarantined else ""
        which = {"role": event.role, "id": event.id, "pid": event.pid, "restart_count": event.restart_count}
        report({"kill": {**which, "quarantine": quarantine}})

    role = ChiefRole(
        opening,
        layout,
        SYSTEM_CLOCK,
        spec=RunStateSpec(
            restarted=spec.is_restarted,
            restarts=spec.restarts,
            evict=evict,
            ask_stop=lambda: report({"stop": True}),
            leave=lambda: report({"over": True}),
        ),
        watchdog=watchdog,
        allocate=transport.allocate,
    )
    committed, control = role.committed, role.control
    services = Services(holder=committed, state_bytes=layout.nbytes, chief=role.service)
    serving = transport.serve(services, spec.role.listen, calls=4 * run.config.workers + 8, watchdog=watchdog)
    bound = serving.address
    report({"address": bound})
    with contextlib.ExitStack() as control_file:  # removed whatever fails from here on
        if run.workdir is not None:
            control_file.callback(remove_control, run.workdir, opening.fence)
            write = partial(_tell_commands, run.workdir, bound, user_keys, opening.fence)
            control_file.enter_context(user_keys.followed_by(write))
        here = {"phase": opening.phase_number, "id": 0, "host": socket.gethostname()}
        if not spec.is_restarted:
            devices = run.config.devices
            # The last bits of each result depend on these.
            bits = {"collective": spec.role.collective, "num_threads": spec.role.num_threads}
            bits |= {"mesh": devices.axes, "platform": devices.platform}
            opening.announce(recorder, runtime="processes", address=bound, **bits)
            coordinator = spec.role.coordinator
            recorder.events.write("role_started", role="supervisor", pid=os.getppid(), address=coordinator, **here)
        recorder.events.write("role_started", role="chief", pid=os.getpid(), address=bound, **here)

        def is_live(address: str) -> bool:
            with control.turn() as chief:
                return chief.members.is_live(address)

        other_holder_at = Directory(partial(transport.holder, state_bytes=layout.nbytes), is_live)
        server_at = Directory(partial(transport.server, state_bytes=layout.nbytes), is_live)
        served: set[str] = set()

        def servers() -> Mapping[str, ServerPort]:
            with control.turn() as chief:
                addresses = [chief.members.address_of("server", index) for index in range(run.config.servers)]
            served.update(addresses)
            return {server: server_at(server) for server in addresses}

        def holder_at(address: str) -> SnapshotSource:
            if address in served:  # by the connection that is there: a server that stands still takes no new one
                return server_at(address)
            return committed if address == bound else other_holder_at(address)

        by_workers = run.is_measured_by_workers(state)
        controller = role.controller(
            bound,
            recorder,
            servers=servers,
            holder_at=holder_at,
            renew=lambda: report({"renew": True}),
            num_devices=spec.role.num_devices,
            evaluator_at=partial(transport.evaluator, state_bytes=layout.nbytes) if by_workers else None,
        )
        goes_on = spec.is_restarted or opening.reason == "resume"
        stop_metrics = _serve_metrics(spec.metrics, role, goes_on)
        try:
            return controller.run()
        finally:
            stop_metrics()
            control_file.close()
            control.await_all_informed(TELL_SECS)
            serving.stop(grace_secs=1.0, wait_secs=TELL_SECS)


def _tell_commands(workdir: Path, address: str, keys: Keyring, fence: Fence) -> None:
    """Say where the commands of the run's user find this chief; without that the run goes on."""
    try:
        write_control(workdir, address, keys.token, supervisor=os.getppid(), credentials=keys.credentials, fence=fence)
    except OSError as error:
        logging.error("hybridsync status, switch and stop will not find this run: %s", error)


def _serve_metrics(place: tuple[str, int], role: ChiefRole, goes_on: bool) -> Callable[[], None]:
    """Serve the run's figures to Prometheus; a run that goes on does so without, if another program has the port now.

    Raises:
      AddressError: the port is in use, and the run begins.
    """
    host, port = place
    if not port:
        return lambda: None
    try:
        return serve_metrics(host, port, role.service.status)
    except AddressError as error:
        if not goes_on:
            raise
        logging.error("the run goes on without its metrics: %s", error)
        return lambda: None
