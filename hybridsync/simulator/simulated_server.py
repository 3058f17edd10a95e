"""A parameter server in virtual time: a `ServerCore` decides, as at the server that ships; the cluster says when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridsync.core.deadlines import DEPOSIT_SECS
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Capture, Held, Push, PushReply, Standing
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.server.admission import check_epoch
from hybridsync.server.core import HeldCall, ServerCore
from hybridsync.simulator.simulated_process import Process
from hybridsync.simulator.simulated_state import ServerState

if TYPE_CHECKING:
    from hybridsync.simulator.simulated_cluster import World

Reply = Callable[[PushReply | HybridSyncError, Any], object]
REPORT_SECS = 0.1
"""How often a server reports, as the in-process runtime does; at once when a phase's units are all applied."""


class Server(Process):
    """One server process; server 0 is the primary, the others hold their part of what it decides.

    The whole state is kept at the primary: a part of it that was lost elsewhere ends the phase all the same, because
    the chief calls everybody back when any server is lost.

    Attributes:
      sequencer: its account of units, to be read.
    """

    def __init__(self, world: World, role_id: int, life: int) -> None:
        super().__init__(world, "server", role_id, life)
        self._state = ServerState(self)
        self._core = ServerCore(self._state, partial(getattr, world.loop, "now"))
        self.sequencer = self._core.sequencer
        self._fingerprint = self._entered = ""
        self._replies: dict[HeldCall, Reply] = {}
        self._is_reported = False  # that the phase's units are all applied
        self._doing = ""
        # What every push needs, at hand.
        self._loop, self._arithmetic, self._watches = world.loop, world.arithmetic, world.watches
        self._send, self._pull_bytes = world.network.from_server, world.arithmetic.sizes.parameters

    @property
    def state(self) -> Any:
        """The training state; None before the first phase."""
        return self._state.state

    # --- what the chief calls (ServerPort) ---

    def enter(self, phase: Phase) -> Held:
        """Take over the phase's starting state and serve it (see `ServerPort.enter`)."""
        self.await_reached()
        world, sequencer, state = self.world, self.sequencer, self._state
        if sequencer.check_phase(phase):
            return self._held()
        if state.state is None or self._fingerprint != phase.fingerprint:
            world.holder(phase.source).await_reached()
            self._close()
            self._doing = ENTERING
            # Servers fetch through the one link of the source: at once takes as long as in turn.
            world.spend(world.network.cluster.server_link.latency_secs + world.transfer_secs)
            self._doing = ""
            self.reach()
            state.state = world.fetch(phase)
        self._fingerprint = ""
        self._core.enter(phase)
        state.begin(phase, sequencer.compensation, sequencer.change)
        self._is_reported = False
        self._entered = phase.fingerprint
        world.watch.served(self, phase)
        world.watch.entered(self, phase, state.state)
        state.state = world.arithmetic.entered(state.state)
        return self._held()

    def capture(self, epoch: Epoch, final: bool) -> Capture:
        """Copy the state between two updates (see `HolderPort.capture`)."""
        self.await_reached()
        sequencer, state = self.sequencer, self._state
        check_epoch(epoch, sequencer.phase)
        if final:
            self._close()
            self._take_deposits()
        capture = self.captured.keep(
            state.state,
            epoch,
            sequence=sequencer.sequence,
            applied=sequencer.count.applied.ranges(),
            dropped=sequencer.count.dropped.ranges(),
            stamps=(state.first_applied, state.last_applied),
        )
        state.flush()
        if final:
            self._fingerprint = capture.held.fingerprint
        self.world.spend(self.world.network.cluster.costs.capture_secs)
        return capture

    def _close(self) -> None:
        """Refuse every later push of the phase, also those that wait."""
        self._core.close()
        self._release()

    def _take_deposits(self) -> None:
        """Wait for what the workers leave behind (see `Primary.capture`)."""
        core, loop = self._core, self.world.loop
        deadline = loop.now + DEPOSIT_SECS
        while loop.now < deadline and core.missing_deposits:
            if not loop.step(deadline):
                break
            self.reach()
        core.take_deposits()

    def fence(self, epoch: Epoch, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation` (see `ServerPort.fence`)."""
        self.await_reached()
        if self.sequencer.epoch == epoch:
            self.world.watch.fenced(self, worker, incarnation)
            self._core.fence(epoch, worker, incarnation)
            self._end_turn()

    # --- what workers call ---

    def pull(self, push: Push, reply: Reply) -> None:
        """Answer with the current parameters."""
        if self.dead:
            return
        try:
            answer = self._core.pull(push)
        except HybridSyncError as error:
            self._tell(push, error, reply)
        else:
            self._hand(push, answer, reply)
            self._end_turn()

    def opt_state(self, push: Push, reply: Reply) -> None:
        """Answer with the optimizer state that the phase began with (see `Primary.opt_state`)."""
        if self.dead:
            return
        try:
            self.sequencer.admit(push)
        except HybridSyncError as error:
            self._tell(push, error, reply)
        else:
            arithmetic, answer = self._arithmetic, PushReply(self.sequencer.sequence)
            found, sizes = arithmetic.opt_state(self.state), arithmetic.sizes
            self._send(push, self._loop.now, sizes.state - sizes.parameters, reply, answer, found)

    def deposit(self, push: Push, opt_state: Any) -> None:
        """Take what a worker leaves behind (see `Primary.deposit`); nobody waits for an answer."""
        if not self.dead and push.epoch == self.sequencer.epoch and self._core.deposit(push):
            self._state.deposit(push.worker, opt_state)

    def idle(self, push: Push, reply: Reply) -> None:
        """Hear that a worker has nothing to compute."""
        if self.dead:
            return
        answer = PushReply(self.sequencer.sequence)
        try:
            self._core.idle(push)
        except HybridSyncError as error:
            self._tell(push, error, reply)
        else:
            self._end_turn()
            self._tell(push, answer, reply)

    def ready(self, push: Push, reply: Reply) -> None:
        """Take the word of a worker that it could push; the answer comes when the rule grants it."""
        if self.dead:
            return
        try:
            self._replies[self._core.ready(push)] = reply
        except HybridSyncError as error:
            self._tell(push, error, reply)
        else:
            self._end_turn()

    def push(self, push: Push, contribution: Any, reply: Reply) -> None:
        """Take a contribution; the answer comes when the rule releases it."""
        if self.dead:
            return
        if self._watches:
            self.world.watch.arrived(self, push)
        try:
            answer = self._core.push(push, contribution, self._arithmetic.non_finite(contribution))
        except HybridSyncError as error:
            self._tell(push, error, reply)
            return
        if isinstance(answer, HeldCall):
            self._replies[answer] = reply
        else:
            self._hand(push, answer, reply)
        if self._replies or self.sequencer.count.complete:
            self._end_turn()

    # --- inside ---

    def _end_turn(self) -> None:
        """Answer who need not wait any more, and tell the chief of a phase whose units are all applied."""
        if self._replies:
            self._release()
        if self.sequencer.count.complete and not self._is_reported:
            self._is_reported = True
            self.report()

    def _release(self) -> None:
        """Answer the calls that have ended."""
        for call in self._core.release():
            reply = self._replies.pop(call)
            try:
                answer = self._core.answer(call)
            except HybridSyncError as error:
                self._tell(call.push, error, reply)
                continue
            if call.ticket is None:
                self._tell(call.push, answer, reply)
            else:
                self._hand(call.push, answer, reply)

    def _tell(self, push: Push, answer: PushReply | HybridSyncError, reply: Reply) -> None:
        """Send an answer without parameters."""
        self._send(push, self._loop.now, 0, reply, answer, None)

    def _hand(self, push: Push, answer: PushReply, reply: Reply) -> None:
        """Send an answer with the newest parameters, once they are applied."""
        if self._watches:
            self.world.watch.acknowledged(self, push, answer)
        state, now = self._state, self._loop.now
        ready = state.busy_until if state.busy_until > now else now
        num_bytes = self._pull_bytes if answer.brings_parameters(push) or not push.units else 0
        self._send(push, ready, num_bytes, reply, answer, state.parameters)

    # --- reports ---

    def registered(self) -> None:
        self.beat_secs = REPORT_SECS

    def revoke(self, epoch: Epoch) -> None:
        """Do nothing: the chief captures a server's state, or has it enter the next phase."""

    def standing(self) -> Standing | None:
        phase = self.sequencer.phase
        return Standing(phase, self.sequencer.open) if phase is not None else None

    def drain(self) -> Report:
        applied, dropped, staleness = self.sequencer.count.drain()
        return Report(
            role="server",
            id=self.id,
            incarnation=self.incarnation,
            epoch=self.sequencer.epoch,
            sequence=self.sequencer.sequence,
            applied=applied,
            dropped=dropped,
            staleness=staleness,
            first_applied=self._state.first_applied,
            last_applied=self._state.last_applied,
            spans=self._state.drain(),
            doing=self._doing,
        )

    def _held(self) -> Held:
        sequencer = self.sequencer
        return Held(sequencer.epoch, len(sequencer.count.applied), sequencer.sequence, self._entered)
