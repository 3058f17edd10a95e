"""The parameter server without IO: takes calls, has updates applied, and says which held calls are released. Pure.

A driver lets one caller in at a time and ends each turn with `release`. Three rules hold for every driver:

- The update is carried out inside the turn, between its decision and its count: the core calls a `StateHolder`.
- A reply is made when it is sent (`answer`), not when the call is released: the parameters that go with it are then the
  newest.
- The end of a call is not the end of its push. A driver that gives a call up calls `withdraw`. The push stays held, and
  the same units find it again.

>>> from hybridsync.core.plan import PhaseId
>>> class Adding:
...     total = 0
...     def apply(self, update, sequence): self.total += sum(update.contributions)
...     def record_read(self, push): pass
...     def record_sent(self, push, sequence): pass
>>> core = ServerCore(holder := Adding(), now=lambda: 0.0)
>>> core.enter(Phase(PhaseId(3, 7), "bsp_server", (0, 1), 0, 10, (), (), 0, "", 1, "", (), "start"))
>>> first = core.push(Push(PhaseId(3, 7), 0, 1, units=(4,), base=0), 40, "")
>>> core.release(), holder.total
([], 0)
>>> second = core.push(Push(PhaseId(3, 7), 1, 1, units=(5,), base=0), 2, "")
>>> holder.total, second.sequence, [core.answer(call).sequence for call in core.release()]
(42, 1, [1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.server.held_pushes import Decided, Decision, Dropped, Ticket, missing_uploads, usable_uploads
from hybridsync.server.push_checks import check_phase_id, check_place
from hybridsync.server.sequencer import Sequencer


class StateHolder(Protocol):
    """Holds the training state, and carries out what the core decides. No call of it waits for a worker."""

    def check_base(self, push: Push) -> None:
        """Refuse a push whose staleness cannot be compensated.

        Raises:
          InvalidMessage: the parameters that it was computed on are not kept.
        """
        ...

    def record_read(self, push: Push) -> None:
        """Note that the worker of `push` has read all of the parameters that it had, unless it pulls beside it."""
        ...

    def apply(self, update: Decided, sequence: int) -> None:
        """Apply an update, by which the state comes to `sequence`. If it raises, the update was never decided."""
        ...

    def discard(self, push: Push) -> None:
        """Forget what was staged of a push that is not applied."""
        ...

    def record_sent(self, push: Push, sequence: int) -> None:
        """Note that `push` is answered with the parameters of `sequence`, the newest, if it asks for any."""
        ...

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget a worker's processes up to `incarnation`, which are gone."""
        ...

    def retain(self, contribution: Any) -> Any:
        """Return a contribution that outlives its caller's buffer."""
        ...

    def take_uploads(self, left: tuple[tuple[int, int], ...], sequence: int) -> None:
        """Make the mean of the optimizer states that workers left behind that of the state at `sequence`.

        Args:
          left: workers and their incarnations, at least one.
          sequence: sequence of the phase's last version.
        """
        ...


@dataclass(slots=True, eq=False)
class HeldCall:
    """A call that is not answered yet: a push, or a worker that is ready to push and waits to be granted it.

    Args:
      push: the push.
      contribution: contribution of the push; the caller's, until the call ends.
      non_finite: the first entry of the contribution that is not a finite number.
      ticket: ticket of the push that decides about the call: its own, or that of a different push with the same units;
        None waits for a grant.
      was_settled: whether its units had their end when it was offered.
      outcome: result of the call; None while it is held.
    """

    push: Push
    contribution: Any = None
    non_finite: str = ""
    ticket: Ticket | None = None
    was_settled: bool = False
    outcome: PushReply | HybridSyncError | None = None


class ServerCore:
    """One server's decisions, in the order in which its driver lets callers in.

    Args:
      holder: carries updates out.
      now: returns the time of the driver's clock.
      sequencer: decides about pushes.
      keep: called between two updates when the state has come to a place of `Phase.evaluate_units`.

    Attributes:
      sequencer: decides about pushes; read-only for the driver.
    """

    def __init__(
        self,
        holder: StateHolder,
        now: Callable[[], float],
        sequencer: Sequencer | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self.sequencer = sequencer or Sequencer()
        self._holder, self._now, self._count, self._keep = holder, now, self.sequencer.count, keep
        self._pushes: dict[HeldCall, None] = {}  # in the order in which they came
        self._grants: dict[HeldCall, None] = {}
        self._uploads: dict[int, Push] = {}
        self._left: tuple[tuple[int, int], ...] | None = None

    # --- phases ---

    def enter(self, phase: Phase) -> None:
        """Serve `phase`, whose state the holder has (see `Sequencer.enter`)."""
        self.sequencer.enter(phase)
        self._uploads, self._left = {}, None

    def close(self) -> None:
        """Refuse every later push of the phase; held calls end with the turn."""
        self.sequencer.close()

    def abandon(self) -> None:
        """Serve no phase: the holder has failed. Held calls end with the turn; a phase may be entered anew."""
        self.sequencer.close()
        self.sequencer.phase = None

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation`: its process is gone, and so is what it pushed and nobody applied.

        Raises:
          UnknownRole: no run has a worker of that number.
        """
        check_place(worker)
        if self.sequencer.phase_id == phase_id:
            self._carry_out(self.sequencer.fence(worker, incarnation))
            self._holder.forget(worker, incarnation)  # after the updates that the fence lets go

    # --- calls of workers ---

    def pull(self, push: Push) -> PushReply:
        """Return the answer to a pull.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date.
        """
        self._carry_out(self.sequencer.join(push))
        return self._answer(push, PushReply(self.sequencer.sequence))

    def idle(self, push: Push) -> None:
        """Hear that a worker has nothing to compute: nobody is to wait for it.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date.
        """
        self._carry_out(self.sequencer.idle(push))

    def ready(self, push: Push) -> HeldCall:
        """Hear that a worker could push; its call ends when the rule grants the transfer.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date.
        """
        self._carry_out(self.sequencer.ready(push, self._now()))
        call = HeldCall(push)
        self._grants[call] = None
        return call

    def push(self, push: Push, contribution: Any, non_finite: str) -> PushReply | HeldCall:
        """Take a push; returns its answer, to be sent now, or the call that is held.

        A unit is applied once: a repeated push waits for the release of the first one and gets its result. A
        contribution that is not finite is dropped without asking the rule.

        Raises:
          StalePhase, StaleIncarnation, UnknownRole: the caller is out of date; nothing was applied.
          InvalidMessage: the units or the base cannot be.
        """
        sequencer, holder = self.sequencer, self._holder
        if sequencer.compensation is not None and not non_finite:
            sequencer.check(push)
            if not sequencer.is_known(push):
                holder.check_base(push)
        update = None if non_finite else sequencer.fast_path_update(push, contribution)
        if update is not None:
            holder.record_read(push)
            holder.apply(update, self._count.sequence + 1)
            reply = sequencer.count_fast_path(push)
            if self._count.missing <= self._count.place:
                self._keep_at_place()
            holder.record_sent(push, reply.sequence)
            return reply
        call = HeldCall(push, contribution, non_finite)
        reply = self._offer(call)
        if reply is not None:
            return self._answer(push, reply)
        self._pushes[call] = None
        return call

    def upload_opt_state(self, push: Push) -> bool:
        """Return whether to keep the optimizer state that a worker leaves behind, as it was after `push.units`.

        Raises:
          StalePhase: another phase is served.
        """
        check_phase_id(push.phase_id, self.sequencer.phase)
        last = self.sequencer.last_applied.get(push.worker)
        if last is None or last.incarnation > push.incarnation:
            return False
        self._uploads[push.worker] = push
        return True

    # --- held calls ---

    def release(self) -> list[HeldCall]:
        """End a turn: return the calls that have their outcome now, in the order in which they are to be answered."""
        ended: list[HeldCall] = []
        while self._pushes and self._release_pushes(ended):
            pass
        for call in [*self._grants] if self._grants else ():
            if not self.sequencer.is_ungranted(call.push):
                del self._grants[call]
                call.outcome = self._granted(call.push)
                ended.append(call)
        return ended

    def answer(self, call: HeldCall) -> PushReply:
        """Return the reply to a released call, to be sent now.

        Raises:
          HybridSyncError: the call was refused.
        """
        assert call.outcome is not None, f"{call.push} is still held"
        if isinstance(call.outcome, HybridSyncError):
            raise call.outcome
        return call.outcome if call.ticket is None else self._answer(call.push, call.outcome)

    def withdraw(self, call: HeldCall) -> None:
        """Forget a call whose caller waits no longer; its push is held on."""
        self._pushes.pop(call, None)
        self._grants.pop(call, None)
        self._outlive(call)

    # --- the end of a phase with local updates ---

    @property
    def missing_uploads(self) -> list[int]:
        """The workers whose optimizer states are still to come."""
        if not self.sequencer.local_updates or self._left is not None:
            return []
        return missing_uploads(self.sequencer.last_applied, self._uploads)

    def take_uploads(self) -> tuple[int, ...]:
        """Set the optimizer state to the mean of the workers' uploads, once per phase. Returns the workers averaged."""
        if not self.sequencer.local_updates:
            return ()
        if self._left is None:
            settled = self.sequencer.last_applied
            self._left = tuple((at, settled[at].incarnation) for at in usable_uploads(settled, self._uploads))
            if self._left:
                self._holder.take_uploads(self._left, self.sequencer.sequence)
        return tuple(worker for worker, _ in self._left)

    # --- inside ---

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        holder, sequencer = self._holder, self.sequencer
        for decision in decisions:
            self._keep_at_place()  # the update before it counts by now
            if isinstance(decision, Dropped):
                holder.discard(decision.push)
            else:
                holder.apply(decision, sequencer.sequence + 1)
        self._keep_at_place()

    def _keep_at_place(self) -> None:
        count = self._count
        if count.missing <= count.place:
            count.find_place()
            self._keep()

    def _answer(self, push: Push, reply: PushReply) -> PushReply:
        sequencer = self.sequencer
        self._holder.record_sent(push, sequencer.sequence)
        return sequencer.answer(push.worker, reply)

    def _offer(self, call: HeldCall) -> PushReply | None:
        """Offer a call's push to the rule; returns its reply, None where it is held.

        Raises:
          HybridSyncError: the push is refused.
        """
        push = call.push
        ticket, decisions = self.sequencer.submit(push, call.contribution, call.non_finite, self._now())
        call.ticket, call.was_settled = ticket, ticket.reply is not None
        if ticket.push is push and not call.was_settled:
            self._holder.record_read(push)  # before its update is sent, which names what is still to be read
        self._carry_out(decisions)
        return self._reply_of(call)

    def _release_pushes(self, ended: list[HeldCall]) -> bool:
        """Append the calls that have their outcome; returns whether one was offered anew, which may let others go."""
        sequencer, offered = self.sequencer, False
        for call in [*self._pushes]:
            assert call.ticket is not None
            if not sequencer.is_over(call.push, call.ticket):
                continue
            call.outcome = self._reply_of(call)
            if call.outcome is None:  # another push has decided, or none will: it is offered anew, or refused by name
                offered = True
                try:
                    call.outcome = self._offer(call)
                except HybridSyncError as error:
                    call.outcome = error
            if call.outcome is not None:
                del self._pushes[call]
                ended.append(call)
        return offered

    def _reply_of(self, call: HeldCall) -> PushReply | None:
        """Return a call's reply, if its ticket has one that is for it."""
        push, ticket = call.push, call.ticket
        assert ticket is not None
        if ticket.reply is None or not self.sequencer.is_same(push, ticket):
            return None
        self._outlive(call)
        if call.was_settled or ticket.push != push or (ticket.push is not push and ticket.decided):
            self._holder.discard(push)  # nothing comes of what was staged for this copy
        return ticket.reply

    def _outlive(self, call: HeldCall) -> None:
        """Have a push that is held on outlive its call, whose buffer is filled again."""
        ticket = call.ticket
        if ticket is None or ticket.push is not call.push or not self.sequencer.open:
            return
        if not (ticket.decided or ticket.fenced):
            ticket.contribution = self._holder.retain(ticket.contribution)

    def _granted(self, push: Push) -> PushReply | HybridSyncError:
        """Return what ends the wait for a grant."""
        try:
            self.sequencer.admit(push)
        except HybridSyncError as error:
            return error
        return PushReply(self.sequencer.sequence)
