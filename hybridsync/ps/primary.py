"""The primary: holds the state on the SERVER path and carries out the protocol's rule, one push at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hybridsync.applylog import ApplyLog, Entry
from hybridsync.clock import Clock
from hybridsync.errors import StaleEpoch, StillHeld
from hybridsync.holding import Holding, Loan, ReaderAt
from hybridsync.layout import first_non_finite
from hybridsync.messages import NON_FINITE, Capture, Held, Push, PushReply, Span, Standing, Update
from hybridsync.plan import NO_EPOCH, Epoch, Phase
from hybridsync.protocols.base import Action, Apply, Arrival, Drop, Release
from hybridsync.ps.admission import check_current, check_epoch, check_member, check_push, served
from hybridsync.ps.partition import PRIMARY, partition
from hybridsync.ps.peers import Peers
from hybridsync.ps.shard import Progress, Publisher, Shard
from hybridsync.step import Programs
from hybridsync.units import UnitSet

HELD_SECS = 20.0
"""How long one call waits for the rule's release before the worker is told to ask again; a client waits longer."""


@dataclass
class _Ticket:
    """A push that is held: until it is decided (applied or dropped) and released, whoever waits for it meanwhile."""

    push: Push
    contribution: Any
    decided: bool = False
    reason: str = ""
    reply: PushReply | None = None
    fenced: bool = False

    def keep(self) -> None:
        """Let go of the caller's buffer, which is filled again when its call has ended."""
        self.contribution = jax.tree.map(
            lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, self.contribution
        )


class Primary:
    """The server that runs the rule; it keeps the whole state, or its part of it where there are other servers.

    The condition guards everything below it; it is notified when a push gets its reply and when the phase ends. The
    other servers are told of every decision in the order in which it was made under this condition.

    Args:
      programs: the run's compiled programs; of them `update` and `total` are used.
      publisher: how parameters are lent out.
      reader_at: how to reach the role that holds a phase's starting state.
      clock: for spans.
      apply_log: where updates are written down.
      completed: set when the phase's units are all applied, so that the chief hears of it at once.
      device: where the state lives; None is jax's default.
      peers: the other servers; None where there are none.
    """

    def __init__(
        self,
        programs: Programs,
        publisher: Publisher,
        reader_at: ReaderAt,
        clock: Clock,
        apply_log: ApplyLog,
        completed: threading.Event,
        device: Any = None,
        peers: Peers | None = None,
    ) -> None:
        self._peers = peers or Peers.none(partition(programs, 1))
        self._shard = Shard(self._peers.parts[PRIMARY], publisher, reader_at, device)
        self._clock, self._apply_log, self._completed = clock, apply_log, completed
        self._holding = Holding(programs.state_layout)
        self._capturing = threading.Lock()
        self._condition = threading.Condition()
        self._phase: Phase | None = None
        self._open = False
        self._fingerprint = ""
        self._entered = ""
        self._sequence = 0
        self._applied, self._dropped = UnitSet(), UnitSet()
        self._incarnations: dict[int, int] = {}
        self._wanted: dict[int, set[int]] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._by_unit: dict[int, _Ticket] = {}
        self._next_push = 1
        self._unreported = UnitSet()
        self._unreported_drops: list[tuple[int, str]] = []
        self._staleness: list[int] = []
        self._spans: list[Span] = []
        self._first_applied = self._last_applied = 0.0

    # --- what the chief calls ---

    def enter(self, phase: Phase) -> Held:
        """Take over the phase's starting state and serve it; repeating the call is harmless.

        Raises:
          ConfigError: the protocol is unknown, has no server rule, or cannot work with these members.
          InvalidMessage: the phase has no members.
          StaleEpoch: a newer phase is already served, or another one of that number.
          DamagedState: what arrived is not the state that was captured.
        """
        protocol = served(phase)
        rule = protocol.server_rule(phase.members)
        with self._condition:
            if self._phase is not None and phase.epoch == self._phase.epoch:
                return self._held()
            if self._phase is not None and phase.epoch.number <= self._phase.epoch.number:
                offered, held = phase.epoch.beside(self._phase.epoch)
                raise StaleEpoch(f"epoch {offered} is not newer than epoch {held}, which is served; reserve another")
            if self._shard.empty or self._fingerprint != phase.fingerprint:
                self._shard.take_over(phase)
            self._fingerprint = ""
            self._apply_log.clear()
            self._peers.enter(phase)
            self._phase, self._rule, self._protocol, self._open = phase, rule, protocol, True
            self._sequence = phase.sequence
            self._applied, self._dropped = UnitSet(phase.applied), UnitSet(phase.dropped)
            self._tickets, self._by_unit, self._wanted = {}, {}, {}
            self._first_applied = self._last_applied = 0.0
            self._shard.publish()
            self._entered = phase.fingerprint
            return self._held()

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """Copy the whole state between two updates; `final` refuses every later push of the epoch.

        Raises:
          StaleEpoch: another epoch is served.
          WaitTimeout: another server did not hand over its part in time.
          HybridSyncError: another server failed.
        """
        with self._capturing:
            with self._condition:
                phase = self._expect(epoch)
                if final:
                    self._open = False
                    self._condition.notify_all()
                self._holding.fill(self._shard.pack_inside)
                applied, dropped, sequence = self._applied.ranges(), self._dropped.ranges(), self._sequence
                first, last = self._first_applied, self._last_applied
                snapshots = self._peers.snapshot(sequence, final)
                self._apply_log.flush()
            self._holding.complete(lambda whole: self._peers.gather(snapshots, whole))
            capture = self._holding.seal(
                phase.epoch,
                sequence=sequence,
                applied=applied,
                dropped=dropped,
                first_applied=first,
                last_applied=last,
            )
        if final:
            self._fingerprint = capture.held.fingerprint
        return capture

    def read(self, capture_id: int, into: Any) -> None:
        """Copy a capture (see `Holding.read`)."""
        self._holding.read(capture_id, into)

    def lend(self, capture_id: int) -> Loan:
        """Lend a capture (see `Holding.lend`)."""
        return self._holding.lend(capture_id)

    def fence(self, epoch: Epoch, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation`: its process is gone, and so is what it pushed and nobody applied."""
        with self._condition:
            if self._phase is None or self._phase.epoch != epoch:
                return
            self._incarnations[worker] = max(self._incarnations.get(worker, 0), incarnation + 1)
            if self._open:  # a state that was captured for good changes no more
                self._execute(self._rule.on_leave(worker))
            for push_id, ticket in [*self._tickets.items()]:
                if ticket.push.worker == worker and ticket.push.incarnation <= incarnation:
                    ticket.fenced = True
                    self._forget(push_id)
            self._wanted.pop(worker, None)
            self._peers.forget(worker, incarnation)
            self._condition.notify_all()

    def standing(self) -> Standing | None:
        """Return the phase that is served, for a chief that has not heard of it."""
        with self._condition:
            return Standing(self._phase, self._open) if self._phase is not None else None

    def drain(self) -> Progress:
        """Return and forget what happened since the last call."""
        with self._condition:
            progress = Progress(
                self.epoch,
                self._unreported.ranges(),
                tuple(self._unreported_drops),
                tuple(self._staleness),
                tuple(self._spans),
                self._sequence,
                self._first_applied,
                self._last_applied,
            )
            self._unreported = UnitSet()
            self._unreported_drops, self._staleness, self._spans = [], [], []
            return progress

    @property
    def epoch(self) -> Epoch:
        """The phase being served."""
        return self._phase.epoch if self._phase else NO_EPOCH

    # --- what workers call ---

    def pull(self, push: Push) -> tuple[PushReply, Any]:
        """Return the current sequence and parameters.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._condition:
            self._admit(push)
            asked = self._wanted.get(push.worker, set())
            self._wanted[push.worker] = {max(asked)} if asked else set()  # a repeat of it may still be read
            return self._answer(push, PushReply(self._sequence))

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Any]:
        """Offer a contribution tree; returns when the rule releases it, with the newest parameters then.

        A unit is applied once: a repeated push waits for the first one's release and gets its result. A push goes on
        being held when its call ends; the same units find it again. A contribution that is not finite is dropped
        without asking the rule.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date; nothing was applied.
          InvalidMessage: the units or the base cannot be.
          StillHeld: the rule has not released the push yet; push the same units again.
        """
        found = first_non_finite(contribution) or push.non_finite
        push = replace(push, non_finite="")
        with self._condition:
            check_push(push, self._expect(push.epoch), self._sequence, len(self._dropped))
            self._admit(push)
            while True:
                ticket = self._find(push)
                if ticket is None and self._is_settled(push):
                    self._peers.discard(push)
                    return self._answer(push, PushReply(self._sequence, duplicate=True))
                mine = ticket is None
                ticket = ticket or self._arrive(push, contribution, found)
                same = ticket.push.units == push.units
                over = self._condition.wait_for(lambda t=ticket, same=same: self._is_over(t, same), HELD_SECS)
                if mine and self._open and not (ticket.decided or ticket.fenced):
                    ticket.keep()
                if ticket.reply is not None and same:
                    if ticket.push != push or (not mine and ticket.decided):
                        self._peers.discard(push)
                    return self._answer(push, ticket.reply)
                self._admit(push)
                if not over:
                    raise StillHeld(
                        f"the push of worker {push.worker} with units {push.units} is still held by "
                        f"{self._protocol.name}; it waits for other workers of {self._phase and self._phase.members}: "
                        "push the same units again"
                    )

    def _find(self, push: Push) -> _Ticket | None:
        """Return the held push that this one has to wait for: itself, pushed earlier, or one that may use its units."""
        same = (push.worker, push.units)
        found = (self._by_unit.get(unit) for unit in push.units)
        return next((t for t in found if t and (not t.decided or (t.push.worker, t.push.units) == same)), None)

    def _is_settled(self, push: Push) -> bool:
        return any(unit in self._applied or unit in self._dropped for unit in push.units)

    def _is_over(self, ticket: _Ticket, same: bool) -> bool:
        """Whether nobody has to wait for a held push any more; others than itself wait until it is decided."""
        told = ticket.reply is not None if same else ticket.decided
        return told or ticket.fenced or not self._open or self.epoch != ticket.push.epoch

    def _answer(self, push: Push, reply: PushReply) -> tuple[PushReply, Any]:
        """Return the reply with the parameters of this moment, which the other servers then keep for the worker."""
        if self._peers:
            self._wanted.setdefault(push.worker, set()).add(self._sequence)
        return replace(reply, sequence=self._sequence), self._shard.publisher.current()

    def _arrive(self, push: Push, contribution: Any, non_finite: str) -> _Ticket:
        push_id = self._next_push
        self._next_push += 1
        ticket = self._tickets[push_id] = _Ticket(push, contribution)
        self._by_unit.update(dict.fromkeys(push.units, ticket))
        self._wanted.pop(push.worker, None)  # it has read what it computed this on
        if non_finite:
            self._execute([Drop(push_id, f"{NON_FINITE}: {non_finite}"), Release(push_id)])
        else:
            staleness = self._sequence - push.base
            self._execute(self._rule.on_push(Arrival(push_id, push.worker, push.units, staleness)))
        self._condition.notify_all()
        return ticket

    def _forget(self, push_id: int) -> None:
        """Forget a push of which nothing is to come any more."""
        ticket = self._tickets.pop(push_id)
        for unit in ticket.push.units:
            if self._by_unit.get(unit) is ticket:
                del self._by_unit[unit]

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Apply(pushes, rate):
                    tickets = [self._tickets[push] for push in pushes]
                    self._apply(tickets, rate)
                    for ticket in tickets:
                        ticket.decided = True
                    named = pushes
                case Drop(push, reason):
                    ticket = self._tickets[push]
                    for unit in ticket.push.units:
                        self._dropped.add(unit)
                        self._unreported_drops.append((unit, reason))
                    self._peers.discard(ticket.push)
                    ticket.decided, ticket.reason = True, reason
                    named = (push,)
                case Release(push):
                    ticket = self._tickets[push]
                    ticket.reply = PushReply(self._sequence, dropped=ticket.reason)
                    named = (push,)
            for push in named:
                if self._tickets[push].decided and self._tickets[push].reply is not None:
                    self._forget(push)

    def _apply(self, tickets: list[_Ticket], rate: float) -> None:
        assert self._phase is not None
        started = self._clock.monotonic()
        units = tuple(unit for ticket in tickets for unit in ticket.push.units)
        blend = min(1.0, len(tickets) / len(self._phase.members))
        self._tell([ticket.push for ticket in tickets], rate)
        self._shard.update([ticket.contribution for ticket in tickets], len(units), rate, blend)
        base = min(ticket.push.base for ticket in tickets)
        self._staleness.extend(self._sequence - ticket.push.base for ticket in tickets)
        self._sequence += 1
        for unit in units:
            self._applied.add(unit)
            self._unreported.add(unit)
        self._last_applied = self._clock.monotonic()
        self._first_applied = self._first_applied or self._last_applied
        self._apply_log.write(
            Entry(self._phase.epoch.number, self._sequence, units, base, rate, float(len(units)), blend)
        )
        self._spans.append(
            Span("apply", "server", started, self._last_applied - started, self._phase.epoch.number, len(units))
        )
        if len(self._applied) >= self._phase.end_units:
            self._completed.set()

    def _tell(self, pushes: Sequence[Push], rate: float) -> None:
        """Let the other servers begin the update that comes next here."""
        if self._peers:
            wanted = sorted(set().union(*self._wanted.values()))
            self._peers.update(Update(self._sequence + 1, tuple(pushes), rate, tuple(wanted)))

    # --- admission ---

    def _expect(self, epoch: Epoch) -> Phase:
        return check_epoch(epoch, self._phase)

    def _admit(self, push: Push) -> None:
        check_member(push, self._expect(push.epoch))
        check_current(push, self._open, self._incarnations.get(push.worker, 0))
        self._incarnations[push.worker] = push.incarnation

    def _held(self) -> Held:
        assert self._phase is not None
        return Held(self._phase.epoch, len(self._applied), self._sequence, self._entered)
