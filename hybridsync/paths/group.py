"""The GROUP engine: carries out the program of a worker that has its own replica and averages it in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hybridsync.deadlines import transfer_secs
from hybridsync.errors import WaitTimeout
from hybridsync.layout import first_non_finite
from hybridsync.messages import NON_FINITE, AppliedUnit, GroupReply, GroupRequest
from hybridsync.mixing import copied, mixed, part_of
from hybridsync.paths.driver import drive
from hybridsync.paths.emulation import Emulation
from hybridsync.paths.leases import LeaseStream
from hybridsync.paths.mixer import Mixer
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.replica import Replica
from hybridsync.paths.revocation import Revocation
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.ports import GroupPort
from hybridsync.protocols.base import Compute, Lease, LocalUpdate, Meet, Mix
from hybridsync.reports import SEND, WAITING
from hybridsync.step import Parameters, Programs
from hybridsync.watching import UNLIMITED

MEET_DEADLINE_SECS = 1200.0
"""How long a worker waits for its group: the chief gives up who is missing much earlier, unless it may be compiling."""


class Gradient(NamedTuple):
    """Gradient handle: of which unit, computed behind which meeting, and why it is unfit, "" if it is not."""

    unit: int
    base: int
    contribution: Any
    unfit: str


class GroupEngine:
    """Runs group phases for one worker.

    Args:
      worker: id.
      chief: leases units, and generates the groups.
      programs: the compiled programs.
      replica: what this worker holds for others: the phase's starting state, then that of the last full
        synchronisation (shared by all workers of one process). Its own replica goes its own way.
      mixer_of: the phase -> how its groups average.
      recorder, emulation: what is noted, and how slow the device pretends to be.
      logs: whether the updates go to an apply log.
    """

    def __init__(
        self,
        worker: int,
        chief: GroupPort,
        programs: Programs,
        replica: Replica,
        mixer_of: Callable[[Phase], Mixer],
        recorder: WorkerRecorder,
        emulation: Emulation,
        *,
        logs: bool = False,
    ) -> None:
        self._worker, self._chief, self._programs, self._replica = worker, chief, programs, replica
        self._mixer_of, self._recorder, self._emulation, self._logs = mixer_of, recorder, emulation, logs
        self.stream: LeaseStream | None = None
        self.revocation: Revocation[Mixer] = Revocation()

    def run(self, phase: Phase) -> None:
        """Take part in `phase` until everybody's work is done and all replicas are one state.

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

    def __init__(self, engine: GroupEngine, phase: Phase) -> None:
        self.engine, self.phase, self.worker = engine, phase, engine._worker
        self.recorder, self.clock = engine._recorder, engine._recorder.clock
        self.protocol = phase.protocol
        # Who asks for units while it has some cannot be told from one that others need not wait for: no renewal ahead.
        self.stream = engine.stream = LeaseStream(
            engine._chief,
            self.worker,
            self.recorder.incarnation,
            phase,
            self.clock,
            ahead=None,
            watchdog=self.recorder.watchdog,
        )
        self.factor = self.protocol.rate(1, len(phase.members))
        self.number, self.sequence = 0, phase.sequence
        self.unit = 0
        self.applied: list[AppliedUnit] = []
        self.dropped: list[tuple[int, str]] = []

    def run(self) -> None:
        replica, num_bytes = self.engine._replica, self.engine._programs.state_layout.nbytes
        with self.recorder.watchdog.work(f"the state of epoch {self.phase.epoch}", 2 * transfer_secs(num_bytes)):
            replica.enter(self.phase)
        self.recorder.stamps = replica.stamps
        self.state = replica.branch()
        self.mixer = self.engine.revocation.attach(self.engine._mixer_of(self.phase))
        handlers = {
            Lease: self.lease,
            Compute: self.compute,
            LocalUpdate: self.local_update,
            Meet: self.meet,
            Mix: self.mix,
        }
        drive(self.protocol.worker_program(len(self.phase.members)), handlers)

    def lease(self, effect: Lease) -> tuple[int, ...] | None:
        units = self.stream.next(effect.count)
        return units if units or self.stream.called else None

    def compute(self, effect: Compute) -> Gradient:
        (unit,) = effect.units
        engine, self.unit = self.engine, unit
        self.recorder.computing(unit)
        started = self.clock.monotonic()
        contribution = engine._programs.gradient(Parameters(self.state.params, self.state.model_state), unit)
        jax.block_until_ready(contribution)
        if engine._emulation.active:
            self.recorder.emulating()
            engine._emulation.finish(self.worker, unit, started, self.clock)
        self.recorder.turn_to("")
        unfit = first_non_finite(contribution) or ""
        self.recorder.compute("group", started, self.clock.monotonic(), contribution["floats"]["loss"])
        return Gradient(unit, self.sequence, contribution, unfit)

    def local_update(self, effect: LocalUpdate) -> None:
        gradient: Gradient = effect.mean
        if gradient.unfit:
            dropped = (gradient.unit, f"{NON_FINITE}: {gradient.unfit}")
            self.dropped.append(dropped)
            self.recorder.settled((), (dropped,))
        else:
            self.state = self.engine._programs.update(
                self.state, gradient.contribution, units=1, factor=self.factor, blend=1.0
            )
            self.applied.append(AppliedUnit(gradient.unit, gradient.base))
            self.recorder.settled((gradient.unit,), ())
            self.engine._replica.note_update()
        self.recorder.completed = self.stream.position

    def meet(self, effect: Meet) -> GroupReply:
        self.number += 1
        news = tuple(self.applied), tuple(self.dropped)
        request = GroupRequest(
            *(self.worker, self.recorder.incarnation, self.phase.epoch, self.number),
            *news,
            last=effect.last,
            logs=self.engine._logs,
        )
        self.applied, self.dropped = [], []
        self.recorder.turn_to(WAITING)
        started = self.clock.monotonic()
        while not (reply := self.engine._chief.meet(request)).members:
            self.recorder.watchdog.progress()
            self.engine.revocation.check()
            if self.clock.monotonic() - started > MEET_DEADLINE_SECS:
                raise WaitTimeout(
                    f"worker {self.worker} waited {MEET_DEADLINE_SECS:g} s for its group in epoch {self.phase.epoch}; "
                    f"workers {list(reply.missing)} have not come"
                )
        self.recorder.wait("meet", "group", started, self.clock.monotonic())
        return reply

    def mix(self, effect: Mix) -> None:
        reply: GroupReply = effect.group
        started = self.clock.monotonic()
        part = part_of(self.state, optimizer=reply.optimizer)
        if len(reply.members) > 1:
            self.send(reply)
            started = self.clock.monotonic()
            with self.recorder.watchdog.work("the average of a group", UNLIMITED):  # the chief judges who is late
                part = self.mixer.mean(reply, self.worker, part)
            if reply.optimizer:  # others have the same, which each one's next update donates
                part = part._replace(opt_state=copied(part.opt_state))
        self.state, self.sequence = mixed(self.state, part, reply), reply.sequence
        if reply.whole:
            self.engine._replica.settle(reply, copied(self.state), self.factor)
        self.recorder.wait("mix", "group", started, self.clock.monotonic())
        self.recorder.turn_to("")

    def send(self, reply: GroupReply) -> None:
        """Wait for what this worker's replica takes on its way, where it is emulated to be slow."""
        started, programs = self.clock.monotonic(), self.engine._programs
        layout = programs.state_layout if reply.optimizer else programs.parameters_layout
        if self.engine._emulation.send(self.worker, self.unit, layout.nbytes):
            self.recorder.wait(SEND, "group", started, self.clock.monotonic())
