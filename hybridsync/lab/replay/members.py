"""Phases of the process runtime, computed again in processes like the run's own.

The collectives are the recorded ones. gloo sums in ring order, so a lock-step phase needs as many processes in the
recorded order: process i has the place of the recorded member i, whichever slot that had. And bits depend on the number
of XLA's threads: the text model's gradient differs between 1, 2 and 16. It is the recorded one, and with gloo at least
16, one for each local device. So a served phase is computed by a process that has joined the same kind of collectives,
alone.

The parent hands over the starting state in a file of packed bytes; the phase's first member writes the resulting one
into the same folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from hybridsync.collectives.backend import Place
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.lab.replay.group_replay import in_groups
from hybridsync.lab.replay.logged_run import LoggedPhase, read_record
from hybridsync.lab.replay.phases import as_member, on_one_device
from hybridsync.runtime.agent.fork_server import ForkServerClient
from hybridsync.runtime.agent.host_resources import xla_threads
from hybridsync.runtime.agent.role_addresses import RoleAddresses
from hybridsync.runtime.agent.role_process import RoleProcess, describe_exit
from hybridsync.runtime.role.role_pipe import Child, RoleSpec, readable
from hybridsync.runtime.wiring import collectives_of
from hybridsync.training.buffer_layout import Layout
from hybridsync.training.run import Run
from hybridsync.training.state import TrainState

ROLE = "member"
SILENT_SECS = 600.0
"""How long no member may report progress: imports and compilation of all of them on few cores."""
JOIN_SECS = 300.0
REPORT_SECS = 1.0
LEAVE_SECS = 30.0
_BEFORE, _AFTER, _JOB = "before", "after", "job.json"


def in_members(
    fork_server_client: ForkServerClient,
    workdir: Path,
    layout: Layout,
    state: TrainState,
    phase: LoggedPhase,
    progress: Callable,
) -> TrainState:
    """Return the state after `phase`, as numpy arrays.

    Args:
      fork_server_client: starts a member (it comes to `run_member`).
      workdir: the run's workdir; the members' logs go to `logs/` in it, which exists.
      layout: layout of the state.
      state: starting state, arrays of any kind.
      phase: a phase of the process runtime.
      progress: called with the number of updates now and then.

    Raises:
      RoleLost: a member ended early; the message holds the end of its log.
      WaitTimeout: no member made progress.
      HybridSyncError: the error of a member.
    """
    num_members = 1 if phase.mode.is_served else len(phase.members)
    logs = workdir / "logs"
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        job = Path(folder)
        layout.pack(state).tofile(job / _BEFORE)
        (job / _JOB).write_text(json.dumps({"phase": phase.number, "after": phase.after}))
        members: list[RoleProcess] = []
        with contextlib.ExitStack() as stack:
            addresses = RoleAddresses()
            stack.callback(addresses.close)
            backend = collectives_of(phase.collective)
            service = backend.serve(tuple(range(num_members)), addresses.next_service())
            stack.callback(service.stop)
            stack.callback(_end, members)
            for index in range(num_members):
                log = logs / f"replay-{index}.log"
                environment = xla_threads(phase.num_threads)
                ordered = RoleProcess(fork_server_client, ROLE, index, 0, log, environment=environment)
                members.append(ordered.started())
                spec = RoleSpec(
                    ROLE,
                    index,
                    0,
                    coordinator=service.address,
                    workdir=str(job),
                    num_workers=num_members,
                    num_servers=0,
                    host=addresses.host,
                    collective=phase.collective,
                    num_devices=backend.num_devices,
                )
                members[-1].send_spec(spec)
            _await_members(members, phase, progress)
        return _read(layout, job / _AFTER)


def _end(members: list[RoleProcess]) -> None:
    for member in members:
        member.kill()
    for member in members:
        member.reap()


def _await_members(members: list[RoleProcess], phase: LoggedPhase, progress: Callable[[int], None]) -> None:
    """Wait until every member has said that it is done; one that ended early is reaped and taken off `members`."""
    waiting = {member.role_id: member for member in members}
    deadline = SYSTEM_CLOCK.monotonic() + SILENT_SECS
    while waiting:
        remaining = deadline - SYSTEM_CLOCK.monotonic()
        if remaining <= 0:
            raise WaitTimeout(
                f"members {sorted(waiting)} of the replay of {phase} made no progress for {SILENT_SECS:g} s; see "
                "their logs"
            )
        handles = [handle for member in waiting.values() for handle in (member.report_fd, member.pidfd)]
        found = readable(remaining, *handles)
        for member in list(waiting.values()):
            for report in member.read_reports():
                deadline = SYSTEM_CLOCK.monotonic() + SILENT_SECS
                if "error" in report:
                    raise HybridSyncError(f"{member.name} of the replay of {phase}: {report['error']}")
                if "update" in report:
                    progress(report["update"])
                if report.get("done"):
                    waiting.pop(member.role_id, None)
            if member.role_id in waiting and member.pidfd in found:
                members.remove(member)
                how = describe_exit(member.reap())
                raise RoleLost(f"{member.name} of the replay of {phase} ended early: {how}; {member.log_tail()}")


def run_member(child: Child, spec: RoleSpec, workdir: Path, make_run: Callable[[], Run]) -> int:
    """Be one process of a phase that is computed again, and return the exit code.

    Args:
      child: the line to the parent.
      spec: role of this process; its workdir is the job's folder.
      workdir: the run's workdir.
      make_run: builds task and optimizer; called after the join, because it may touch JAX.

    Raises:
      HybridSyncError: the phase could not be computed.
    """
    slots = tuple(range(spec.num_workers))
    place = Place(spec.coordinator, spec.role_id, slots, spec.host, spec.num_devices, timeout_secs=JOIN_SECS)
    make_collectives = collectives_of(spec.collective).join(place)
    job = Path(spec.workdir)
    told = json.loads((job / _JOB).read_text())
    run = make_run()  # first: the configuration file may register the phase's protocol
    phase = next(phase for phase in read_record(workdir).phases if phase.number == told["phase"])
    phase = dataclasses.replace(phase, after=told["after"])
    lockstep = phase.mode.moves_together
    programs = run.programs(donate_parameters=lockstep)
    state = jax.device_put(_read(programs.state_layout, job / _BEFORE), jax.local_devices()[0])
    communicator = make_collectives(programs).communicator(dataclasses.replace(phase, members=slots))
    note = _Progress(child)
    if lockstep:
        communicator.enter()
        state = as_member(
            programs, state, phase, worker=phase.members[spec.role_id], communicator=communicator, note=note
        )
    elif phase.mode.has_group_rounds:
        state = in_groups(programs, state, phase, note, (communicator, spec.role_id))
    else:
        state = on_one_device(programs, state, phase, note)
    if spec.role_id == 0:
        programs.state_layout.pack(state).tofile(job / _AFTER)
    child.report(done=True)
    return 0


class _Progress:
    """Reports updates to the parent, not more often than every REPORT_SECS."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._next = 0.0

    def __call__(self, update: int) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if now >= self._next:
            self._next = now + REPORT_SECS
            self._child.report(update=update)


def _read(layout: Layout, path: Path) -> TrainState:
    """Return a packed state as views of a fresh buffer."""
    buffer = layout.empty()
    np.copyto(buffer, np.fromfile(path, np.uint8))
    return layout.unpack(buffer)
