"""A parameter server in virtual time: the primary's decisions are `Sequencer`'s, their time is the cluster's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridsync.applylog import Entry, Left, Stepped
from hybridsync.errors import HybridSyncError
from hybridsync.messages import Capture, Held, Push, PushReply, Standing
from hybridsync.phase import Phase
from hybridsync.plan import Epoch
from hybridsync.protocols.base import Change, Compensation
from hybridsync.ps.admission import check_epoch
from hybridsync.ps.sequencer import Sequencer
from hybridsync.ps.tickets import DEPOSIT_SECS, Decided, Ticket
from hybridsync.ps.versions import Versions
from hybridsync.reports import ENTERING, Report, Span
from hybridsync.sim.process import Process

if TYPE_CHECKING:
    from hybridsync.sim.world import World

Reply = Callable[[PushReply | HybridSyncError, Any], object]
REPORT_SECS = 0.1
"""How often a server reports, as the in-process runtime does; at once when a phase's units are all applied."""


class Server(Process):
    """One server process; server 0 is the primary, the others hold their part of what it decides.

    The whole state is kept at the primary: a part of it that was lost elsewhere ends the phase all the same, because
    the chief calls everybody back when any server is lost.
    """

    def __init__(self, world: World, role_id: int, life: int) -> None:
        super().__init__(world, "server", role_id, life)
        self.sequencer = Sequencer()
        self.state: Any = None
        self._parameters: Any = None
        self._fingerprint = self._entered = ""
        self._first_applied = self._last_applied = 0.0
        self._busy_until = 0.0
        self._change: Change = self.sequencer.change
        self._is_told = True  # somebody asks for more of an update than that it was made
        self._waiting: list[tuple[Push, Any, Ticket, Reply]] = []
        self._ready: list[tuple[Push, Reply]] = []
        self._versions, self._squares = Versions(), None
        self._spans: list[Span] = []
        self._complete = False
        self._doing = ""
        self._deposits: dict[int, Any] = {}
        self._left = False
        self._log = world.apply_log()
        # What every push needs, at hand.
        self._loop, self._arithmetic, self._apply_secs = world.loop, world.arithmetic, world.apply_secs
        self._send, self._pull_bytes = world.network.from_server, world.arithmetic.sizes.parameters

    # --- what the chief calls (ServerPort) ---

    def enter(self, phase: Phase) -> Held:
        """Take over the phase's starting state and serve it (see `ServerPort.enter`)."""
        self.await_reached()
        world, sequencer = self.world, self.sequencer
        if sequencer.check_phase(phase):
            return self._held()
        if self.state is None or self._fingerprint != phase.fingerprint:
            world.holder(phase.source).await_reached()
            self._close()
            self._doing = ENTERING
            # Servers fetch through the one link of the source: at once takes as long as in turn.
            world.spend(world.network.cluster.server_link.latency_secs + world.transfer_secs)
            self._doing = ""
            self.reach()
            self.state = world.fetch(phase)
        self._fingerprint = ""
        self._log.clear()
        sequencer.enter(phase)
        self._change = sequencer.change
        self._is_told = world.is_recorded or sequencer.compensation is not None
        self._first_applied = self._last_applied = 0.0
        self._complete = False
        self._deposits, self._left = {}, False
        self._waiting.clear()
        self._ready.clear()
        self._versions.clear()
        self._squares = None
        self._parameters = world.arithmetic.parameters(self.state)
        self._entered = phase.fingerprint
        world.watch.served(self, phase)
        world.watch.entered(self, phase, self.state)
        self.state = world.arithmetic.entered(self.state)
        return self._held()

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """Copy the state between two updates (see `HolderPort.capture`)."""
        self.await_reached()
        sequencer = self.sequencer
        check_epoch(epoch, sequencer.phase)
        if final:
            sequencer.close()
            self._take_deposits()
        capture = self.keep(
            self.state,
            epoch,
            sequence=sequencer.sequence,
            applied=sequencer.applied.ranges(),
            dropped=sequencer.dropped.ranges(),
            stamps=(self._first_applied, self._last_applied),
        )
        self._log.flush()
        if final:
            self._fingerprint = capture.held.fingerprint
            self._close()
        self.world.spend(self.world.network.cluster.costs.capture_secs)
        return capture

    def _close(self) -> None:
        """Refuse every later push of the phase, also those that wait."""
        self.sequencer.close()
        self._release()
        self._grant()

    def fence(self, epoch: Epoch, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation` (see `ServerPort.fence`)."""
        self.await_reached()
        if self.sequencer.epoch == epoch:
            self.world.watch.fenced(self, worker, incarnation)
            self._versions.forget(worker, incarnation)
            self._settle(self.sequencer.fence(worker, incarnation))

    # --- what workers call ---

    def pull(self, push: Push, reply: Reply) -> None:
        """Answer with the current parameters."""
        if self.dead:
            return
        try:
            decisions = self.sequencer.join(push)
        except HybridSyncError as error:
            self.world.network.from_server(push, self.world.loop.now, 0, reply, error, None)
            return
        self._settle(decisions)
        world = self.world
        ready = max(world.loop.now, self._busy_until)
        answer = self.sequencer.answer(push.worker, PushReply(self.sequencer.sequence))
        world.watch.acknowledged(self, push, answer)
        self._hand(push)
        world.network.from_server(push, ready, world.arithmetic.sizes.parameters, reply, answer, self._parameters)

    def _hand(self, push: Push) -> None:
        """Keep what is handed out, where gradients on it are compensated for what happens meanwhile."""
        if self.sequencer.compensation is not None:
            parameters = self._parameters
            self._versions.hand(push, self.sequencer.sequence, lambda: parameters)

    def opt_state(self, push: Push, reply: Reply) -> None:
        """Answer with the optimizer state that the phase began with (see `Primary.opt_state`)."""
        if self.dead:
            return
        world, answer, found = self.world, PushReply(self.sequencer.sequence), None
        try:
            self.sequencer.admit(push)
            found = world.arithmetic.opt_state(self.state)
        except HybridSyncError as error:
            world.network.from_server(push, world.loop.now, 0, reply, error, None)
            return
        sizes = world.arithmetic.sizes
        world.network.from_server(push, world.loop.now, sizes.state - sizes.parameters, reply, answer, found)

    def deposit(self, push: Push, opt_state: Any) -> None:
        """Take what a worker leaves behind (see `Primary.deposit`)."""
        last = self.sequencer.settled.get(push.worker)
        if self.dead or push.epoch != self.sequencer.epoch or last is None or last.incarnation > push.incarnation:
            return
        usable = last.incarnation == push.incarnation and push.units == last.units[-1:]
        self._deposits[push.worker] = opt_state if usable else None

    def _take_deposits(self) -> None:
        """Wait for what the workers leave behind (see `Primary.capture`)."""
        sequencer, loop = self.sequencer, self.world.loop
        if not sequencer.local or self._left:
            return
        self._release()
        deadline = loop.now + DEPOSIT_SECS
        while loop.now < deadline and set(sequencer.settled) - set(self._deposits):
            if not loop.step(deadline):
                break
            self.reach()
        left = [worker for worker in sorted(sequencer.settled) if self._deposits.get(worker) is not None]
        self.state = self.world.arithmetic.left(self.state, [self._deposits[worker] for worker in left])
        self._left = True
        if left:
            who = tuple((worker, sequencer.settled[worker].incarnation) for worker in left)
            self._log.leave(Left(sequencer.epoch.number, sequencer.sequence, who))

    def idle(self, push: Push, reply: Reply) -> None:
        """Hear that a worker has nothing to compute."""
        if self.dead:
            return
        now, answer = self.world.loop.now, PushReply(self.sequencer.sequence)
        try:
            self._settle(self.sequencer.idle(push))
        except HybridSyncError as error:
            self.world.network.from_server(push, now, 0, reply, error, None)
            return
        self.world.network.from_server(push, now, 0, reply, answer, None)

    def ready(self, push: Push, reply: Reply) -> None:
        """Take the word of a worker that it could push; the answer comes when the rule grants it."""
        if self.dead:
            return
        self._ready = [*(waiting for waiting in self._ready if waiting[0] != push), (push, reply)]
        try:
            self._settle(self.sequencer.ready(push, self.world.loop.now))
        except HybridSyncError:
            self._grant()  # which refuses it by name

    def _grant(self) -> None:
        """Answer those who are granted their push, or are out of date."""
        ready, self._ready = self._ready, []
        for push, reply in ready:
            if self.sequencer.is_ungranted(push):
                self._ready.append((push, reply))
                continue
            answer: PushReply | HybridSyncError = PushReply(self.sequencer.sequence)
            try:
                self.sequencer.admit(push)
            except HybridSyncError as error:
                answer = error
            self.world.network.from_server(push, self.world.loop.now, 0, reply, answer, None)

    def push(self, push: Push, contribution: Any, reply: Reply) -> None:
        """Take a contribution; the answer comes when the rule releases it."""
        if self.dead:
            return
        sequencer = self.sequencer
        found = self._arithmetic.non_finite(contribution)
        if found or self._is_told or not sequencer.passes(push):
            self._take(push, contribution, found, reply)
            return
        self._update((contribution,), 1, sequencer.at_once, sequencer.share)
        answer = sequencer.passed(push)
        self._send(push, self._busy_until, self._pull_bytes, reply, answer, self._parameters)
        if self._waiting or self._ready or sequencer.complete:
            self._end_turn()

    def _take(self, push: Push, contribution: Any, non_finite: str, reply: Reply) -> None:
        """Take a push about which the rule has to be asked, or of which somebody is told."""
        sequencer, world = self.sequencer, self.world
        if world.watches:
            world.watch.arrived(self, push)
        if not non_finite and sequencer.passes(push):
            self._carry_out((sequencer.passing(push, contribution),))
            self._answer(push, sequencer.passed(push), reply)
            self._end_turn()
            return
        try:
            ticket, decisions = sequencer.offer(push, contribution, non_finite, world.loop.now)
        except HybridSyncError as error:
            world.network.from_server(push, world.loop.now, 0, reply, error, None)
            return
        self._carry_out(decisions)
        answer = ticket.reply
        if answer is not None and (ticket.push is push or sequencer.is_same(push, ticket)):
            self._answer(push, answer, reply)
        else:
            self._waiting.append((push, contribution, ticket, reply))
        self._end_turn()

    def _settle(self, decisions: Iterator[Decided]) -> None:
        """Carry out what was decided without a push."""
        self._carry_out(decisions)
        self._end_turn()

    def _end_turn(self) -> None:
        """Answer who need not wait any more, and tell the chief of a phase whose units are all applied."""
        if self._waiting:
            self._release()
        if self._ready:
            self._grant()
        if self.sequencer.complete and not self._complete:
            self._complete = True
            self.report()

    def _answer(self, push: Push, answer: PushReply, reply: Reply) -> None:
        world = self.world
        if world.watches:
            world.watch.acknowledged(self, push, answer)
        answer = self.sequencer.answer(push.worker, answer)
        self._hand(push)
        ready = self._busy_until if self._busy_until > world.loop.now else world.loop.now
        num_bytes = world.arithmetic.sizes.parameters if answer.brings_parameters(push) else 0
        world.network.from_server(push, ready, num_bytes, reply, answer, self._parameters)

    def _release(self) -> None:
        """Answer the pushes that nobody has to wait for any more."""
        waiting, self._waiting = self._waiting, []
        for push, contribution, ticket, reply in waiting:
            if not self.sequencer.is_over(push, ticket):
                self._waiting.append((push, contribution, ticket, reply))
            elif ticket.reply is not None and self.sequencer.is_same(push, ticket):
                self._answer(push, ticket.reply, reply)
            else:
                self.push(push, contribution, reply)  # refused by name, or offered anew

    def _carry_out(self, decisions: Iterable[Decided]) -> None:
        world, how = self.world, self.sequencer.compensation
        for decided in decisions:
            if decided.dropped is not None:
                continue
            contributions = [ticket.contribution for ticket in decided.tickets]
            if how is not None:
                contributions = [self._made_up(ticket, how) for ticket in decided.tickets]
            begun = self._update(contributions, len(decided.units), decided.rate, decided.blend, decided.weights)
            if world.is_recorded:
                self._record(decided, begun)

    def _update(
        self, contributions: Sequence[Any], units: int, rate: float, blend: float, weights: tuple[float, ...] = ()
    ) -> float:
        """Make one update; returns when it began to be applied."""
        arithmetic, begun, now = self._arithmetic, self._busy_until, self._loop.now
        self.state = state = arithmetic.update(
            self.state, contributions, units=units, factor=rate, blend=blend, weights=weights, change=self._change
        )
        self._parameters = arithmetic.parameters(state)
        if begun < now:
            begun = now
        self._busy_until = self._last_applied = ends = begun + self._apply_secs
        if not self._first_applied:
            self._first_applied = ends
        return begun

    def _record(self, decided: Decided, begun: float) -> None:
        """Tell of an update that began to be applied at `begun`."""
        world, phase, sequence, units = self.world, self.sequencer.phase, self.sequencer.sequence + 1, decided.units
        assert phase is not None
        if world.watches:
            world.watch.applied(self, phase, sequence, tuple(ticket.push for ticket in decided.tickets), units)
        if world.logs_updates:
            epoch, weight = phase.epoch.number, float(len(units))
            base, rate, blend, parts = decided.base, decided.rate, decided.blend, decided.parts
            stepped = tuple(Stepped(*push) for push in decided.stepped)
            self._log.write(Entry(epoch, sequence, units, base, rate, weight, blend, parts=parts, stepped=stepped))
        if world.keeps_spans:
            self._spans.append(Span("apply", "server", begun, world.apply_secs, phase.epoch.number, len(units)))

    def _made_up(self, ticket: Ticket, how: Compensation) -> Any:
        """Return a contribution, compensated for its staleness."""
        push = ticket.push
        base, now, arithmetic = self._versions.base_of(push), self._parameters, self.world.arithmetic
        made, self._squares = arithmetic.compensate(ticket.contribution, base, now, how, self._squares)
        self._versions.settle(push)
        return made

    # --- reports ---

    def registered(self) -> None:
        self.beat_secs = REPORT_SECS

    def revoke(self, epoch: Epoch) -> None:
        """Do nothing: the chief captures a server's state, or has it enter the next phase."""

    def standing(self) -> Standing | None:
        phase = self.sequencer.phase
        return Standing(phase, self.sequencer.open) if phase is not None else None

    def drain(self) -> Report:
        applied, dropped, staleness = self.sequencer.drain()
        spans, self._spans = tuple(self._spans), []
        return Report(
            role="server",
            id=self.id,
            incarnation=self.incarnation,
            epoch=self.sequencer.epoch,
            sequence=self.sequencer.sequence,
            applied=applied,
            dropped=dropped,
            staleness=staleness,
            first_applied=self._first_applied,
            last_applied=self._last_applied,
            spans=spans,
            doing=self._doing,
        )

    def _held(self) -> Held:
        sequencer = self.sequencer
        return Held(sequencer.epoch, len(sequencer.applied), sequencer.sequence, self._entered)
