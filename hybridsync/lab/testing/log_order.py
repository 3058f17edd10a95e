"""A logged run's order, carried out by the simulator's own roles: the log decides who comes when.

Its asynchronous phases lead to the run's bits whether its roles were threads or processes; lock-step ones only for
threads, because a mesh of processes sums in another order. No worker leases units, and time means nothing: each
contribution is computed on the version that the log names and reaches the server, or the mesh, in the log's order. The
protocol's rule decides about it, and the log that the simulator then writes has to equal the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.core.step_assignment import contribution_of
from hybridsync.core.units import Range, UnitSet
from hybridsync.interfaces.messages import Push, PushInUpdate, Snapshot
from hybridsync.interfaces.phase import Phase
from hybridsync.lab.replay.local_workers import Retracer
from hybridsync.lab.replay.logged_run import LoggedPhase
from hybridsync.lab.simulator.arithmetic import Arithmetic, State
from hybridsync.lab.simulator.cluster import Scenario
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.simulator.simulated_server import Outcome, Server
from hybridsync.lab.simulator.simulated_worker import Worker
from hybridsync.lab.simulator.virtual_collectives import Total
from hybridsync.storage.apply_log_entries import Entry
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run

START_SECS = 5.0
"""Virtual time in which a role that nothing delays has registered."""
ANSWER_SECS = 0.05
"""Virtual time in which a server that nothing delays has answered a push that it does not hold."""


def follow(run: Run, phases: Sequence[LoggedPhase], arithmetic: Arithmetic) -> State:
    """Return the state that a logged order leads to.

    Args:
      run: run with the configuration of the logged one.
      phases: phases of the log, in order.
      arithmetic: computes gradients and states.

    Raises:
      HybridSyncError: the rule decided about a contribution otherwise than the log.
    """
    loop = Loop()
    simulated = SimulatedCluster(
        run, Scenario(), arithmetic, Recorder.null(VirtualClock(loop)), loop, logs_updates=True
    )
    server, worker = Server(simulated, 0, 0), Worker(simulated, 0, 0)
    server.start()
    simulated.spend(START_SECS)
    dropped = _never_applied(phases)
    for logged in phases:
        phase, written = _phase(simulated, logged, dropped), len(simulated.log)
        if phase.mode.has_group_rounds:
            raise HybridSyncError(
                f"phase {logged.number} ({logged.spec}) was in groups, whose order a simulation makes itself; replay "
                "the run with hybridsync replay"
            )
        if phase.mode.moves_together:
            _step(worker, phase, logged)
            snapshot, state = _captured(worker, phase.id)
        else:
            server.enter(phase)
            if phase.protocol.local_updates:
                _retrace(server, phase, logged)
            else:
                _Pushes(server, phase).offer(logged)
            snapshot, state = _captured(server, phase.id)
        _compare(simulated.log[written:], logged)
        simulated.committed_source.store(snapshot, state)
    return simulated.committed_source.read(simulated.committed_source.publish().snapshot_id)


def _phase(simulated: SimulatedCluster, logged: LoggedPhase, dropped: tuple[Range, ...]) -> Phase:
    snapshot = simulated.committed_source.publish()
    held = snapshot.held
    return Phase(
        id=PhaseId(logged.number, 0),
        spec=logged.spec,
        members=logged.members,
        device_choice=0,
        end_units=held.units + sum(len(entry.units) for entry in logged.entries),
        applied=snapshot.applied,
        dropped=dropped,
        sequence=held.sequence,
        source=simulated.chief_address,
        snapshot_id=snapshot.snapshot_id,
        fingerprint=held.fingerprint,
        servers=(),
        reason="start",
        shares=logged.shares,
    )


def _never_applied(phases: Sequence[LoggedPhase]) -> tuple[Range, ...]:
    """Return the units that no update holds, though later ones were issued: they count as dropped."""
    applied = UnitSet((unit, unit + 1) for logged in phases for entry in logged.entries for unit in entry.units)
    issued = max((stop for _, stop in applied.ranges()), default=0)
    return UnitSet([(0, issued)]).difference(applied).ranges() if issued else ()


def _captured(role: Server | Worker, phase_id: PhaseId) -> tuple[Snapshot, State]:
    snapshot = role.take_snapshot(phase_id, final=True)
    return snapshot, role.read(snapshot.snapshot_id)


def _step(worker: Worker, phase: Phase, logged: LoggedPhase) -> None:
    """Carry out a lock-step phase: every step's total in member order, as its members' collective does it."""
    simulated, replica = worker.simulated, worker.replica
    protocol, arithmetic, num_members = phase.protocol, simulated.arithmetic, len(phase.members)
    assignment = phase.assignment
    replica.enter(phase)
    for entry in logged.entries:
        parameters = arithmetic.parameters(replica.state)
        divided = assignment.divide(entry.by_slot().items())
        contributions = [contribution_of(arithmetic, parameters, units) for units in divided]
        factor = protocol.lr_factor(len(entry.units), num_members)
        total = Total(simulated, contributions)
        state = total.applied_to(replica.state, units=len(entry.units), factor=factor)
        replica.update(entry.units, state, factor, entry.slots)


def _retrace(server: Server, phase: Phase, logged: LoggedPhase) -> None:
    """Carry out a phase whose workers made local updates: the log says who pushed, and who left what behind."""
    simulated, arithmetic, spec = server.simulated, server.simulated.arithmetic, phase.protocol
    start, members = sum(stop - first for first, stop in phase.applied), phase.members
    opt_state = arithmetic.opt_state(server.state)
    retracer = Retracer(
        spec,
        arithmetic,
        arithmetic.gradient,
        opt_state,
        num_workers=len(members),
        start=start,
        first=phase.sequence,
        entries=logged.entries,
    )
    versions = {phase.sequence: arithmetic.parameters(server.state)}
    last_use = {base: entry.sequence for entry in logged.entries for base in entry.versions}
    newest, last = dict.fromkeys(members, 1), dict[int, int]()
    refused: list[HybridSyncError] = []

    def push_of(worker: int, units: tuple[int, ...], restart_count: int) -> Push:
        return Push(phase.id, worker, newest[worker], units, 0, restart_count=restart_count)

    def heard(outcome: Outcome) -> None:
        if isinstance(outcome, HybridSyncError):
            refused.append(outcome)

    for number, entry in enumerate(logged.entries):
        newest.update({push.worker: push.incarnation for push in entry.stepped})
        for worker in (push.worker for push in entry.stepped):  # an idle worker begins anew, and is awaited again
            server.pull(push_of(worker, (), number), heard)
        for absent in sorted(set(members) - {push.worker for push in entry.stepped}):
            server.idle(push_of(absent, (), number), heard)
        contributions = retracer.contributions(entry, versions)
        for part, stepped, contribution in zip(entry.pushes, entry.stepped, contributions, strict=True):
            push = push_of(stepped.worker, part.units, stepped.restart_count)
            push = push._replace(base=part.base, newest=stepped.newest)
            server.push(push, contribution, heard)
            last[stepped.worker] = part.units[-1]
        simulated.spend(ANSWER_SECS)
        if refused:
            raise refused[0]
        if server.sequencer.sequence != entry.sequence:
            raise HybridSyncError(
                f"the pushes of update {entry.sequence} led to update {server.sequencer.sequence}; the log is of "
                "another protocol"
            )
        versions = {at: kept for at, kept in versions.items() if last_use.get(at, 0) > entry.sequence}
        versions[entry.sequence] = arithmetic.parameters(server.state)
    for (worker, _), state in zip(logged.left, retracer.opt_states_left(logged.left), strict=True):
        server.upload_opt_state(push_of(worker, (last[worker],), 0), state)


class _Pushes:
    """Offers the pushes of a served phase in their order.

    The log does not name the worker of a push; any worker whose last answer was nothing newer than its base may have
    sent it. A rule that waits for workers is notified that those without a part in an update are idle.
    """

    def __init__(self, server: Server, phase: Phase) -> None:
        self._server, self._phase = server, phase
        self._awaited, self._wire = phase.protocol.awaits_workers, phase.protocol.wire_dtype
        self._versions: dict[int, Any] = {}
        self._stand: dict[int, float] = dict.fromkeys(phase.members, phase.sequence)
        self._incarnations = dict.fromkeys(phase.members, 1)
        self._idle: set[int] = set()
        self._failed: list[HybridSyncError] = []

    def offer(self, logged: LoggedPhase) -> None:
        """Offer them all, each once the one before was answered or is held."""
        last_use = {version: entry.sequence for entry in logged.entries for version in entry.versions}
        for worker in self._phase.members:
            self._begin(worker)
        for entry in logged.entries:
            senders = self._senders(entry) if self._awaited else None
            for index, part in enumerate(entry.pushes):
                if part.base not in self._versions:
                    raise HybridSyncError(
                        f"update {entry.sequence} was computed on version {part.base}, which nobody was handed"
                    )
                self._push(senders[index] if senders else self._sender(entry.sequence, part.base), part)
            for worker in senders or ():  # all of them were held until the last one's push
                self._await(worker)
            for version in entry.versions:
                if last_use[version] == entry.sequence:
                    del self._versions[version]

    def _begin(self, worker: int) -> None:
        """Have a process of `worker` take part, for whom the rule waits."""
        self._stand[worker] = math.inf
        self._server.pull(self._header(worker, (), 0), partial(self._keep, worker))
        self._await(worker)

    def _push(self, worker: int, part: PushInUpdate) -> None:
        (unit,) = part.units
        contribution = self._server.simulated.arithmetic.gradient(self._versions[part.base], unit, self._wire)
        self._stand[worker] = math.inf
        self._server.push(self._header(worker, part.units, part.base), contribution, partial(self._keep, worker))
        self._await(worker)

    def _await(self, worker: int) -> None:
        """Let time go by until the worker has its answer, or has none because the rule holds it."""
        loop = self._server.simulated.loop
        limit = loop.now + ANSWER_SECS
        while self._stand[worker] == math.inf and not self._failed and loop.step(limit):
            pass
        if self._failed:
            raise self._failed[0]

    def _senders(self, entry: Entry) -> list[int]:
        """Return who sends the parts of an update, in the members' order; all others are idle by then."""
        pushes, senders = entry.pushes, list[int]()
        for part in pushes:
            senders.append(self._sender(entry.sequence, part.base, [*senders], ordered=len(pushes) > 1))
        for worker in self._phase.members:
            if worker in senders and worker in self._idle:  # only another process of it is waited for again
                self._idle.remove(worker)
                self._incarnations[worker] += 1
                self._begin(worker)
            elif worker not in senders and worker not in self._idle:
                self._idle.add(worker)
                self._server.idle(self._header(worker, (), 0), lambda outcome: None)
        return senders

    def _sender(self, sequence: int, base: int, taken: Sequence[int] = (), *, ordered: bool = False) -> int:
        able = [worker for worker, stand in self._stand.items() if stand <= base and worker not in taken]
        if not able:
            raise HybridSyncError(
                f"update {sequence} was computed on version {base}, but all of the "
                f"{len(self._stand)} members had newer ones; this is no log of such a run"
            )
        return min(able) if ordered else max(able, key=lambda worker: self._stand[worker])

    def _header(self, worker: int, units: tuple[int, ...], base: int) -> Push:
        return Push(self._phase.id, worker, self._incarnations[worker], units, base)

    def _keep(self, worker: int, outcome: Outcome) -> None:
        if isinstance(outcome, HybridSyncError):
            self._failed.append(outcome)
        else:
            answer, parameters = outcome
            self._stand[worker] = answer.sequence
            self._versions[answer.sequence] = parameters


def _compare(written: Sequence[Entry], logged: LoggedPhase) -> None:
    for ours, theirs in zip(written, logged.entries, strict=False):
        if ours != theirs:
            raise HybridSyncError(f"the simulator made {ours} of the logged {theirs}; the log is of another protocol")
    if len(written) != len(logged.entries):
        raise HybridSyncError(
            f"the simulator made {len(written)} updates of the {len(logged.entries)} that phase {logged.number} "
            "logged; the log is of another protocol"
        )
