"""One parameter server's part of the training state: taken over, updated, handed on; the same on every server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.errors import InvalidMessage
from hybridsync.core.plan import PhaseId
from hybridsync.core.units import Range
from hybridsync.core.work_deadlines import UNWATCHED, Watching
from hybridsync.devices.placement import let_go_of_arguments
from hybridsync.interfaces.messages import Push
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.reports import Report, Span
from hybridsync.protocols.base import Change, Compensation
from hybridsync.server.partition import Part
from hybridsync.server.sent_parameters import Versions
from hybridsync.training.compiled_programs import Parameters
from hybridsync.training.snapshot import ReaderAt, fetch
from hybridsync.training.state import TrainState

RELEASE_SECS = 45.0
"""How long a server lets a worker wait for an update: less than the worker's call, so that it hears who is missing."""


class Publisher(Protocol):
    """Makes the parameters of a state readable while the next update runs."""

    def reserve(self) -> None: ...

    def begin(self, wire: str) -> None: ...

    def publish(self, state: TrainState) -> None: ...

    def current(self) -> Any: ...

    def read(self, served: Any) -> Parameters: ...

    def give_back(self, served: Any) -> None: ...


@dataclass(frozen=True)
class Progress:
    """Holds what a server did since its last report."""

    phase_id: PhaseId
    applied: tuple[Range, ...]
    dropped: tuple[tuple[int, str], ...]
    staleness: tuple[int, ...]
    spans: tuple[Span, ...]
    sequence: int
    first_applied: float
    last_applied: float
    doing: str = ""

    def as_report(self, server: int, incarnation: int, compile_secs: float = 0.0) -> Report:
        """Return the heartbeat of the server that did this, and has compiled for so long meanwhile."""
        return Report(
            role="server",
            id=server,
            incarnation=incarnation,
            phase_id=self.phase_id,
            sequence=self.sequence,
            applied=self.applied,
            dropped=self.dropped,
            staleness=self.staleness,
            compile_secs=compile_secs,
            first_applied=self.first_applied,
            last_applied=self.last_applied,
            spans=self.spans,
            doing=self.doing,
        )


class Shard:
    """Holds the state itself; its owner lets one thread at a time in, except for `fetch`.

    The lock guards the memory that was reserved for what is fetched.

    Args:
      part: leaves of this part, and the programs for them.
      publisher: lends parameters to callers.
      reader_at: returns a reader of the role at an address that holds a phase's starting state.
      watchdog: watchdog of the process.
    """

    def __init__(
        self,
        part: Part,
        publisher: Publisher,
        reader_at: ReaderAt,
        watchdog: Watching = UNWATCHED,
    ) -> None:
        self.part, self.publisher, self._watchdog = part, publisher, watchdog
        self._limit_secs = 2 * transfer_secs(part.state.whole.nbytes)  # above the deadline of the transfer itself
        self._update_work = watchdog.work("an update", self._limit_secs)
        self._reader_at = reader_at
        self._state: TrainState | None = None
        self._versions = Versions(publisher.give_back)
        self._how: Compensation | None = None
        self._squares: Any = None
        self._uploads: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._room: np.ndarray | None = None

    @property
    def empty(self) -> bool:
        """Return whether no phase was entered yet."""
        return self._state is None

    @property
    def state(self) -> TrainState:
        """The part's state."""
        assert self._state is not None, "no phase was entered yet"
        return self._state

    def reserve(self) -> None:
        """Take the memory of the first state that is taken over, and of what is lent then: training will wait for it.

        Raises:
          HybridSyncError: there is no memory for it.
        """
        room = self.part.state.whole.empty()
        room.fill(0)  # its pages exist from now on
        with self._lock:
            self._room = room
        self.publisher.reserve()

    def fetch(self, phase: Phase) -> TrainState:
        """Fetch the phase's whole starting state, check it, and return this part of it; nothing here changes.

        It may be called while another thread uses the state that is here.

        Raises:
          HybridSyncError: what arrived is not the state that was captured.
        """
        cut = self.part.state
        with self._lock:  # once: from then on the state's own memory is there
            room, self._room = self._room, None
        with self._watchdog.work(f"the state of phase {phase.id}", self._limit_secs):
            source, digest = phase.source, phase.fingerprint
            whole = fetch(source, phase.snapshot_id, digest, cut.whole, self._reader_at, buffer=room)
        state = self.part.programs.placement.put_at_server(cut.part_of(whole))
        del whole, room
        let_go_of_arguments()
        return state

    def adopt_state(self, state: TrainState) -> None:
        """Keep a state that was fetched, in place of the one that is here."""
        self._state = state

    def begin(self, how: Compensation | None, wire: str) -> None:
        """Begin a phase with the state that was taken over.

        Args:
          how: the protocol's compensation for staleness; None for none.
          wire: number format of the phase's contributions and parameters between processes.
        """
        self.publisher.begin(wire)
        self._state = self.part.programs.entered(self.state)
        self._versions.clear()
        self._how, self._squares, self._uploads = how, None, {}

    def publish(self) -> None:
        """Make the current parameters those that are lent out."""
        self.publisher.publish(self.state)

    def record_sent(self, push: Push, sequence: int, lend: Callable[[], Any]) -> None:
        """Note that `push` is answered with the parameters of `sequence`; `lend` lends them once more."""
        if self._how is not None:
            self._versions.record_sent(push, sequence, lend)

    def check_base(self, push: Push) -> None:
        """Refuse a push for which compensation lacks what it was computed on.

        Raises:
          InvalidMessage: its worker was not handed these parameters.
        """
        if self._how is not None and not self._versions.has_base(push):
            raise InvalidMessage(
                f"worker {push.worker} pushes a gradient on sequence {push.base}, which incarnation {push.incarnation} "
                "of it was not handed in this phase; pull first"
            )

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget what a worker's processes up to this one were handed, which are gone."""
        self._versions.forget(worker, incarnation)

    def update(
        self,
        pushes: Sequence[Push],
        contributions: Sequence[Any],
        rate: float,
        blend: float,
        weights: Sequence[float] = (),
        change: Change = "optimizer",
    ) -> None:
        """Run one update on the weighted sum of the pushes' contributions, in order, and publish the parameters."""
        programs, num_units = self.part.programs, sum([len(push.units) for push in pushes])
        with self._update_work:
            contributions = [programs.placement.at_server(each) for each in contributions]
            if self._how is not None:
                contributions = [self._compensated(*pair) for pair in zip(pushes, contributions, strict=True)]
            total = programs.sum(contributions, weights)
            state = programs.update(self.state, total, units=num_units, factor=rate, blend=blend, change=change)
            self._state = state
            self.publisher.publish(state)

    def _compensated(self, push: Push, contribution: Any) -> Any:
        """Return a push's contribution, made up for what happened since its parameters were handed out."""
        assert self._how is not None
        base = self.publisher.read(self._versions.base_of(push))
        now = Parameters(self.state.params, self.state.model_state)
        made, self._squares = self.part.programs.compensate(contribution, base, now, self._how, self._squares)
        jax.block_until_ready(made)  # what was handed out may be given back
        self._versions.release(push)
        return made

    def opt_state(self) -> Any:
        """Return a copy of the optimizer state, for a worker that makes local updates."""
        return jax.tree.map(jnp.copy, self.state.opt_state)

    def upload_opt_state(self, worker: int, opt_state: Any) -> None:
        """Keep what a worker that stepped by itself leaves behind."""
        self._uploads[worker] = opt_state

    def has_uploads(self, workers: Iterable[int]) -> bool:
        """Return whether all of them have left something."""
        return all(worker in self._uploads for worker in workers)

    def take_uploads(self, workers: Sequence[int]) -> None:
        """Make the mean of what these workers left the optimizer state; with none of them it stays."""
        placement = self.part.programs.placement
        states = tuple(placement.at_server(self._uploads[worker]) for worker in workers)
        if states:
            merged = self.part.programs.mean_state(states)
            self._state = replace(self.state, opt_state=jax.block_until_ready(merged))

    def pack_inside(self, whole: np.ndarray) -> None:
        """Copy this part to its place in a buffer of the whole state."""
        self.part.state.inside.pack(self.state, out=whole)
