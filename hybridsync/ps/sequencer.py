"""What becomes of each push, decided in one order: admission, the protocol's rule, and what was applied. Pure.

Whoever owns it carries the decisions out one at a time: a decision counts once the next one is asked for, so that
what could not be carried out was never decided. Contributions are opaque here.

Under a rule that applies every push at once (`ServerRule.at_once`) most pushes are decided by coming: whoever `passes`
is carried out, then counted by `passed`. What is out of the ordinary about one (a repeat, a process that is not known)
is for `offer`, which every other rule needs for all of them.

>>> from hybridsync.plan import Epoch
>>> sequencer = Sequencer()
>>> sequencer.enter(Phase(Epoch(3, 7), "asp", (0, 1), 0, 10, (), (), 0, "", 1, "", (), "start"))
>>> ticket, decisions = sequencer.offer(Push(Epoch(3, 7), 1, 1, units=(4,), base=0), "gradient", "")
>>> [(decision.units, decision.rate) for decision in decisions], ticket.reply.sequence, sequencer.sequence
([((4,), 1.0)], 1, 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridsync.errors import StaleEpoch
from hybridsync.messages import NON_FINITE, Part, Push, PushReply
from hybridsync.phase import Phase
from hybridsync.plan import NO_EPOCH, Epoch
from hybridsync.protocols.base import Action, Apply, Arrival, Change, Compensation, Drop, Grant, Release
from hybridsync.ps.admission import check_current, check_epoch, check_member, check_push, served
from hybridsync.ps.count import Count
from hybridsync.ps.tickets import Decided, Ticket, parts_of, stepped_of, whole_reply
from hybridsync.units import MOST_UNITS


class Sequencer(Count):
    """Decides about the pushes of one phase after another; its owner lets one caller at a time in.

    Args:
      workload: units of the run.

    Attributes:
      phase: that is served; None before the first.
      open: whether it still takes pushes.
      compensation: how the phase's protocol makes up for staleness.
      change: what an update of the phase does with its contributions.
      share: of a phase's members that one push stands for.
      at_once: rate of a push that `passes`.
      local: whether workers step by themselves in this phase.
    """

    def __init__(self, workload: int = MOST_UNITS) -> None:
        super().__init__()
        self._workload = workload
        self.phase: Phase | None = None
        self.open = False
        self._members: frozenset[int] = frozenset()
        self._incarnations: dict[int, int] = {}
        self._admitted: dict[int, int] = {}  # who was let in before, as which incarnation: not looked at again
        self._joined: dict[int, int] = {}
        self._known: dict[int, int] = {}  # who is in both, as the same incarnation, and not idle
        self._ready: dict[int, Push] = {}
        self._granted: dict[int, Push] = {}
        self._tickets: dict[int, Ticket] = {}
        self._by_unit: dict[int, Ticket] = {}
        self._next_push = 1
        self._idlers: set[int] = set()
        self.compensation: Compensation | None = None
        self.change: Change = "optimizer"
        self.local = False
        self.share = 1.0
        self.at_once = 0.0
        self._passing: Epoch | None = None  # whose pushes may pass
        self._units_of: dict[int, int] = {}
        self._fastest = 0
        self._settled: dict[int, Push] = {}

    @property
    def epoch(self) -> Epoch:
        """The phase being served."""
        return self.phase.epoch if self.phase else NO_EPOCH

    @property
    def answers_early(self) -> bool:
        """Whether pushes may be answered that are held."""
        return self._protocol.num_answered_early(len(self._members)) > 0

    @property
    def num_held(self) -> int:
        """Pushes that wait for their reply, or for their end."""
        return len(self._tickets)

    @property
    def settled(self) -> dict[int, Push]:
        """The last push that was applied of each worker that steps by itself, and is not fenced."""
        return self._settled

    def check_phase(self, phase: Phase) -> bool:
        """Return whether `phase` is served already; else it may be entered.

        Raises:
          PlanError: the protocol is unknown or has no server rule.
          InvalidMessage: the phase has no members.
          ConfigError: the protocol cannot work with these members.
          StaleEpoch: a newer phase is already served, or another one of that number.
        """
        served(phase, self._workload).server_rule(phase.members)
        if self.phase is None or phase.epoch.number > self.phase.epoch.number:
            return False
        if phase.epoch == self.phase.epoch:
            return True
        offered, held = phase.epoch.beside(self.phase.epoch)
        raise StaleEpoch(f"epoch {offered} is not newer than epoch {held}, which is served; reserve another")

    def enter(self, phase: Phase) -> None:
        """Begin with `phase`, whose starting state is here.

        Raises:
          PlanError, InvalidMessage: it cannot be served.
          ConfigError: the protocol cannot work with these members.
        """
        protocol = served(phase, self._workload)
        self._rule, self._protocol = protocol.server_rule(phase.members), protocol
        self.phase, self.open = phase, True
        self._begin(phase)
        self._members = frozenset(phase.members)
        self._admitted, self._tickets, self._by_unit, self._joined, self._known = {}, {}, {}, {}, {}
        self._ready, self._granted, self._idlers = {}, {}, set()
        self.compensation, self.change = protocol.compensated, protocol.change(len(phase.members))
        self.local, self.share = protocol.local, 1 / len(self._members)
        at_once = None if self.local else self._rule.at_once
        self.at_once, self._passing = (0.0, None) if at_once is None else (at_once, phase.epoch)
        self._units_of, self._fastest, self._settled = {}, 0, {}

    def close(self) -> None:
        """Refuse every later push of the phase; whoever waits for a reply to an applied one gets it now."""
        self.open = False
        self._admitted, self._known = {}, {}
        for ticket in [*self._tickets.values()]:
            if ticket.decided and ticket.reply is None:
                ticket.reply = PushReply(self.sequence, dropped=ticket.reason)
                self._forget(ticket)

    def fence(self, worker: int, incarnation: int) -> Iterator[Decided]:
        """Refuse the worker's incarnations up to this one; returns what is to be carried out now.

        What the rule still holds of them then comes to nothing.
        """
        self._incarnations[worker] = max(self._incarnations.get(worker, 0), incarnation + 1)
        self._admitted.pop(worker, None)
        self._known.pop(worker, None)
        yield from self._leave(worker, incarnation)
        yield from self._let_go()

    def answer(self, worker: int, reply: PushReply) -> PushReply:
        """Return a reply as it is given now: with the newest version's sequence, and its progress where it is told."""
        if self.local:
            own = self._units_of.get(worker, 0)
            units = self.phase.end_units - self._missing if self.phase else 0
            return reply._replace(sequence=self.sequence, units=units, own=own, fastest=self._fastest)
        if reply.sequence == self.sequence:
            return reply
        return PushReply(self.sequence, reply.duplicate, reply.dropped, settled=reply.settled)

    def admit(self, push: Push) -> None:
        """Refuse a caller that is out of date.

        Raises:
          StaleEpoch, StaleIncarnation: it is.
          UnknownRole: it takes no part in the phase.
        """
        self._admit(push, check_epoch(push.epoch, self.phase))

    def _admit(self, push: Push, phase: Phase) -> None:
        worker, incarnations = push.worker, self._incarnations
        if worker not in self._members:
            check_member(push, phase)
        check_current(push, self.open, incarnations.get(worker, 0))
        incarnations[worker] = self._admitted[worker] = push.incarnation
        self._known.pop(worker, None)

    def join(self, push: Push) -> Iterator[Decided]:
        """Admit a caller; returns what is to be carried out now, if it is the first call of its process.

        Raises:
          StaleEpoch, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        return self._join(push)

    def ready(self, push: Push, at: float) -> Iterator[Decided]:
        """Take the word of a worker that it could push; returns what is to be carried out now.

        A repeat, and units of which another push is here or that are settled, are for nobody to decide about.

        Args:
          push: what it would push.
          at: now, in seconds of the owner's clock.

        Raises:
          StaleEpoch, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        if push in (self._ready.get(push.worker), self._granted.get(push.worker)):
            return iter(())
        if any(unit in self._by_unit or self._is_settled(unit) for unit in push.units):
            return iter(())
        return self._await_grant(push, at)

    def is_ungranted(self, push: Push) -> bool:
        """Whether a worker that said it could push has to wait for that still."""
        return self.open and self._ready.get(push.worker) == push

    def idle(self, push: Push) -> Iterator[Decided]:
        """Note that a worker has nothing to compute; returns what is to be carried out now.

        Who has a push here waits for its reply, whatever a message says that took long.

        Raises:
          StaleEpoch, StaleIncarnation, UnknownRole: see `admit`.
        """
        self.admit(push)
        worker = push.worker
        if worker in self._ready or worker in self._granted:
            return iter(())
        if any(ticket.push.worker == worker and ticket.reply is None for ticket in self._tickets.values()):
            return iter(())
        return self._idle(push)

    def is_known(self, push: Push) -> bool:
        """Whether a push is of another epoch, or with a unit that was offered before: nothing new is made of it."""
        return push.epoch != self.epoch or any(unit in self._by_unit or self._is_settled(unit) for unit in push.units)

    def holds(self, unit: int) -> bool:
        """Whether a push with `unit` is here whose end is open."""
        ticket = self._by_unit.get(unit)
        return ticket is not None and not ticket.decided

    def offer(
        self, push: Push, contribution: Any, non_finite: str, at: float = 0.0
    ) -> tuple[Ticket, Iterator[Decided]]:
        """Take a push; returns its ticket, and what is to be carried out now.

        The ticket is another push's where that one decides about the units: a repeat waits for the release of the
        first one, whoever offers the same units in another push until those are decided. A ticket of units that were
        settled before says so in its reply.

        Args:
          push: as it arrived.
          contribution: what it brings.
          non_finite: the first entry of it that is no finite number; such a push is dropped without asking the rule.
          at: now, in seconds of the owner's clock.

        Raises:
          StaleEpoch, StaleIncarnation, UnknownRole: the caller is out of date.
          InvalidMessage: the units or the base cannot be.
        """
        phase = check_epoch(push.epoch, self.phase)
        check_push(push, phase, self.sequence, self._num_dropped)
        if self._admitted.get(push.worker) != push.incarnation:
            self._admit(push, phase)
        by_unit, units = self._by_unit, push.units
        for unit in units:
            earlier = by_unit.get(unit)
            if earlier is not None and (not earlier.decided or self.is_same(push, earlier)):
                if earlier.push.worker == push.worker:
                    return earlier, iter(())
                if earlier.reply is not None:  # held, but nobody waits for it: the update may need more pushes to come
                    return Ticket(push, None, self._repeated(push), decided=True), self._pass_by(push)
                return earlier, self._idle(push)  # it waits for that one, which is not to wait for it
        for unit in units:
            if self._is_settled(unit):
                return Ticket(push, None, self._repeated(push), decided=True), self._pass_by(push)
        push_id = self._next_push
        ticket = self._tickets[push_id] = Ticket(push, contribution, push_id=push_id)
        self._next_push = push_id + 1
        for unit in units:
            by_unit[unit] = ticket
        return ticket, self._take(push_id, push, non_finite, at)

    def passes(self, push: Push) -> bool:
        """Whether a finite push is decided by coming: applied by itself, and answered. Nothing has changed yet."""
        epoch, worker, incarnation, units, base, _, _ = push
        if self._known.get(worker) != incarnation or epoch != self._passing or len(units) != 1:
            return False
        ends, unit = self._ends, units[0]
        return 0 <= unit < ends.limit and not ends.marks[unit] and 0 <= base <= self.sequence and not self._tickets

    def passing(self, push: Push, contribution: Any) -> Decided:
        """Return the update that a push that `passes` is to be carried out as."""
        return Decided((Ticket(push, contribution),), push.units, push.base, self.at_once, self.share)

    def passed(self, push: Push) -> PushReply:
        """Count a push that `passes`, and was carried out; returns its answer."""
        _, _, _, (unit,), base, _, _ = push
        return whole_reply((self._count_one(unit, base), False, "", 0, 0, 0, ()))

    @staticmethod
    def is_same(push: Push, ticket: Ticket) -> bool:
        """Whether a ticket is of this push or of an earlier copy of it."""
        return ticket.push is push or (ticket.push.worker == push.worker and ticket.push.units == push.units)

    def is_over(self, push: Push, ticket: Ticket) -> bool:
        """Whether `push` has to wait for `ticket` no more: it has its reply, is decided for others, or is void."""
        told = ticket.reply is not None if self.is_same(push, ticket) else ticket.decided
        return told or ticket.fenced or not self.open or self.epoch != ticket.push.epoch

    def waiting_for(self) -> str:
        """Return what a push waits for that is held, for people."""
        return f"{self._protocol.name}; it waits for other workers of {self.phase and self.phase.members}"

    # --- inside ---

    def _repeated(self, push: Push) -> PushReply:
        """Return what a push is answered of which units are settled: the worker's last one, or a duplicate."""
        last = self._settled.get(push.worker)
        if last is not None and (last.units, last.incarnation) == (push.units, push.incarnation):
            return PushReply(self.sequence)
        return PushReply(self.sequence, duplicate=True, settled=tuple(filter(self._is_settled, push.units)))

    def _take(self, push_id: int, push: Push, non_finite: str, at: float) -> Iterator[Decided]:
        if self._joined.get(push.worker) != push.incarnation:
            yield from self._join(push)
        self._granted.pop(push.worker, None)
        self._known[push.worker] = push.incarnation
        if non_finite:
            actions: list[Action] = [Drop(push_id, f"{NON_FINITE}: {non_finite}"), Release(push_id)]
            actions += self._rule.on_join(push.worker)
        else:
            actions = self._rule.on_push(Arrival(push_id, push.worker, push.units, self.sequence - push.base, at))
        yield from self._decide(actions)
        if self._tickets:
            yield from self._let_go()

    def _join(self, push: Push) -> Iterator[Decided]:
        """Tell the rule of a process that it has not heard of, and of the end of the one before it."""
        worker, known = push.worker, self._joined.get(push.worker)
        if known == push.incarnation and worker not in self._idlers:
            return
        if known is not None and known != push.incarnation:
            yield from self._leave(worker, known)
        self._idlers.discard(worker)
        self._joined[worker] = push.incarnation
        yield from self._decide(self._rule.on_join(worker))

    def _await_grant(self, push: Push, at: float) -> Iterator[Decided]:
        yield from self._join(push)
        self._ready[push.worker] = push
        yield from self._decide(self._rule.on_ready(push.worker, at))

    def _pass_by(self, push: Push) -> Iterator[Decided]:
        """Tell the rule that the push it has granted comes to nothing; a late copy of another one tells nothing."""
        if self._granted.get(push.worker) == push:
            del self._granted[push.worker]
            yield from self._decide(self._rule.on_join(push.worker))
            yield from self._let_go()

    def _leave(self, worker: int, incarnation: int) -> Iterator[Decided]:
        """Tell the rule of the end of a worker's processes up to `incarnation`, and let nothing come of their pushes.

        The rule has heard of it already where a later process has called.
        """
        if self.open and self._joined.get(worker, 0) <= incarnation:  # a state captured for good changes no more
            self._joined.pop(worker, None)
            self._ready.pop(worker, None)
            self._granted.pop(worker, None)
            yield from self._decide(self._rule.on_leave(worker))
        for ticket in [*self._tickets.values()]:
            if ticket.push.worker == worker and ticket.push.incarnation <= incarnation:
                ticket.fenced = True
                self._forget(ticket)
        last = self._settled.get(worker)
        if last is not None and last.incarnation <= incarnation:
            del self._settled[worker]

    def _idle(self, push: Push) -> Iterator[Decided]:
        yield from self._join(push)
        self._granted.pop(push.worker, None)
        if self.local:  # it begins anew with its next unit, from the newest version
            self._idlers.add(push.worker)
        yield from self._decide(self._rule.on_idle(push.worker))
        yield from self._let_go()

    def _let_go(self) -> Iterator[Decided]:
        """Have the rule let go of what it holds once nobody can push anything else."""
        while self.open and self._tickets:
            held = sum(len(ticket.push.units) for ticket in self._tickets.values() if not ticket.decided)
            if held < self._missing or not (actions := self._rule.on_last()):
                return
            yield from self._decide(actions)

    def _decide(self, actions: list[Action]) -> Iterator[Decided]:
        for action in actions:
            if isinstance(action, Apply):
                tickets = [*map(self._tickets.__getitem__, action.pushes)]
                units, base = tickets[0].push.units, tickets[0].push.base
                if (num_pushes := len(tickets)) > 1:
                    units = tuple(unit for ticket in tickets for unit in ticket.push.units)
                    base = min(ticket.push.base for ticket in tickets)
                parts: tuple[Part, ...] = ()
                stepped: tuple[tuple[int, int, int, int, int], ...] = ()
                if self.local:
                    stepped = tuple(map(stepped_of, tickets))
                elif num_pushes > 1 or action.weights:
                    parts = parts_of(tickets, base, action.weights)
                share = num_pushes / len(self._members)
                share = share if share < 1.0 else 1.0
                yield Decided(tickets, units, base, action.rate, share, action.weights, parts, stepped)
                self._count(units, [ticket.push.base for ticket in tickets])
                for ticket in tickets:
                    if self.local:
                        self._note(ticket.push)
                    ticket.decided, ticket.contribution = True, None
                    if ticket.reply is not None:
                        self._forget(ticket)
            elif isinstance(action, Release):
                ticket = self._tickets[action.push]
                ticket.reply = PushReply(self.sequence, False, ticket.reason)
                if ticket.decided:
                    self._forget(ticket)
            elif isinstance(action, Grant):
                self._granted[action.worker] = self._ready.pop(action.worker)
            else:
                ticket = self._tickets[action.push]
                yield Decided((), dropped=ticket.push)
                self._count_drop(ticket.push.units, action.reason)
                ticket.reason, ticket.decided, ticket.contribution = action.reason, True, None
                if ticket.reply is not None:
                    self._forget(ticket)

    def _note(self, push: Push) -> None:
        """Note how far a worker that steps by itself has come."""
        done = self._units_of[push.worker] = self._units_of.get(push.worker, 0) + len(push.units)
        self._fastest = max(self._fastest, done)
        if push.incarnation >= self._incarnations.get(push.worker, 0):
            self._settled[push.worker] = push

    def _forget(self, ticket: Ticket) -> None:
        """Forget a push of which nothing is to come any more; a repeat is told by its units.

        A push that is decided, and whose reply the rule still holds, is kept, for repeats of it.
        """
        del self._tickets[ticket.push_id]
        by_unit = self._by_unit
        for unit in ticket.push.units:
            if by_unit.get(unit) is ticket:
                del by_unit[unit]
