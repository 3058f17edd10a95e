"""The training state that a simulated server holds: values of the arithmetic, and when each update is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridsync.core.errors import InvalidMessage
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Span
from hybridsync.protocols.base import Change, Compensation
from hybridsync.server.held_pushes import Decided
from hybridsync.server.sent_parameters import Versions
from hybridsync.storage.apply_log_entries import Entry, Left, Stepped

if TYPE_CHECKING:
    from hybridsync.lab.simulator.simulated_server import Server


class ServerState:
    """A `StateHolder` in virtual time: one update is applied after another, each for as long as the cluster says.

    Args:
      server: server that holds the state.

    Attributes:
      state: the newest state; None before the first phase.
      parameters: parameters of the newest state.
      busy_until: time at which the last update is applied.
      first_applied: time of the phase's first update; 0 before it.
      last_applied: time of the phase's last update.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._simulated = simulated = server.simulated
        self.state: Any = None
        self.parameters: Any = None
        self.busy_until = self.first_applied = self.last_applied = 0.0
        self._phase: Phase | None = None
        self._change: Change = "optimizer"
        self._how: Compensation | None = None
        self._versions, self._squares = Versions(), None
        self._uploads: dict[int, Any] = {}
        self._spans: list[Span] = []
        self._log = simulated.apply_log()
        # What every update needs, at hand.
        self._loop, self._arithmetic, self._apply_secs = simulated.loop, simulated.arithmetic, simulated.apply_secs
        self._is_recorded = simulated.is_recorded

    def begin(self, phase: Phase, how: Compensation | None, change: Change) -> None:
        """Begin `phase` with the state that is here; `how` makes up for staleness, `change` is what an update does."""
        self._phase, self._how, self._change = phase, how, change
        self._log.clear()
        self._uploads.clear()
        self._versions.clear()
        self._squares = None
        self.first_applied = self.last_applied = 0.0
        self.parameters = self._arithmetic.parameters(self.state)

    def take_report(self) -> tuple[Span, ...]:
        """Return and forget the spans of what was applied."""
        spans, self._spans = tuple(self._spans), []
        return spans

    def upload_opt_state(self, worker: int, opt_state: Any) -> None:
        """Keep what a worker that stepped by itself leaves behind."""
        self._uploads[worker] = opt_state

    def flush(self) -> None:
        """Write the log out up to the newest update."""
        self._log.flush()

    # --- what the core decides (StateHolder) ---

    def check_base(self, push: Push) -> None:
        """See `StateHolder`."""
        if not self._versions.has_base(push):
            raise InvalidMessage(f"worker {push.worker} pushes a gradient on sequence {push.base}, which it never had")

    def record_read(self, push: Push) -> None:
        """Do nothing: the whole state is kept here."""

    def apply(self, update: Decided, sequence: int) -> None:
        """See `StateHolder`; an update begins when the one before it is done."""
        contributions, begun, now = update.contributions, self.busy_until, self._loop.now
        if self._how is not None:
            pairs = zip(update.pushes, contributions, strict=True)
            contributions = tuple(self._compensated(push, contribution, self._how) for push, contribution in pairs)
        self.state = state = self._arithmetic.update(
            self.state,
            contributions,
            units=len(update.units),
            factor=update.lr_factor,
            blend=update.blend,
            weights=update.weights,
            change=self._change,
        )
        self.parameters = self._arithmetic.parameters(state)
        if begun < now:
            begun = now
        self.busy_until = self.last_applied = ends = begun + self._apply_secs
        if not self.first_applied:
            self.first_applied = ends
        if self._is_recorded:
            self._record(update, sequence, begun)

    def discard(self, push: Push) -> None:
        """Do nothing: the whole state is kept here."""

    def record_sent(self, push: Push, sequence: int) -> None:
        """See `StateHolder`."""
        if self._how is not None:
            parameters = self.parameters
            self._versions.record_sent(push, sequence, lambda: parameters)

    def forget(self, worker: int, incarnation: int) -> None:
        """See `StateHolder`."""
        self._versions.forget(worker, incarnation)

    def retain(self, contribution: Any) -> Any:
        """Return it: a value is never changed."""
        return contribution

    def take_uploads(self, left: tuple[tuple[int, int], ...], sequence: int) -> None:
        """See `StateHolder`."""
        assert self._phase is not None
        self.state = self._arithmetic.with_mean_opt_state(self.state, [self._uploads[worker] for worker, _ in left])
        self._log.record_left(Left(self._phase.id.number, sequence, left))

    # --- inside ---

    def _compensated(self, push: Push, contribution: Any, how: Compensation) -> Any:
        base = self._versions.base_of(push)
        made, self._squares = self._arithmetic.compensate(contribution, base, self.parameters, how, self._squares)
        self._versions.release(push)
        return made

    def _record(self, update: Decided, sequence: int, begun: float) -> None:
        """Tell of an update that began to be applied at `begun`."""
        simulated, phase, units = self._simulated, self._phase, update.units
        assert phase is not None
        number = phase.id.number
        if simulated.watches:
            simulated.watch.applied(self._server, phase, sequence, update.pushes, units)
        if simulated.logs_updates:
            base, rate, blend, parts = update.base, update.lr_factor, update.blend, update.parts
            stepped = tuple(Stepped(*push) for push in update.stepped)
            weight = float(len(units))
            self._log.write(
                Entry(
                    number,
                    sequence,
                    units,
                    base=base,
                    rate=rate,
                    weight=weight,
                    blend=blend,
                    parts=parts,
                    stepped=stepped,
                )
            )
        if simulated.keeps_spans:
            self._spans.append(
                Span("apply", "server", begun, secs=simulated.apply_secs, phase=number, units=len(units))
            )
