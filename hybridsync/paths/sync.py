"""The SYNC engine: carries out a lock-step program on one member of the mesh."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import jax

from hybridsync.deadlines import transfer_secs
from hybridsync.dealing import outcome_of
from hybridsync.layout import first_non_finite
from hybridsync.messages import NON_FINITE
from hybridsync.paths.collective import Collective
from hybridsync.paths.driver import drive
from hybridsync.paths.emulation import Emulation
from hybridsync.paths.leases import LeaseStream
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.replica import Replica
from hybridsync.paths.revocation import Revocation
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.ports import WorkPort
from hybridsync.protocols.base import Average, Compute, Lease, LocalUpdate
from hybridsync.reports import SEND, WAITING
from hybridsync.step import Programs
from hybridsync.watching import COMPILE_SECS, UNLIMITED


class SyncEngine:
    """Runs lock-step phases for one worker.

    Args:
      worker: id.
      chief: grants the mesh's units.
      programs: the compiled programs.
      replica: this worker's state (shared by all workers of one process).
      collective_of: the phase -> its members' collective.
      recorder, emulation: what is noted, and how slow the device pretends to be.
      ahead: runs lease renewals beside the training; None asks when there is nothing left.
    """

    def __init__(
        self,
        worker: int,
        chief: WorkPort,
        programs: Programs,
        replica: Replica,
        collective_of: Callable[[Phase], Collective],
        recorder: WorkerRecorder,
        emulation: Emulation,
        ahead: Executor | None,
    ) -> None:
        self._worker, self._chief, self._programs, self._replica = worker, chief, programs, replica
        self._collective_of, self._recorder, self._emulation = collective_of, recorder, emulation
        self._ahead = ahead
        self.stream: LeaseStream | None = None
        self.revocation: Revocation[Collective] = Revocation()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until its stream of units ends.

        Raises:
          PhaseRevoked: the phase was revoked, or lost a member.
          RoleLost, WaitTimeout: whoever holds the starting state, or a member, did not answer.
        """
        self.revocation.begin(phase.epoch)
        _Member(self, phase).run()

    def revoke(self, epoch: Epoch, reason: str) -> None:
        """Make the phase under way raise PhaseRevoked, if it is `epoch`; called from another thread."""
        self.revocation.revoke(epoch, reason)


class _Member:
    """One worker in one phase."""

    def __init__(self, engine: SyncEngine, phase: Phase) -> None:
        self.engine, self.phase = engine, phase
        self.recorder, self.clock = engine._recorder, engine._recorder.clock
        self.members, self.deal = phase.members, phase.deal
        self.index = phase.members.index(engine._worker)
        self.places = self.deal.places(self.index)
        self.protocol = phase.protocol
        self.stream = engine.stream = LeaseStream(
            engine._chief,
            engine._worker,
            self.recorder.incarnation,
            phase,
            self.clock,
            engine._ahead,
            watchdog=self.recorder.watchdog,
        )
        self.step = 0
        self.units: tuple[int, ...] = ()
        self.unfit: list[str] = []
        self.reasons: tuple[str, ...] = ()
        self.started = 0.0

    def run(self) -> None:
        watchdog, num_bytes = self.recorder.watchdog, self.engine._programs.state_layout.nbytes
        with watchdog.work(f"the state of epoch {self.phase.epoch}", 2 * transfer_secs(num_bytes)):
            self.engine._replica.enter(self.phase)
        self.recorder.stamps = self.engine._replica.stamps
        self.collective = self.engine.revocation.attach(self.engine._collective_of(self.phase))
        with watchdog.work(f"the mesh of epoch {self.phase.epoch}", COMPILE_SECS):
            self.collective.enter()
        handlers = {
            Lease: self.lease,
            Compute: self.compute,
            Average: self.average,
            LocalUpdate: self.local_update,
        }
        drive(self.protocol.worker_program(len(self.members)), handlers)

    def lease(self, effect: Lease) -> tuple[int, ...] | None:
        self.units = self.stream.next(self.deal.num_places)
        self.started = self.clock.monotonic()
        own = (self.units[place] for place in self.places if place < len(self.units))
        return tuple(own) if self.units else None

    def compute(self, effect: Compute) -> Any:
        programs, self.unfit, total = self.engine._programs, [], None
        for unit in effect.units:
            contribution, unfit = self.compute_unit(unit)
            self.unfit.append(unfit)
            if not unfit:
                total = contribution if total is None else programs.sum((total, contribution))
        return programs.zero if total is None else total

    def compute_unit(self, unit: int) -> tuple[Any, str]:
        """Return a unit's contribution, and which entry of it is no finite number, "" where all are."""
        programs = self.engine._programs
        self.recorder.computing(unit)
        started = self.clock.monotonic()
        contribution = programs.gradient(self.engine._replica.parameters, unit)
        jax.block_until_ready(contribution)
        if self.engine._emulation.active:
            self.recorder.emulating()
            self.engine._emulation.finish(self.engine._worker, unit, started, self.clock)
        # The check comes before the collective: one entry that is no number would spoil everybody's total.
        unfit = first_non_finite(contribution) or ""
        self.recorder.compute("sync", started, self.clock.monotonic(), contribution["floats"]["loss"])
        return contribution, unfit

    def average(self, effect: Average) -> Any:
        self.send()
        self.recorder.turn_to(WAITING)
        started = self.clock.monotonic()
        with self.recorder.watchdog.work("a lock-step step", UNLIMITED):  # the chief judges for whom it stands still
            total, self.reasons = self.collective.total(self.index, effect.gradient), ()
            if float(total["floats"]["weight"]) != len(self.units):
                own = [f"{NON_FINITE}: {unfit}" if unfit else "" for unfit in self.unfit]
                own += [""] * (self.deal.num_rounds - len(own))
                self.reasons = self.deal.by_place(self.collective.reasons(self.index, tuple(own)))
        self.recorder.wait("average", "sync", started, self.clock.monotonic())
        self.recorder.turn_to("")
        return total

    def send(self) -> None:
        """Wait for what this worker's contribution takes on its way, where it is emulated to be slow."""
        if len(self.members) == 1:
            return
        started, engine = self.clock.monotonic(), self.engine
        unit = self.units[min(self.index, len(self.units) - 1)]
        if engine._emulation.send(engine._worker, unit, engine._programs.contribution_layout.nbytes):
            self.recorder.wait(SEND, "sync", started, self.clock.monotonic())

    def local_update(self, effect: LocalUpdate) -> None:
        units, slots, dropped = outcome_of(self.units, self.reasons)
        factor = self.protocol.rate(len(units), len(self.members))
        gone = tuple(unit for unit, _ in dropped)
        self.engine._replica.update(self.step, units, effect.mean, factor, slots=slots, dropped=gone)
        self.step += 1
        if self.index == 0:  # one member speaks for the mesh, so that what it says keeps the order of the steps
            self.recorder.settled(units, dropped)
        self.recorder.completed = self.stream.position
        self.recorder.step(self.started, self.clock.monotonic(), len(units))
