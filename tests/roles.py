"""Roles wired by hand: phases, a holder of the starting state, a primary."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hybridsync import __version__
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.interfaces.commands import StatusReply, StopReply, StopRequest, SwitchReply, SwitchRequest
from hybridsync.interfaces.messages import Hello, Push, RoleState, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.server.primary import Primary
from hybridsync.server.publisher import DevicePublisher
from hybridsync.server.shard_state import Publisher
from hybridsync.storage.apply_log import ApplyLog, NullApplyLog
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.snapshot import SnapshotBuffer
from hybridsync.training.state import TrainState, initial_state
from tests.tasks import plain_sgd, programs_of, tally_task

WORKLOAD = 64
CHIEF = "chief"


def hello(
    worker: int,
    *,
    role: str = "worker",
    pid: int = 0,
    schema: str = "schema",
    restart_count: int = 0,
    role_state: RoleState | None = None,
    devices: tuple[str, ...] = (),
) -> Hello:
    who = Hello(role, worker, pid, "host", f"{role}:{worker}", schema, __version__, restart_count, role_state)
    return dataclasses.replace(who, devices=devices)


def phase_of(
    number: int = 1,
    spec: str = "asp",
    *,
    members: tuple[int, ...] = (0, 1, 2, 3),
    end: int = WORKLOAD,
    snapshot: Snapshot | None = None,
    source: str = CHIEF,
    servers: tuple[str, ...] = (),
    shares: tuple[int, ...] = (),
    evaluate_units: int = 0,
) -> Phase:
    return Phase(
        id=PhaseId(number, 77),
        spec=spec,
        members=members,
        device_choice=0,
        end_units=end,
        applied=snapshot.applied if snapshot else (),
        dropped=snapshot.dropped if snapshot else (),
        sequence=snapshot.held.sequence if snapshot else 0,
        source=source,
        snapshot_id=snapshot.snapshot_id if snapshot else 1,
        fingerprint=snapshot.held.fingerprint if snapshot else "",
        servers=servers,
        reason="start",
        shares=shares,
        evaluate_units=evaluate_units,
    )


@functools.cache
def tally_programs() -> Programs:
    """Return the programs whose parameters count applied units."""
    return programs_of(tally_task(WORKLOAD), plain_sgd(1.0), unit_size=1, workload=WORKLOAD)


@functools.cache
def tally_state() -> TrainState:
    return jax.device_get(initial_state(tally_programs().task, tally_programs().optimizer, 0))


class Start:
    """A holder of the tally's starting state, and who else can be reached."""

    def __init__(self) -> None:
        self.snapshot_buffer = SnapshotBuffer(tally_programs().state_layout)
        self.snapshot_buffer.pack(tally_state())
        self.snapshot = self.snapshot_buffer.finalize(NO_PHASE, sequence=0, applied=())
        self.roles: dict[str, Any] = {CHIEF: self.snapshot_buffer}

    def reader_at(self, address: str) -> Any:
        return self.roles[address]

    def primary(
        self,
        apply_log: ApplyLog | None = None,
        programs: Programs | None = None,
        publisher: Publisher | None = None,
        failed: Callable[[HybridSyncError], None] = lambda error: None,
        allocate: Callable[[int], np.ndarray] | None = None,
    ) -> Primary:
        """Return a primary that has not entered a phase yet."""
        primary = Primary(
            programs or tally_programs(),
            publisher or DevicePublisher(),
            self.reader_at,
            SYSTEM_CLOCK,
            apply_log or NullApplyLog(),
            threading.Event(),
            failed=failed,
            allocate=allocate,
        )
        self.roles["primary"] = primary
        return primary


def push_of(phase: Phase, *units: int, worker: int = 0, incarnation: int = 1, base: int = 0) -> Push:
    return Push(phase.id, worker, incarnation, units, base)


def gradient_of(unit: int) -> Any:
    """Return the contribution of one unit of the tally."""
    programs = tally_programs()
    parameters = programs.parameters_layout.unpack(programs.parameters_layout.empty())
    return programs.gradient(parameters, unit)


def counts(state: TrainState) -> list[int]:
    """Return how often each unit was applied."""
    return [round(-float(value)) for value in state.params["tally"]]


class WithoutCommands:
    """A chief that no user speaks to."""

    def status(self) -> StatusReply:
        raise AssertionError("nobody asks")

    def switch(self, request: SwitchRequest) -> SwitchReply:
        raise AssertionError("nobody asks")

    def stop(self, request: StopRequest) -> StopReply:
        raise AssertionError("nobody asks")
