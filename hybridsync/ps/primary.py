"""The primary: holds the state on the SERVER path and carries out the protocol's rule, one push at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import logging

from hybridsync.applylog import ApplyLog, Entry, Left, Stepped
from hybridsync.clock import Clock
from hybridsync.deadlines import transfer_secs
from hybridsync.errors import StillHeld
from hybridsync.holding import Holding, Loan, ReaderAt
from hybridsync.layout import first_non_finite
from hybridsync.messages import Capture, Held, Push, PushReply, Standing, Update
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.ps.admission import check_epoch, check_place
from hybridsync.ps.entrance import Entrance
from hybridsync.ps.partition import PRIMARY, partition
from hybridsync.ps.peers import Peers
from hybridsync.ps.sequencer import Sequencer
from hybridsync.ps.shard import Progress, Publisher, Shard
from hybridsync.ps.tickets import DEPOSIT_SECS, Decided
from hybridsync.reports import Span
from hybridsync.state import TrainState
from hybridsync.step import Programs
from hybridsync.watching import UNWATCHED, Watching

HELD_SECS = 20.0
"""How long one call waits for the rule's release before the worker is told to ask again; a client waits longer."""


def _kept(contribution: Any) -> Any:
    """Return a contribution without the caller's buffer, which is filled again when its call has ended."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, contribution)


class Primary:
    """The server that runs the rule; it keeps the whole state, or its part of it where there are other servers.

    The condition guards everything below it; it is notified when a push gets its reply and when the phase ends. The
    other servers are told of every decision in the order in which it was made under this condition. Heartbeats need
    it, so nothing that takes as long as a transfer of the state is waited for under it.

    Args:
      programs: the run's compiled programs; of them `update` and `total` are used.
      publisher: how parameters are lent out.
      reader_at: how to reach the role that holds a phase's starting state.
      clock: for spans.
      apply_log: where updates are written down.
      completed: set when the phase's units are all applied, so that the chief hears of it at once.
      device: where the state lives; None is jax's default.
      peers: the other servers; None where there are none.
      watchdog: of the process.
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
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self._peers = peers or Peers.none(partition(programs, 1))
        self._shard = Shard(self._peers.parts[PRIMARY], publisher, reader_at, device, watchdog)
        self._clock, self._apply_log, self._completed = clock, apply_log, completed
        self._holding = Holding(programs.state_layout)
        self._condition = threading.Condition()
        self._entrance = Entrance(self._condition, transfer_secs(programs.state_layout.nbytes))
        self._sequencer = Sequencer(programs.workload)
        self._fingerprint = ""
        self._entered = ""
        self._wanted: dict[int, set[int]] = {}
        self._left: tuple[int, ...] | None = None
        self._came: set[int] = set()
        self._spans: list[Span] = []
        self._first_applied = self._last_applied = 0.0

    # --- what the chief calls ---

    def enter(self, phase: Phase) -> Held:
        """Take over the phase's starting state and serve it; repeating the call is harmless.

        The phase before takes no more pushes from now on. While the state is fetched it can still be captured.

        Raises:
          ConfigError: the protocol is unknown, has no server rule, or cannot work with these members.
          InvalidMessage: the phase has no members.
          StaleEpoch: a newer phase is served or being entered, or another one of that number.
          DamagedState: what arrived is not the state that was captured.
          WaitTimeout: the state did not arrive in time.
        """
        return self._entrance.enter(
            phase.epoch,
            held=lambda: self._held_of(phase),
            leave=self._close,
            fetch=lambda: self._fetch(phase),
            swap=lambda state: self._begin(phase, state),
        )

    def _held_of(self, phase: Phase) -> Held | None:
        """Return what is held of `phase`; None where it may be entered."""
        if self._sequencer.check_phase(phase):
            return self._held()
        self._peers.check(phase)
        return None

    def _fetch(self, phase: Phase) -> TrainState | None:
        """Return the starting state of `phase`; None where it is here: a closed phase changes nothing any more."""
        kept = not self._shard.empty and self._fingerprint == phase.fingerprint
        return None if kept else self._shard.fetch(phase)

    def _begin(self, phase: Phase, state: TrainState | None) -> Held:
        """Serve `phase` from `state`, or from the one that is here; called under the condition."""
        if state is not None:
            self._shard.take(state)
        self._fingerprint = ""
        self._apply_log.clear()
        self._peers.enter(phase)
        self._sequencer.enter(phase)
        self._shard.begin(self._sequencer.compensation)
        self._wanted, self._left, self._came = {}, None, set()
        self._first_applied = self._last_applied = 0.0
        self._shard.publish()
        self._entered = phase.fingerprint
        self._condition.notify_all()
        return self._held()

    def _close(self) -> None:
        """Refuse every later push of the phase, also those that wait."""
        self._sequencer.close()
        self._condition.notify_all()

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """Copy the whole state between two updates; `final` refuses every later push of the epoch.

        Raises:
          StaleEpoch: another epoch is served.
          WaitTimeout: somebody still reads the last capture, or another server did not hand over its part in time.
          HybridSyncError: another server failed.
        """
        with self._condition:
            check_epoch(epoch, self._sequencer.phase)  # a late call must not cost the last capture
        with self._holding.room():  # before the condition: readers of the last capture may take long, pushes go on
            with self._condition:
                phase = check_epoch(epoch, self._sequencer.phase)
                if final:
                    self._close()
                    self._take_deposits(phase)
                self._holding.fill(self._shard.pack_inside)
                sequence = self._sequencer.sequence
                applied, dropped = self._sequencer.applied.ranges(), self._sequencer.dropped.ranges()
                first, last = self._first_applied, self._last_applied
                snapshots = self._peers.snapshot(sequence, final, self._left or ())
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
        """Refuse `worker` up to `incarnation`: its process is gone, and so is what it pushed and nobody applied.

        Raises:
          UnknownRole: no run has a worker of that number.
        """
        check_place(worker)
        with self._condition:
            if self._sequencer.epoch != epoch:
                return
            self._carry_out(self._sequencer.fence(worker, incarnation))
            self._wanted.pop(worker, None)
            self._shard.forget(worker, incarnation)
            self._peers.forget(worker, incarnation)
            self._condition.notify_all()

    def standing(self) -> Standing | None:
        """Return the phase that is served, for a chief that has not heard of it."""
        with self._condition:
            phase = self._sequencer.phase
            return Standing(phase, self._sequencer.open) if phase is not None else None

    def drain(self) -> Progress:
        """Return and forget what happened since the last call."""
        with self._condition:
            applied, dropped, staleness = self._sequencer.drain()
            spans, self._spans = tuple(self._spans), []
            return Progress(
                self._sequencer.epoch,
                applied,
                dropped,
                staleness,
                spans,
                self._sequencer.sequence,
                self._first_applied,
                self._last_applied,
                self._entrance.doing,
            )

    @property
    def epoch(self) -> Epoch:
        """The phase being served."""
        return self._sequencer.epoch

    # --- what workers call ---

    def pull(self, push: Push) -> tuple[PushReply, Any]:
        """Return the current sequence and parameters.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._condition:
            self._carry_out(self._sequencer.join(push))
            asked = self._wanted.get(push.worker, set())
            self._wanted[push.worker] = {max(asked)} if asked else set()  # a repeat of it may still be read
            return self._answer(push, PushReply(self._sequencer.sequence))

    def idle(self, push: Push) -> None:
        """Hear that a worker has nothing to compute: nobody is to wait for it.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._condition:
            self._carry_out(self._sequencer.idle(push))

    def ready(self, push: Push) -> None:
        """Wait until the rule grants the transfer of what the worker would push.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
          StillHeld: it is not granted yet; say the same again.
        """
        sequencer = self._sequencer
        with self._condition:
            self._carry_out(sequencer.ready(push, self._clock.monotonic()))
            granted = self._condition.wait_for(lambda: not sequencer.is_ungranted(push), HELD_SECS)
            sequencer.admit(push)
            if not granted:
                raise StillHeld(
                    f"worker {push.worker} with units {push.units} is not granted its transfer yet by "
                    f"{sequencer.waiting_for()}: say again that it is ready"
                )

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
        push = push._replace(non_finite="")
        sequencer = self._sequencer
        with self._condition:
            if not found and not sequencer.is_known(push):
                self._shard.check_base(push)
            if not found and sequencer.passes(push):
                self._wanted.pop(push.worker, None)  # it has read what it computed this on
                self._apply(sequencer.passing(push, contribution))
                reply = sequencer.passed(push)
                self._end_turn()
                return self._answer(push, reply)
            while True:
                ticket, decisions = sequencer.offer(push, contribution, found, self._clock.monotonic())
                mine, settled = ticket.push is push, ticket.reply is not None
                if mine and ticket.reply is None:
                    self._wanted.pop(push.worker, None)  # it has read what it computed this on
                self._carry_out(decisions)
                over = self._condition.wait_for(lambda t=ticket: sequencer.is_over(push, t), HELD_SECS)
                if mine and sequencer.open and not (ticket.decided or ticket.fenced):
                    ticket.contribution = _kept(ticket.contribution)
                if ticket.reply is not None and sequencer.is_same(push, ticket):
                    if settled or ticket.push != push or (not mine and ticket.decided):
                        self._peers.discard(push)
                    return self._answer(push, ticket.reply)
                sequencer.admit(push)
                if not over:
                    raise StillHeld(
                        f"the push of worker {push.worker} with units {push.units} is still held by "
                        f"{sequencer.waiting_for()}: push the same units again"
                    )

    def opt_state(self, push: Push) -> Any:
        """Return the optimizer state that the phase began with, for a worker that steps by itself.

        Raises:
          StaleEpoch, StaleIncarnation: the caller is out of date.
          UnknownRole: the caller takes no part in the phase.
        """
        with self._condition:
            self._sequencer.admit(push)
            return self._shard.opt_state()

    def deposit(self, push: Push, opt_state: Any) -> None:
        """Take the optimizer state that a worker leaves behind, as it was after the push of `push.units`.

        The phase may have ended; what comes after its final capture, or is of another push than the worker's last one
        that was applied, is not taken.

        Raises:
          StaleEpoch: the server is in another epoch.
        """
        with self._condition:
            check_epoch(push.epoch, self._sequencer.phase)
            last = self._sequencer.settled.get(push.worker)
            if last is None or last.incarnation > push.incarnation:
                return
            if last.incarnation == push.incarnation and push.units == last.units[-1:]:
                self._shard.deposit(push.worker, opt_state)
            self._came.add(push.worker)
            self._condition.notify_all()

    def _take_deposits(self, phase: Phase) -> None:
        """Wait for what the workers leave behind, and make the mean of it the next phase's optimizer state."""
        if not self._sequencer.local or self._left is not None:
            return
        settled = self._sequencer.settled
        self._condition.wait_for(lambda: self._came.issuperset(settled), DEPOSIT_SECS)
        left = tuple(worker for worker in sorted(settled) if self._shard.deposited([worker]))
        if missing := sorted(set(settled) - set(left)):
            logging.warning(
                "epoch %s: worker(s) %s left no optimizer state behind within %g s; the mean is of %s",
                *(phase.epoch, ", ".join(map(str, missing)), DEPOSIT_SECS, ", ".join(map(str, left)) or "nobody's"),
            )
        self._shard.take_deposits(left)
        self._left = left
        if left:
            self._apply_log.leave(
                Left(
                    phase.epoch.number,
                    self._sequencer.sequence,
                    tuple((worker, settled[worker].incarnation) for worker in left),
                )
            )

    def _answer(self, push: Push, reply: PushReply) -> tuple[PushReply, Any]:
        """Return the reply with the parameters of this moment, which the other servers then keep for the worker."""
        if self._peers:
            self._wanted.setdefault(push.worker, set()).add(self._sequencer.sequence)
        current = self._shard.publisher.current
        self._shard.hand(push, self._sequencer.sequence, current)
        return self._sequencer.answer(push.worker, reply), current()

    def _carry_out(self, decisions: Iterator[Decided]) -> None:
        for decided in decisions:
            if decided.dropped is not None:
                self._peers.discard(decided.dropped)
            else:
                self._apply(decided)
        self._end_turn()

    def _end_turn(self) -> None:
        self._condition.notify_all()
        if self._sequencer.complete:
            self._completed.set()

    def _apply(self, update: Decided) -> None:
        epoch, sequence, units = self._sequencer.epoch.number, self._sequencer.sequence + 1, update.units
        started = self._clock.monotonic()
        self._tell(update)
        pushes = [ticket.push for ticket in update.tickets]
        contributions = [ticket.contribution for ticket in update.tickets]
        change = self._sequencer.change
        self._shard.update(pushes, contributions, update.rate, update.blend, update.weights, change)
        self._last_applied = self._clock.monotonic()
        self._first_applied = self._first_applied or self._last_applied
        self._apply_log.write(
            Entry(
                epoch,
                sequence,
                units,
                update.base,
                update.rate,
                float(len(units)),
                update.blend,
                parts=update.parts,
                stepped=tuple(Stepped(*push) for push in update.stepped),
            )
        )
        self._spans.append(Span("apply", "server", started, self._last_applied - started, epoch, len(units)))

    def _tell(self, update: Decided) -> None:
        """Let the other servers begin the update that comes next here."""
        if self._peers:
            pushes = tuple(ticket.push for ticket in update.tickets)
            wanted = tuple(sorted(set().union(*self._wanted.values())))
            self._peers.update(Update(self._sequencer.sequence + 1, pushes, update.rate, wanted, update.weights))

    def _held(self) -> Held:
        return Held(self.epoch, len(self._sequencer.applied), self._sequencer.sequence, self._entered)
