"""Records what a worker does while it trains, for the chief to hear of with each heartbeat.

Losses stay on the device until the heartbeat fetches them, so that the training never waits for their values.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from hybridsync.config import HangConfig
from hybridsync.core.activity import current
from hybridsync.core.clock import Clock
from hybridsync.core.deadlines import LATE_SECS
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import UnitSet
from hybridsync.core.work_deadlines import UNLIMITED, UNWATCHED, Piece, UnitLimit, Watching
from hybridsync.devices.staging import host_numbers
from hybridsync.interfaces.reports import BESIDE, COMPILING, COMPUTING, READING, SEND, WAITING, Report, Span

READ_SHARE = 0.1
"""Share of a unit's time from which on reading its data is a span of its own: each span is kept, and travels."""

RECENT_SHARE = 0.25
"""Weight of a worker's newest unit in what its units usually take."""

MOST_HAPPENED = 60
"""Computations, waits and transfers that are taken in together; more would hold up the training thread at once."""


def _nowhere(unit: int) -> None: ...


def _no_stamps() -> tuple[float, float]:
    return 0.0, 0.0


class WorkerRecorder:
    """Collects one worker's spans, losses and times.

    A unit's own time, by which a detector judges, is reading its data, its computation, and its transfer if that waits
    for no other worker: in a held push, as in a step, all workers wait for the slowest. Late data hold the others up as
    a slow device does. In a step the transfer is the sending, before the wait. A step is sent once, however many units
    this worker has in it; they share its sending time equally, so that none of them stands out from a window of the
    detector. The sending time of a step without units is not counted for any unit.

    The training thread appends what happens to `_happened`, whose ends need no lock. It is taken in together: one at a
    time it would be cold code on the way from a gradient to its push. The lock guards that and all else, so that a
    report never carries one phase's position under another's phase.

    Args:
      worker: id of the worker.
      clock: clock for all times.
      keep_spans: whether reports carry spans.
      keep_unit_secs: whether a detector judges the worker by the seconds of its units.
      limits: limits of the worker's own watchdog.

    Attributes:
      watchdog: watchdog of the worker's process; each unit is a piece of work there.
      met_secs: seconds for which the unit in progress has waited for those of the other members (see `has_joined`).
      unit_peak_secs: seconds of a unit at the peak of the worker's devices, 0 for unknown; None before it was asked.
    """

    __slots__ = (  # hot path: above 30 attributes a dictionary is no longer shared, and each is looked up by its name
        "_applied",
        "_at",
        "_awake",
        "_before_compiling",
        "_before_reading",
        "_compile_secs",
        "_compute_secs",
        "_counts_transfers",
        "_dropped",
        "_happened",
        "_has_usual",
        "_keep_spans",
        "_keep_unit_secs",
        "_last_unit_secs",
        "_limits",
        "_lock",
        "_losses",
        "_met_since",
        "_now",
        "_open",
        "_peak_secs",
        "_piece",
        "_read_secs",
        "_reading_since",
        "_received_bytes",
        "_reported",
        "_sent_bytes",
        "_spans",
        "_stepped",
        "_transfer_secs",
        "_unit_read_secs",
        "_unit_secs",
        "_usual_secs",
        "_wait_secs",
        "_waited",
        "_watched",
        "_worker",
        "at_unit",
        "clock",
        "completed",
        "incarnation",
        "met_secs",
        "phase_id",
        "stamps",
        "unit_peak_secs",
        "watchdog",
    )

    def __init__(
        self,
        worker: int,
        clock: Clock,
        keep_spans: bool,
        keep_unit_secs: bool = False,
        limits: HangConfig = HangConfig(),  # noqa: B008 it is frozen
    ) -> None:
        self._limits = limits
        self._worker, self._keep_spans, self._keep_unit_secs = worker, keep_spans, keep_unit_secs
        self.clock, self._now = clock, clock.monotonic
        self.incarnation = 0
        self.phase_id: PhaseId = NO_PHASE
        self.completed = 0
        self._at = ("", self._now())  # one value: the heartbeat never reads half of a change
        self._before_compiling = self._before_reading = ""  # data may be made by programs that are compiled
        self._reported = self._awake = self._now()  # the last report; since when the process has not stood still
        self._usual_secs, self._has_usual = 0.0, False
        self._lock = threading.Lock()
        self._happened: deque[tuple[Any, ...]] = deque()  # a method and its values: many workers keep many of them
        self._spans: list[tuple[str, str, float, float, int, int]] = []
        self._losses: list[Any] = []
        self._applied, self._dropped = UnitSet(), ()
        self._compute_secs = self._read_secs = self._wait_secs = self._compile_secs = self._peak_secs = 0.0
        self._reading_since = self._unit_read_secs = self._met_since = self.met_secs = 0.0
        self.unit_peak_secs: float | None = None
        self._sent_bytes = self._received_bytes = 0
        self._unit_secs: list[float] = []
        self._open: list[float] = []  # of the same step before the last unit; what was sent comes to all of them
        self._last_unit_secs = self._transfer_secs = 0.0
        self._waited = self._stepped = self._counts_transfers = False
        self.stamps: Callable[[], tuple[float, float]] = _no_stamps
        self.at_unit: Callable[[int], None] = _nowhere
        self.watchdog: Watching = UNWATCHED
        self._watched = UNWATCHED.units(UnitLimit())
        self._piece: Piece

    def enter(self, phase_id: PhaseId, counts_transfers: bool = False) -> None:
        """Begin to note for another phase; `counts_transfers` where its pushes wait for no other worker."""
        with self._lock:
            self._take_in()
            self._unit_secs, self._open = [], []
            self._last_unit_secs = self._transfer_secs = 0.0
            self._waited, self._stepped, self._counts_transfers = False, False, counts_transfers
            self.stamps = _no_stamps
            self._applied, self._dropped = UnitSet(), ()  # the last phase's capture has reported them
            self._usual_secs, self._has_usual = 0.0, False
            self.phase_id, self.completed = phase_id, 0
            self.turn_to("")
        # Anew: another mode computes with another program, which may compile it.
        self._watched = self.watchdog.units(UnitLimit(self._limits.compute_secs, self._limits.compile_secs))

    def turn_to(self, doing: str) -> float:
        """Note what the training thread is at from now on, a value of `Report.doing`; returns the time."""
        now = self._now()
        self._at = doing, now
        return now

    def computing(self, unit: int) -> float:
        """Note that the computation of `unit` begins; returns when."""
        started = self._now()
        self._at = COMPUTING, started
        self._unit_read_secs = 0.0
        self._watched.begin(unit)
        self.at_unit(unit)
        return started

    # --- what `core/activity.py` notifies of, in the training thread ---

    def reading(self) -> None:
        """See `Activity.reading`."""
        self._before_reading = self._at[0]
        self._piece = self.watchdog.begin("reading the data of a unit", self._limits.read_secs)
        self._reading_since = self.turn_to(READING)

    def has_read(self) -> None:
        """See `Activity.has_read`."""
        self.watchdog.end(self._piece)
        self._unit_read_secs += self.turn_to(self._before_reading) - self._reading_since

    def joining(self) -> None:
        """Note that the unit waits for those of the other members: one program computes the gradients of all."""
        self._piece = self.watchdog.begin("a lock-step step", UNLIMITED)
        self._met_since = self.turn_to(WAITING)

    def has_joined(self, at: float) -> None:
        """Note that all had come at `at`, since when the unit is computed."""
        self.watchdog.end(self._piece)
        self.turn_to(COMPUTING)
        self.met_secs = max(0.0, at - self._met_since)
        self.wait("average", "sync", self._met_since, self._met_since + self.met_secs)

    def compiling(self) -> None:
        """See `Activity.compiling`; it ends with `compiled`, or with the unit."""
        self.watchdog.compiles(self._limits.compile_secs)
        if self._at[0] != COMPILING:
            self._before_compiling = self._at[0]
        self.turn_to(COMPILING)

    def emulating(self) -> None:
        """Note that the computation has ended. Its emulated device goes on."""
        self.turn_to("")
        self._watched.emulate()

    def compute(self, category: str, started: float, ended: float, loss: Any) -> None:
        """Note one unit's local computation, which has ended; `loss` is None where none was computed.

        What was no reading since `started` is computing.
        """
        self._at = "", ended
        self.at_unit(-1)
        read_secs, met_secs, self.met_secs = self._unit_read_secs, self.met_secs, 0.0
        self._watched.end(ended - started - read_secs - met_secs)
        self._happened.append((WorkerRecorder._computed, category, started, read_secs, met_secs, ended, loss))
        if len(self._happened) > MOST_HAPPENED:
            with self._lock:
                self._take_in()

    def wait(self, name: str, category: str, started: float, ended: float) -> None:
        """Note time in which this worker waited for others or for a transfer."""
        self._happened.append((WorkerRecorder._has_waited, name, category, started, ended))

    def _take_in(self) -> None:
        """Take in what has happened, in its order; called under the lock."""
        happened = self._happened
        while happened:
            take_in, *values = happened.popleft()
            take_in(self, *values)

    def _computed(
        self, category: str, started: float, read_secs: float, met_secs: float, ended: float, loss: Any
    ) -> None:
        secs = ended - started - met_secs
        compute_secs = secs - read_secs
        self._compute_secs += compute_secs
        self._read_secs += read_secs
        self._peak_secs += self.unit_peak_secs or 0.0
        if self._has_usual:
            self._usual_secs += RECENT_SHARE * (compute_secs - self._usual_secs)
        else:  # the second unit takes the first one's place, which may have been compiled
            self._usual_secs, self._has_usual = compute_secs, self._usual_secs > 0.0
        if self._keep_unit_secs:
            last = self._last_unit_secs
            if self._waited or not self._counts_transfers:  # nothing more comes to those before it
                if self._open:
                    self._divide()
                elif last:
                    self._unit_secs.append(last + self._transfer_secs)
                self._transfer_secs, self._waited, self._stepped = 0.0, False, False
            elif last:
                self._open.append(last)
            self._last_unit_secs = secs
        if loss is not None:
            self._losses.append(loss)
        if self._keep_spans:
            if read_secs > READ_SHARE * secs:
                self._spans.append((READING, category, started, read_secs, self.phase_id.number, 0))
                started += read_secs
            if met_secs:
                started = ended - compute_secs
            self._spans.append(("compute", category, started, ended - started, self.phase_id.number, 1))

    def _has_waited(self, name: str, category: str, started: float, ended: float) -> None:
        secs = ended - started
        self._wait_secs += secs
        self._waited = True
        if self._counts_transfers if name == "push_pull" else name == SEND and not self._stepped:
            self._transfer_secs += secs
        if self._keep_spans:
            self._spans.append((name, category, started, secs, self.phase_id.number, 0))

    def _divide(self) -> None:
        """Divide what was sent among the units of a step, and have the next report tell of them."""
        units = (*self._open, self._last_unit_secs)
        self._unit_secs += [secs + self._transfer_secs / len(units) for secs in units]
        self._open = []

    def moved(self, sent_bytes: int, received_bytes: int) -> None:
        """Note gradients and states that this worker has sent and received, as they travel."""
        self._happened.append((WorkerRecorder._has_moved, sent_bytes, received_bytes))

    def _has_moved(self, sent_bytes: int, received_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def probe(self, started: float, ended: float) -> None:
        """Note a unit that was computed for its seconds alone, by a worker that is left out."""
        with self._lock:
            self._take_in()  # before it: the detector takes the last time for the newest
            if self._keep_unit_secs:
                self._unit_secs.append(ended - started)
            if self._keep_spans:
                self._spans.append(("probe", BESIDE, started, ended - started, self.phase_id.number, 0))

    def beside(self, name: str, started: float, ended: float) -> None:
        """Note a transfer that went on beside the training, and beside those of other names: each has its own track."""
        with self._lock:
            self._take_in()
            if self._keep_spans:
                self._spans.append((name, f"{BESIDE} {name}", started, ended - started, self.phase_id.number, 0))

    def step(self, started: float, ended: float, num_units: int) -> None:
        """Note one completed lock-step step."""
        self._happened.append((WorkerRecorder._has_stepped, started, ended, num_units))

    def _has_stepped(self, started: float, ended: float, num_units: int) -> None:
        self._stepped = True
        if self._keep_spans:
            self._spans.append(("step", "sync", started, ended - started, self.phase_id.number, num_units))

    def record_outcome(self, applied: tuple[int, ...], dropped: tuple[tuple[int, str], ...]) -> None:
        """Note what became of a lock-step step's units; one member does so for all."""
        with self._lock:
            self._applied.add_all(applied)
            self._dropped += dropped

    def compiled(self, secs: float) -> None:
        """Note a compilation that has ended, in the thread that compiled: the training thread's or another one."""
        with self._lock:
            self._compile_secs += secs
        if current() is self and self._at[0] == COMPILING:
            self.turn_to(self._before_compiling)

    def take_report(self) -> Report:
        """Return what was noted since the last call as a report."""
        with self._lock:
            self._take_in()
            spans, self._spans = self._spans, []
            losses, self._losses = self._losses, []
            applied, self._applied = self._applied, UnitSet()
            dropped, self._dropped = self._dropped, ()
            unit_secs, self._unit_secs = self._unit_secs, []
            moved, self._sent_bytes, self._received_bytes = (self._sent_bytes, self._received_bytes), 0, 0
            sums = self._compute_secs, self._wait_secs, self._compile_secs, self._peak_secs, self._read_secs
            self._compute_secs = self._read_secs = self._wait_secs = self._compile_secs = self._peak_secs = 0.0
            phase_id, completed, stamps = self.phase_id, self.completed, self.stamps
            usual_secs, (doing, since) = self._usual_secs, self._at
            now = self._now()
            if now - self._reported > LATE_SECS:  # this process stood still, or got no processor: it hangs nowhere
                self._awake = now
            self._reported = now
        values = [value for value in map(float, host_numbers(losses)) if math.isfinite(value)]
        # `completed` counts a step a moment after its update: before that, the step has not ended for anybody.
        first, last = stamps() if completed else _no_stamps()
        return Report(
            role="worker",
            id=self._worker,
            incarnation=self.incarnation,
            phase_id=phase_id,
            completed=completed,
            applied=applied.ranges(),
            dropped=dropped,
            num_losses=len(values),
            loss_sum=sum(values),
            compute_secs=sums[0],
            wait_secs=sums[1],
            compile_secs=sums[2],
            peak_secs=sums[3],
            read_secs=sums[4],
            first_applied=first,
            last_applied=last,
            doing=doing,
            spans=tuple(Span(*span) for span in spans),
            unit_secs=tuple(unit_secs),
            doing_secs=max(0.0, now - max(since, self._awake)),
            usual_secs=usual_secs,
            sent_bytes=moved[0],
            received_bytes=moved[1],
        )
