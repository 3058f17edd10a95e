"""Orders pushes and decides which are applied: admission, the protocol's rule, and the account of units. Pure.

Its owner (`ServerCore`) carries the decisions out one at a time. A decision counts once the next one is asked for: what
could not be carried out was never decided. Contributions are opaque here.

A rule that applies every push at once (`ServerRule.at_once`) need not be asked. A push with a `fast_path_update` is
carried out as that, then counted by `count_fast_path`. That doubles the simulator's speed under `asp`. Every other
push, also a repeat or the first one of a process, is for `submit`.

>>> from hybridsync.core.plan import PhaseId
>>> sequencer = Sequencer()
>>> sequencer.enter(Phase(PhaseId(3, 7), "asp", (0, 1), 0, 10, (), (), 0, "", 1, "", (), "start"))
>>> ticket, decisions = sequencer.submit(Push(PhaseId(3, 7), 1, 1, units=(4,), base=0), "gradient", "")
>>> [(decision.units, decision.lr_factor) for decision in decisions], ticket.reply.sequence, sequencer.sequence
([((4,), 1.0)], 1, 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import MOST_UNITS
from hybridsync.interfaces.messages import NON_FINITE, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.base import Action, Apply, Arrival, Change, Compensation, Drop, Grant, Release
from hybridsync.server.held_pushes import Decided, Decision, Dropped, HeldPushes, Ticket
from hybridsync.server.push_checks import check_current, check_member, check_phase_id, check_push, served
from hybridsync.server.unit_counts import Count
from hybridsync.server.worker_state import WorkerState


class Sequencer:
    """Decides about the pushes of one phase after another; its owner lets one caller at a time in.

    Args:
      workload: units of the run.

    Attributes:
      phase: phase that is served; None before the first.
      open: whether it still takes pushes.
      count: account of units and versions; read-only.
      compensation: compensation of the phase's protocol for staleness.
      change: kind of update in this phase: it decides the use of the contributions.
      local_updates: whether workers make local updates in this phase.
    """

    def __init__(self, workload: int = MOST_UNITS) -> None:
        self._workload = workload
        self.phase: Phase | None = None
        self.open = False
        self._members: frozenset[int] = frozenset()
        self._workers: dict[int, WorkerState] = {}
        self.count = Count()
        self._held = HeldPushes()
        self.compensation: Compensation | None = None
        self.change: Change = "optimizer"
        self.local_updates = False
        self._share = 1.0  # of the members that one push stands for
        self._fast_path_factor = 0.0  # of the learning rate
        self._fast_path_phase: PhaseId | None = None  # whose pushes may take it
        self._fastest = 0

    @property
    def phase_id(self) -> PhaseId:
        """The phase being served."""
        return self.phase.id if self.phase else NO_PHASE

    @property
    def answers_early(self) -> bool:
        """Return whether the rule may go on holding pushes that it has answered."""
        return self._protocol.num_answered_early(len(self._members)) > 0

    @property
    def num_held(self) -> int:
        """Pushes that wait for their reply, or for their end."""
        return len(self._held.by_id)

    @property
    def sequence(self) -> int:
        """Updates applied in the whole run."""
        return self.count.sequence

    @property
    def last_applied(self) -> dict[int, Push]:
        """The last push that was applied of each worker that makes local updates, and is not fenced."""
        return {worker: state.last for worker, state in self._workers.items() if state.last is not None}

    def check_phase(self, phase: Phase) -> bool:
        """Return whether `phase` is served already; else it may be entered.

        Raises:
          PlanError: the protocol is unknown or has no server rule.
          InvalidMessage: the phase has no members.
          ConfigError: the protocol cannot work with these members.
          StalePhase: a newer phase, or a different one of that number, is served already.
        """
        served(phase, self._workload).server_rule(phase.members)
        if self.phase is None or phase.id.number > self.phase.id.number:
            return False
        if phase.id == self.phase.id:
            return True
        offered, held = phase.id.beside(self.phase.id)
        raise StalePhase(f"phase {offered} is not newer than phase {held}, which is served; reserve another")

    def enter(self, phase: Phase) -> None:
        """Begin with `phase`, whose starting state is here.

        Raises:
          PlanError, InvalidMessage: the phase cannot be served.
          ConfigError: the protocol cannot work with these members.
        """
        protocol = served(phase, self._workload)
        self._rule, self._protocol = protocol.server_rule(phase.members), protocol
        self.phase, self.open = phase, True
        self.count.begin(phase)
        self._held.clear()
        self._members = frozenset(phase.members)
        newest = {**dict.fromkeys(phase.members, 0), **{at: state.newest for at, state in self._workers.items()}}
        self._workers = {worker: WorkerState(incarnation) for worker, incarnation in newest.items()}
        self.compensation, self.change = protocol.compensated, protocol.change(len(phase.members))
        self.local_updates, self._share = protocol.local_updates, 1 / len(self._members)
        at_once = None if self.local_updates else self._rule.at_once
        self._fast_path_factor, self._fast_path_phase = (0.0, None) if at_once is None else (at_once, phase.id)
        self._fastest = 0

    def close(self) -> None:
        """Refuse every later push of the phase; calls that wait for a reply to an applied one get it now."""
        self.open = False
        for state in self._workers.values():
            state.admitted = state.fast_path_as = None
        for ticket in self._held:
            if ticket.decided and ticket.reply is None:
                ticket.reply = PushReply(self.sequence, dropped=ticket.reason)
                self._held.forget(ticket)

    def fence(self, worker: int, incarnation: int) -> Iterator[Decision]:
        """Refuse the worker's incarnations up to this one; returns what is to be carried out now.

        What the rule still holds of them then comes to nothing.
        """
        state = self._workers.setdefault(worker, WorkerState())
        state.newest = max(state.newest, incarnation + 1)
        state.admitted = state.fast_path_as = None
        yield from self._leave(worker, incarnation)
        yield from self._let_go()

    def answer(self, worker: int, reply: PushReply) -> PushReply:
        """Return a reply as it is given now: with the newest version's sequence, and its progress where it is told."""
        if self.local_updates:
            state = self._workers.get(worker)
            units = self.phase.end_units - self.count.missing if self.phase else 0
            own = state.num_units if state else 0
            return reply._replace(sequence=self.sequence, units=units, own=own, fastest=self._fastest)
        sequence = self.count.sequence
        if reply.sequence == sequence:
            return reply
        return PushReply(sequence, reply.duplicate, reply.dropped, settled=reply.settled)

    def admit(self, push: Push) -> None:
        """Refuse a caller that is out of date.

        Raises:
          StalePhase, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        self._admit(push, check_phase_id(push.phase_id, self.phase))

    def _admit(self, push: Push, phase: Phase) -> WorkerState:
        if push.worker not in self._members:
            check_member(push, phase)
        state = self._workers[push.worker]
        check_current(push, self.open, state.newest)
        state.newest = state.admitted = push.incarnation
        state.fast_path_as = None
        return state

    def check(self, push: Push) -> WorkerState:
        """Return what is known of the worker of a push that may be offered.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date.
          InvalidMessage: the units or the base cannot be.
        """
        phase, count = check_phase_id(push.phase_id, self.phase), self.count
        check_push(push, phase, count.sequence, count.num_dropped)
        state = self._workers.get(push.worker)
        return self._admit(push, phase) if state is None or state.admitted != push.incarnation else state

    def join(self, push: Push) -> Iterator[Decision]:
        """Admit a caller; returns what is to be carried out now, if it is the first call of its process.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        return self._join(push)

    def ready(self, push: Push, at: float) -> Iterator[Decision]:
        """Take the word of a worker that it could push; returns what is to be carried out now.

        Without units it reports that the parameters of its base have arrived, and there is nothing to grant. A repeat,
        and units of which another push is here or that are settled, need no decision.

        Args:
          push: push that the worker would make.
          at: current time, in seconds of the owner's clock.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        if not push.units:
            return self._decide(self._rule.on_received(push.worker, at))
        state = self._workers[push.worker]
        if push in (state.ready, state.granted) or self.is_known(push):
            return iter(())
        return self._await_grant(push, at)

    def is_ungranted(self, push: Push) -> bool:
        """Return whether a worker that said it could push has to wait for that still."""
        state = self._workers.get(push.worker)
        return self.open and state is not None and state.ready == push

    def idle(self, push: Push) -> Iterator[Decision]:
        """Note that a worker has nothing to compute; returns what is to be carried out now.

        A worker whose push is here waits for its reply, even if a delayed message reports it as idle.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        worker, state = push.worker, self._workers[push.worker]
        waits = any(ticket.push.worker == worker and ticket.reply is None for ticket in self._held)
        if waits or state.ready is not None or state.granted is not None:
            return iter(())
        return self._idle(push)

    def is_known(self, push: Push) -> bool:
        """Return whether a push is of another phase, or has a unit that was offered before: it changes nothing."""
        return push.phase_id != self.phase_id or any(
            self._held.of_unit(unit) is not None or self.count.is_settled(unit) for unit in push.units
        )

    def holds(self, unit: int) -> bool:
        """Return whether a push with `unit` is here whose end is open."""
        ticket = self._held.of_unit(unit)
        return ticket is not None and not ticket.decided

    def submit(
        self, push: Push, contribution: Any, non_finite: str, at: float = 0.0
    ) -> tuple[Ticket, Iterator[Decision]]:
        """Take a push; returns its ticket, and what is to be carried out now.

        The ticket is another push's where that one decides about the units: a repeat waits for the release of the first
        one, and another worker's push of the same units waits until those are decided. If the units were settled
        before, the reply in the ticket shows it.

        Args:
          push: the push, as it arrived.
          contribution: contribution of the push.
          non_finite: its first entry that is not a finite number; such a push is dropped without asking the rule.
          at: current time, in seconds of the owner's clock.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date.
          InvalidMessage: the units or the base cannot be.
        """
        state, held, count = self.check(push), self._held, self.count
        for unit in push.units:
            earlier = held.of_unit(unit)
            if earlier is not None and (not earlier.decided or self.is_same(push, earlier)):
                if earlier.push.worker == push.worker:
                    return earlier, iter(())
                if earlier.reply is not None:  # held, but no caller waits: the update may need more pushes to come
                    return Ticket(push, None, self._repeated(push), decided=True), self._pass_by(push)
                return earlier, self._idle(push)  # it waits for that one, which is not to wait for it
        for unit in push.units:
            if count.is_settled(unit):
                return Ticket(push, None, self._repeated(push), decided=True), self._pass_by(push)
        ticket = held.add(push, contribution)
        return ticket, self._take(ticket, state, non_finite, at)

    def fast_path_update(self, push: Push, contribution: Any) -> Decided | None:
        """Return the update by a finite push that is decided by coming: applied by itself, and answered.

        None where it has to be submitted. Changes nothing yet.
        """
        phase_id, worker, incarnation, units, base, _, _, _, _ = push
        state, count = self._workers.get(worker), self.count
        if state is None or state.fast_path_as != incarnation or phase_id != self._fast_path_phase or len(units) != 1:
            return None
        if self._held.by_id or not 0 <= base <= count.sequence or not count.ends.is_open(units[0]):
            return None
        return Decided((push,), (contribution,), units, base, lr_factor=self._fast_path_factor, blend=self._share)

    def count_fast_path(self, push: Push) -> PushReply:
        """Count a push whose `fast_path_update` was carried out; returns its answer."""
        return PushReply(self.count.count_one(push.units[0], push.base))

    @staticmethod
    def is_same(push: Push, ticket: Ticket) -> bool:
        """Return whether a ticket is of this push or of an earlier copy of it."""
        return ticket.push is push or (ticket.push.worker == push.worker and ticket.push.units == push.units)

    def is_over(self, push: Push, ticket: Ticket) -> bool:
        """Return whether `push` need not wait for `ticket` any more: it is answered, decided for others, or void."""
        told = ticket.reply is not None if self.is_same(push, ticket) else ticket.decided
        return told or ticket.fenced or not self.open or self.phase_id != ticket.push.phase_id

    def waiting_for(self) -> str:
        """Return what a push waits for that is held, for people."""
        return f"{self._protocol.name}; it waits for other workers of {self.phase and self.phase.members}"

    # --- inside ---

    def _repeated(self, push: Push) -> PushReply:
        """Return what a push is answered of which units are settled: the worker's last one, or a duplicate."""
        last = self._workers[push.worker].last
        if last is not None and (last.units, last.incarnation) == (push.units, push.incarnation):
            return PushReply(self.sequence)
        return PushReply(self.sequence, duplicate=True, settled=tuple(filter(self.count.is_settled, push.units)))

    def _take(self, ticket: Ticket, state: WorkerState, non_finite: str, at: float) -> Iterator[Decision]:
        push, push_id = ticket.push, ticket.push_id
        if state.joined != push.incarnation:
            yield from self._join(push)
        state.granted = None
        state.fast_path_as = push.incarnation
        if non_finite:
            actions: list[Action] = [Drop(push_id, f"{NON_FINITE}: {non_finite}"), Release(push_id)]
            actions += self._rule.on_join(push.worker)
        else:
            actions = self._rule.on_push(Arrival(push_id, push.worker, push.units, self.sequence - push.base, at))
        yield from self._decide(actions)
        if self._held.by_id:
            yield from self._let_go()

    def _join(self, push: Push) -> Iterator[Decision]:
        """Tell the rule of a process that it has not heard of, and of the end of the one before it."""
        worker, state = push.worker, self._workers[push.worker]
        known, idle_in = state.joined, state.idle_in
        if known == push.incarnation:
            state.restart_count = max(state.restart_count, push.restart_count)
            # A late copy of what it has asked before does not end its idleness
            if idle_in is None or push.restart_count <= idle_in:
                return
        elif known is not None:
            yield from self._leave(worker, known)
        state.joined, state.idle_in, state.restart_count = push.incarnation, None, push.restart_count
        yield from self._decide(self._rule.on_join(worker))

    def _await_grant(self, push: Push, at: float) -> Iterator[Decision]:
        yield from self._join(push)
        self._workers[push.worker].ready = push
        yield from self._decide(self._rule.on_ready(push.worker, at))

    def _pass_by(self, push: Push) -> Iterator[Decision]:
        """Tell the rule that the push it has granted comes to nothing; a late copy of another one tells nothing."""
        state = self._workers[push.worker]
        if state.granted == push:
            state.granted = None
            yield from self._decide(self._rule.on_join(push.worker))
            yield from self._let_go()

    def _leave(self, worker: int, incarnation: int) -> Iterator[Decision]:
        """Tell the rule of the end of a worker's processes up to `incarnation`, and let nothing come of their pushes.

        The rule has heard of it already where a later process has called.
        """
        state = self._workers[worker]
        if self.open and (state.joined or 0) <= incarnation:  # a state captured for good changes no more
            state.joined = state.ready = state.granted = None
            yield from self._decide(self._rule.on_leave(worker))
        for ticket in self._held:
            if ticket.push.worker == worker and ticket.push.incarnation <= incarnation:
                ticket.fenced = True
                self._held.forget(ticket)
        if state.last is not None and state.last.incarnation <= incarnation:
            state.last = None

    def _idle(self, push: Push) -> Iterator[Decision]:
        yield from self._join(push)
        state = self._workers[push.worker]
        if push.restart_count < state.restart_count:  # a late copy: it has come back since
            return
        state.granted = None
        if self.local_updates:  # it begins anew with its next unit, from the newest version
            state.idle_in = push.restart_count
        yield from self._decide(self._rule.on_idle(push.worker))
        yield from self._let_go()

    def _let_go(self) -> Iterator[Decision]:
        """Have the rule let go of what it holds once nobody can push anything else."""
        while self.open and self._held.by_id:
            held = sum(len(ticket.push.units) for ticket in self._held if not ticket.decided)
            if held < self.count.missing or not (actions := self._rule.on_last()):
                return
            yield from self._decide(actions)

    def _decide(self, actions: list[Action]) -> Iterator[Decision]:
        for action in actions:
            if isinstance(action, Apply):
                yield from self._apply(action)
            elif isinstance(action, Release):
                ticket = self._held.by_id[action.push]
                ticket.reply = PushReply(self.sequence, False, ticket.reason)
                if ticket.decided:
                    self._held.forget(ticket)
            elif isinstance(action, Grant):
                state = self._workers[action.worker]
                assert state.ready is not None, f"the rule grants worker {action.worker} a transfer; it is not ready"
                state.granted, state.ready = state.ready, None
            else:
                yield from self._drop(action)

    def _apply(self, action: Apply) -> Iterator[Decision]:
        tickets = [*map(self._held.by_id.__getitem__, action.pushes)]
        share = min(1.0, len(tickets) / len(self._members))
        update = Decided.of(tickets, action.lr_factor, share, action.weights, self.local_updates)
        yield update
        self.count.count(update.units, [push.base for push in update.pushes])
        for ticket in tickets:
            if self.local_updates:
                self._note(ticket.push)
            self._end(ticket)

    def _drop(self, action: Drop) -> Iterator[Decision]:
        ticket = self._held.by_id[action.push]
        yield Dropped(ticket.push)
        self.count.count_drop(ticket.push.units, action.reason)
        ticket.reason = action.reason
        self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        """Note that a push was applied or dropped."""
        ticket.decided, ticket.contribution = True, None
        if ticket.reply is not None:
            self._held.forget(ticket)

    def _note(self, push: Push) -> None:
        """Note how far a worker that makes local updates has come."""
        state = self._workers[push.worker]
        state.num_units += len(push.units)
        self._fastest = max(self._fastest, state.num_units)
        if push.incarnation >= state.newest:
            state.last = push
