"""Chooses the engine of a worker's phase, and what carries out its requests in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridsync.interfaces.phase import Phase
from hybridsync.lab.simulator.drive_events import EventDriver
from hybridsync.lab.simulator.replica_carriers import GroupCarriers, LockstepCarriers
from hybridsync.lab.simulator.server_carriers import ServerCarriers
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER
from hybridsync.worker.group_engine import GroupEngine
from hybridsync.worker.local_engine import LocalEngine
from hybridsync.worker.lockstep_engine import LockstepEngine
from hybridsync.worker.member import PhaseMember
from hybridsync.worker.server_engine import ServerEngine

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_worker import Worker


def driver_of(worker: Worker, phase: Phase) -> EventDriver:
    """Return what runs `phase` for a simulated worker."""
    member = PhaseMember(worker.id, phase, worker.recorder)
    return _OF_MODE[phase.mode](worker, member)


def _lockstep(worker: Worker, member: PhaseMember) -> EventDriver:
    engine = LockstepEngine(member, worker.simulated.arithmetic, ahead=True)
    return EventDriver(worker, member.phase, engine, lambda driver: LockstepCarriers(driver).carriers)


def _served(worker: Worker, member: PhaseMember) -> EventDriver:
    kind = LocalEngine if member.protocol.local_updates else ServerEngine
    engine = kind(member, worker.simulated.arithmetic, ahead=True)
    return EventDriver(worker, member.phase, engine, lambda driver: ServerCarriers(driver).carriers)


def _group(worker: Worker, member: PhaseMember) -> EventDriver:
    engine = GroupEngine(member, worker.simulated.arithmetic, logs=worker.simulated.logs_updates)
    return EventDriver(worker, member.phase, engine, lambda driver: GroupCarriers(driver).carriers)


_OF_MODE = {LOCKSTEP: _lockstep, SERVER: _served, GROUP: _group}
