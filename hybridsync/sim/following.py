"""A logged run's order, carried out by the simulator's own roles: the log decides who comes when.

Nobody is leased a unit, and time stands for nothing: each contribution is computed on the version that the log names
and reaches the server, or the mesh, in the log's order. What becomes of it is for the protocol's rule to say, and what
the simulator then writes down has to be that log again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hybridsync import protocols
from hybridsync.applylog import Entry
from hybridsync.errors import HybridSyncError
from hybridsync.messages import Capture, PushReply
from hybridsync.plan import Epoch, Phase
from hybridsync.protocols.base import Path
from hybridsync.run import Run
from hybridsync.sim.arithmetic import Arithmetic, State
from hybridsync.sim.cluster import Scenario
from hybridsync.sim.loop import Loop, VirtualClock
from hybridsync.sim.meeting import Total
from hybridsync.sim.server import Server
from hybridsync.sim.worker import Worker
from hybridsync.sim.world import World
from hybridsync.telemetry.recorder import Recorder

ANSWER_SECS = 5.0
"""Virtual time in which a role that nothing delays has answered."""


class Logged(Protocol):
    """One phase of a log (see `hybridsync.replay.record.LoggedPhase`)."""

    @property
    def epoch(self) -> int: ...

    @property
    def spec(self) -> str: ...

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def entries(self) -> tuple[Entry, ...]: ...


def follow(run: Run, phases: Sequence[Logged], arithmetic: Arithmetic) -> State:
    """Return the state that a logged order leads to.

    Args:
      run: with the configuration of the logged one.
      phases: of the log, in order.
      arithmetic: what is computed.

    Raises:
      HybridSyncError: the rule did with a contribution what the log does not say.
    """
    loop = Loop()
    world = World(run, Scenario(), arithmetic, Recorder.null(VirtualClock(loop)), loop, logs_updates=True)
    server, worker = Server(world, 0, 0), Worker(world, 0, 0)
    server.start()
    world.spend(ANSWER_SECS)
    for logged in phases:
        phase, written, path = _phase(world, logged), len(world.log), protocols.parse(logged.spec).path
        if path is Path.GROUP:
            raise HybridSyncError(
                f"epoch {logged.epoch} ({logged.spec}) was in groups, whose order a simulation makes itself; replay "
                "the run with launch.replay"
            )
        if path is Path.SYNC:
            _step(worker, phase, logged)
            capture, state = _captured(worker, phase.epoch)
        else:
            server.enter(phase)
            _Pushes(server, phase).offer(logged)
            capture, state = _captured(server, phase.epoch)
        _compare(world.log[written:], logged)
        world.keeper.keep(capture, state)
    return world.keeper.read(world.keeper.offer().capture_id)


def _phase(world: World, logged: Logged) -> Phase:
    capture = world.keeper.offer()
    held, ends = capture.held, capture.held.units + sum(len(entry.units) for entry in logged.entries)
    return Phase(
        epoch=Epoch(logged.epoch, 0),
        spec=logged.spec,
        members=logged.members,
        lane=0,
        end_units=max(ends, max(unit for entry in logged.entries for unit in entry.units) + 1),
        applied=capture.applied,
        dropped=(),
        sequence=held.sequence,
        source=world.home,
        capture_id=capture.capture_id,
        fingerprint=held.fingerprint,
        servers=(),
        reason="start",
    )


def _captured(role: Server | Worker, epoch: Epoch) -> tuple[Capture, State]:
    capture = role.capture(epoch, final=True)
    return capture, role.read(capture.capture_id)


def _step(worker: Worker, phase: Phase, logged: Logged) -> None:
    """Carry out a lock-step phase: every step's total in member order, as its members' collective does it."""
    world, replica = worker.world, worker.replica
    protocol, arithmetic, num_members = protocols.parse(phase.spec), world.arithmetic, len(phase.members)
    replica.enter(phase)
    for entry in logged.entries:
        parameters, units = arithmetic.parameters(replica.state), entry.by_slot()
        contributions = [
            arithmetic.gradient(parameters, units[slot]) if slot in units else arithmetic.zero
            for slot in range(num_members)
        ]
        factor = protocol.rate(len(entry.units), num_members)
        total = Total(world, contributions, ("",) * num_members)
        state = total.applied_to(replica.state, units=len(entry.units), factor=factor)
        replica.update(entry.units, state, factor, entry.slots)


class _Pushes:
    """Offers the pushes of a served phase in their order.

    The log does not say whose a push was; whoever was answered last with nothing newer than its base may have sent it.
    """

    def __init__(self, server: Server, phase: Phase) -> None:
        self._server, self._phase = server, phase
        self._versions: dict[int, Any] = {}
        self._stand = dict.fromkeys(phase.members, phase.sequence)
        self._failed: list[HybridSyncError] = []

    def offer(self, logged: Logged) -> None:
        """Offer them all, each once the one before was answered."""
        world, server = self._server.world, self._server
        last_use = {entry.base: entry.sequence for entry in logged.entries}
        server.pull(self._push(self._phase.members[0], (), 0), self._keep)
        self._await(self._phase.sequence)
        for entry in logged.entries:
            if entry.base not in self._versions:
                raise HybridSyncError(
                    f"update {entry.sequence} was computed on version {entry.base}, which nobody was handed"
                )
            parameters = self._versions[entry.base]
            for unit in entry.units:
                worker = self._sender(entry)
                contribution = world.arithmetic.gradient(parameters, unit)
                server.push(self._push(worker, (unit,), entry.base), contribution, self._keep)
                self._stand[worker] = entry.sequence
            self._await(entry.sequence)
            if last_use[entry.base] == entry.sequence:
                del self._versions[entry.base]

    def _await(self, version: int) -> None:
        loop = self._server.world.loop
        limit = loop.now + ANSWER_SECS
        while version not in self._versions and not self._failed and loop.step(limit):
            pass
        if self._failed:
            raise self._failed[0]

    def _sender(self, entry: Entry) -> int:
        able = [worker for worker, version in self._stand.items() if version <= entry.base]
        if not able:
            raise HybridSyncError(
                f"update {entry.sequence} was computed on version {entry.base}, but all of the "
                f"{len(self._stand)} members had newer ones; this is no log of such a run"
            )
        return max(able, key=lambda worker: self._stand[worker])

    def _push(self, worker: int, units: tuple[int, ...], base: int) -> Any:
        return self._server.world.push_of(self._phase.epoch, worker, 1, units, base)

    def _keep(self, answer: PushReply | HybridSyncError, parameters: Any) -> None:
        if isinstance(answer, HybridSyncError):
            self._failed.append(answer)
        else:
            self._versions[answer.sequence] = parameters


def _compare(written: Sequence[Entry], logged: Logged) -> None:
    for ours, theirs in zip(written, logged.entries, strict=False):
        if ours != theirs:
            raise HybridSyncError(f"the simulator made {ours} of the logged {theirs}; the log is of another protocol")
    if len(written) != len(logged.entries):
        raise HybridSyncError(
            f"the simulator made {len(written)} updates of the {len(logged.entries)} that epoch {logged.epoch} logged; "
            "the log is of another protocol"
        )
