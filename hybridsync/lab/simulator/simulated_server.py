"""A parameter server in virtual time: a `ServerCore` decides, as at the server that ships; the cluster says when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridsync.core.deadlines import UPLOAD_SECS
from hybridsync.core.errors import HybridSyncError
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import Push, PushReply, RoleState, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import ENTERING, Report
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.simulated_state import ServerState
from hybridsync.server.push_checks import check_phase_id
from hybridsync.server.server_core import HeldCall, ServerCore
from hybridsync.training.snapshot import Account

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster

Outcome = tuple[PushReply, Any] | HybridSyncError
"""A call's end: the answer and what comes with it, or the error that refuses it."""
Reply = Callable[[Outcome], object]
REPORT_SECS = 0.1
"""How often a server reports, as the in-process runtime does; at once when a phase's units are all applied."""


class Server(Process):
    """One server process; server 0 is the primary, the others hold their part of what it decides.

    The whole state is kept at the primary: a part of it that was lost elsewhere ends the phase all the same, because
    the chief calls all members back when any server is lost.

    Attributes:
      sequencer: account of units; read-only.
    """

    def __init__(self, simulated: SimulatedCluster, role_id: int, restart_count: int) -> None:
        super().__init__(simulated, "server", role_id, restart_count)
        self._state = ServerState(self)
        self._core = ServerCore(self._state, partial(getattr, simulated.loop, "now"), keep=self._keep)
        self.sequencer = self._core.sequencer
        self._fingerprint = self._entered = ""
        self._kept: tuple[Account, Any] | None = None  # at a place, with the state
        self._replies: dict[HeldCall, Reply] = {}
        self._is_reported = False  # that the phase's units are all applied
        self._doing = ""
        # What every push needs, at hand.
        self._loop, self._arithmetic, self._watches = simulated.loop, simulated.arithmetic, simulated.watches
        self._send, self._pull_bytes = simulated.network.from_server, 0

    @property
    def state(self) -> Any:
        """The training state; None before the first phase."""
        return self._state.state

    # --- what the chief calls (ServerPort) ---

    def enter(self, phase: Phase) -> StateVersion:
        """Take over the phase's starting state and serve it (see `ServerPort.enter`)."""
        self.await_reached()
        simulated, sequencer, state = self.simulated, self.sequencer, self._state
        if sequencer.check_phase(phase):
            return self._held()
        if state.state is None or self._fingerprint != phase.fingerprint:
            simulated.holder(phase.source).await_reached()
            self._close()
            self._doing = ENTERING
            # Servers fetch through the one link of the source: at once takes as long as in turn.
            simulated.spend(simulated.network.cluster.server_link.latency_secs + simulated.transfer_secs)
            self._doing = ""
            self.reach()
            state.state = simulated.fetch(phase)
        self._fingerprint, self._kept = "", None
        self._core.enter(phase)
        state.begin(phase, sequencer.compensation, sequencer.change)
        _, self._pull_bytes = simulated.arithmetic.sizes.on_wire(phase.protocol.wire_dtype)
        self._is_reported = False
        self._entered = phase.fingerprint
        simulated.watch.served(self, phase)
        simulated.watch.entered(self, phase, state.state)
        state.state = simulated.arithmetic.entered(state.state)
        return self._held()

    def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
        """Copy the state between two updates (see `SnapshotSource.take_snapshot`)."""
        self.await_reached()
        state = self._state
        check_phase_id(phase_id, self.sequencer.phase)
        if final:
            self._close()
            self._take_uploads()
        kept, self._kept = self._kept, None
        account, found = kept if kept and not final and 0 < place <= kept[0].units else (self._account(), state.state)
        snapshot = self.captured.store(found, phase_id, account)
        state.flush()
        if final:
            self._fingerprint = snapshot.held.fingerprint
        self.simulated.spend(self.simulated.network.cluster.costs.capture_secs)
        return snapshot

    def _close(self) -> None:
        """Refuse every later push of the phase, also those that wait."""
        self._core.close()
        self._release()

    def _take_uploads(self) -> None:
        """Wait for what the workers leave behind (see `Primary.take_snapshot`)."""
        core, loop = self._core, self.simulated.loop
        deadline = loop.now + UPLOAD_SECS
        while loop.now < deadline and core.missing_uploads:
            if not loop.step(deadline):
                break
            self.reach()
        core.take_uploads()

    def fence(self, phase_id: PhaseId, worker: int, incarnation: int) -> None:
        """Refuse `worker` up to `incarnation` (see `ServerPort.fence`)."""
        self.await_reached()
        if self.sequencer.phase_id == phase_id:
            self.simulated.watch.fenced(self, worker, incarnation)
            self._core.fence(phase_id, worker, incarnation)
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

    def download_opt_state(self, push: Push, reply: Reply) -> None:
        """Answer with the optimizer state that the phase began with (see `Primary.download_opt_state`)."""
        if self.dead:
            return
        try:
            self.sequencer.admit(push)
        except HybridSyncError as error:
            self._tell(push, error, reply)
        else:
            arithmetic, answer = self._arithmetic, PushReply(self.sequencer.sequence)
            found, sizes = arithmetic.opt_state(self.state), arithmetic.sizes
            self._send(push, self._loop.now, sizes.state - sizes.parameters, reply, (answer, found))

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """Take what a worker leaves behind (see `Primary.upload_opt_state`); nobody waits for an answer."""
        if not self.dead and push.phase_id == self.sequencer.phase_id and self._core.upload_opt_state(push):
            self._state.upload_opt_state(push.worker, opt_state)

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
            self._tell(push, (answer, None), reply)

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
            self.simulated.watch.arrived(self, push)
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

    def _keep(self) -> None:
        """Keep the state, which has come to a place, until the chief asks for it (see `Primary`)."""
        self._kept = self._account(), self._state.state

    def _account(self) -> Account:
        sequencer, state = self.sequencer, self._state
        return Account(
            sequencer.sequence,
            applied=sequencer.count.applied.ranges(),
            dropped=sequencer.count.dropped.ranges(),
            first_applied=state.first_applied,
            last_applied=state.last_applied,
        )

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
                self._tell(call.push, (answer, None), reply)
            else:
                self._hand(call.push, answer, reply)

    def _tell(self, push: Push, outcome: Outcome, reply: Reply) -> None:
        """Send an outcome without parameters."""
        self._send(push, self._loop.now, 0, reply, outcome)

    def _hand(self, push: Push, answer: PushReply, reply: Reply) -> None:
        """Send an answer with the newest parameters, once they are applied."""
        if self._watches:
            self.simulated.watch.acknowledged(self, push, answer)
        state, now = self._state, self._loop.now
        ready = state.busy_until if state.busy_until > now else now
        num_bytes = self._pull_bytes if not push.units or answer.brings_parameters(push) else 0
        self._send(push, ready, num_bytes, reply, (answer, state.parameters))

    # --- reports ---

    def registered(self) -> None:
        self.beat_secs = REPORT_SECS

    def revoke(self, phase_id: PhaseId) -> None:
        """Do nothing: the chief captures a server's state, or has it enter the next phase."""

    def role_state(self) -> RoleState | None:
        phase = self.sequencer.phase
        return RoleState(phase, self.sequencer.open) if phase is not None else None

    def take_report(self) -> Report:
        applied, dropped, staleness = self.sequencer.count.take_report()
        return Report(
            role="server",
            id=self.id,
            incarnation=self.incarnation,
            phase_id=self.sequencer.phase_id,
            sequence=self.sequencer.sequence,
            applied=applied,
            dropped=dropped,
            staleness=staleness,
            first_applied=self._state.first_applied,
            last_applied=self._state.last_applied,
            spans=self._state.take_report(),
            doing=self._doing,
        )

    def _held(self) -> StateVersion:
        sequencer = self.sequencer
        return StateVersion(sequencer.phase_id, len(sequencer.count.applied), sequencer.sequence, self._entered)
