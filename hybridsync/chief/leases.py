"""Leases of one phase: streams of units, how far each has come, and when it ends. Pure: time is handed in.

Under lock-step the whole mesh shares one stream; asynchronous workers have one each. A stream only grows, so an
answer that was lost is given again by asking again. A lease is large enough that nobody waits for the chief, and small
enough that a stop is near.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hybridsync.chief.ledger import Ledger
from hybridsync.core.errors import NotRegistered, StalePhase
from hybridsync.core.plan import NO_PHASE, PhaseId
from hybridsync.core.units import Range, UnitSet, UnitStream
from hybridsync.interfaces.messages import LeaseReply, LeaseRequest
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols.modes import LOCKSTEP, MESH, SyncMode
from hybridsync.telemetry.host_units import shares_of


class Leases:
    """Leases units to the workers of the active phase.

    Args:
      ledger: the run's accounting.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.phase: Phase | None = None
        self.first_leased = 0.0
        self._open = self._ended = False
        self._streams: dict[str, UnitStream] = {}
        self._rates: dict[str, Rate] = {}
        self._all_per_sec = 0.0
        self._completed = 0
        self._doubted: dict[str, UnitSet] = {}

    @property
    def phase_id(self) -> PhaseId:
        """The active phase."""
        return self.phase.id if self.phase else NO_PHASE

    @property
    def mode(self) -> SyncMode:
        """The active phase's; that of lock-step before the first one."""
        return self.phase.mode if self.phase else LOCKSTEP

    def begin(self, phase: Phase) -> None:
        """Make `phase` the active one; nothing goes out before `open`."""
        self.phase = phase
        self._open = self._ended = False
        self._streams, self._rates, self._doubted, self._completed = {}, {}, {}, 0
        self._all_per_sec = 0.0

    def adopt(self, worker: int, ranges: tuple[Range, ...], completed: int) -> None:
        """Go on with a stream that an earlier chief began: `completed` of its units are done.

        An older word than what is known of that stream changes nothing.
        """
        key, stream = self.key_of(worker), UnitStream(ranges)
        if len(stream) > len(self._streams.get(key, ())):
            self.ledger.release(key)
            self._streams[key] = stream
            self.ledger.adopt(key, stream.ranges(completed, len(stream)))

    def open(self) -> None:
        """Let units go out."""
        self._open = True

    @property
    def is_open(self) -> bool:
        """Return whether units go out."""
        return self._open

    def close(self) -> None:
        """End every stream where it is."""
        self._open, self._ended = False, True

    @property
    def closed(self) -> bool:
        """Return whether every stream has ended."""
        return self._ended

    def expect(self, phase_id: PhaseId) -> Phase:
        """Return the active phase.

        Raises:
          StalePhase: another phase is active.
        """
        if self.phase is None or self.phase.id != phase_id:
            named, active = phase_id.beside(self.phase_id)
            raise StalePhase(f"phase {named} was named, but phase {active} is active; ask for the next phase")
        return self.phase

    def answer(self, request: LeaseRequest, now: float) -> LeaseReply | None:
        """Return what extends the caller's stream, None while there is nothing to give.

        Raises:
          StalePhase: the caller is in another phase.
          NotRegistered: it has units of this phase that this chief does not know of: it has not reported its role state
            yet.
        """
        phase = self.expect(request.phase_id)
        key = self.key_of(request.worker)
        stream = self._streams.setdefault(key, UnitStream())
        if self._open and request.known > len(stream):  # what extended that stream would never reach the caller
            raise NotRegistered(
                f"worker {request.worker} has {request.known} units of phase {request.phase_id}, this chief knows of "
                f"{len(stream)}; register and call again"
            )
        self.record_progress(key, request.completed, now)
        if request.known >= len(stream) and self._open:
            self._extend(key, stream, phase, request.wanted, now)
        final = self._is_final(phase)
        if final and not phase.mode.is_served:  # what is dropped later makes room, but some may be leaving
            self.close()
        if request.known >= len(stream) and not final:
            return None
        return LeaseReply(stream.ranges(request.known, len(stream)), final)

    def record_progress(self, key: str, completed: int, now: float) -> bool:
        """Note how many units of a stream are done; returns whether the ledger learned of new applied ones.

        A report from a member of the mesh that is a step behind contains nothing new.
        """
        if key == MESH:
            completed = max(completed, self._completed)
        before = self._rates.get(key) or Rate()
        after = self._rates[key] = before.observe(completed, now)
        self._all_per_sec += after.per_sec - before.per_sec
        stream = self._streams.get(key)
        if key != MESH or stream is None or completed <= self._completed:
            return False
        self.ledger.record_applied(stream.ranges(self._completed, completed))
        self._completed = completed
        return True

    def take_credits(self) -> dict[int, int]:
        """Return and forget how many units were applied of those that each worker had, since the last call.

        Under lock-step a step's units are its members' by their shares.
        """
        credits = self.ledger.take_credits()
        mesh = credits.pop(MESH, 0)
        found = {int(key.removeprefix("worker ")): count for key, count in credits.items()}
        if mesh and self.phase is not None:
            shares = dict(zip(self.phase.members, self.phase.assignment.shares, strict=True))
            found |= shares_of(mesh, shares)
        return found

    def release_worker(self, worker: int) -> None:
        """Take back what an asynchronous worker had: others get it."""
        key = f"worker {worker}"
        self._doubted = {key: self._doubted[key]} if key in self._doubted else {}  # else maybe none is left for them
        self.ledger.release(key)
        self._streams.pop(key, None)
        lost = self._rates.pop(key, None)
        self._all_per_sec -= lost.per_sec if lost else 0.0

    def doubt(self, worker: int) -> None:
        """Keep what an asynchronous worker has from being leased to it again: it or its units are at fault.

        So it stays until another worker is lost, the units are reclaimed, or the phase ends.
        """
        key = f"worker {worker}"
        self._doubted.setdefault(key, UnitSet()).update(self.ledger.leased(key))

    def trust_all(self) -> None:
        """Lease every unit again to any worker that asks: the ones meant to take it instead may hang."""
        self._doubted = {}

    def owners(self, ranges: Iterable[Range]) -> dict[int, int]:
        """Return whose the units in progress are: worker -> how many of `ranges`."""
        found: dict[int, int] = {}
        for start, stop in ranges:
            for worker, count in self._owners(start, stop):
                found[worker] = found.get(worker, 0) + count
        return found

    def _owners(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if not self.mode.moves_together:
            for key, count in self.ledger.owners(start, stop).items():
                yield int(key.removeprefix("worker ")), count
        elif self.phase is not None and MESH in self._streams:
            turns, stream = self.phase.assignment.turns, self._streams[MESH]
            for unit in range(start, stop):
                if (position := stream.position(unit)) >= 0:
                    yield self.phase.members[turns[position % len(turns)]], 1

    def key_of(self, worker: int) -> str:
        """Return whose stream `worker` takes units from."""
        return self.mode.lease_key(worker)

    def units_per_sec(self, workers: tuple[int, ...]) -> dict[int, float]:
        """Return units a second of each worker; under lock-step a member's share of the mesh, and 0 of all others."""
        rates = {worker: self._rates.get(self.key_of(worker), Rate()).per_sec for worker in workers}
        if self.phase is None or not self.mode.moves_together:
            return rates
        shares = dict(zip(self.phase.members, self.phase.assignment.shares, strict=True))
        return {worker: rate * shares.get(worker, 0) / self.phase.num_places for worker, rate in rates.items()}

    def _is_final(self, phase: Phase) -> bool:
        if self._ended:
            return True
        end_units = phase.end_units
        return phase.mode.is_leased_out(end_units, self.ledger.num_applied, self.ledger.room(end_units))

    def _extend(self, key: str, stream: UnitStream, phase: Phase, wanted: int, now: float) -> None:
        rate = self._rates[key].per_sec
        if key == MESH:
            count = mesh_grant(phase.num_places, rate)
        else:
            in_hand = self.ledger.holders().get(key, 0) if wanted > 1 else 0
            secs = WORKER_SECS if phase.mode.is_served else MESH_SECS  # MESH_SECS where the end waits for all workers
            room = self.ledger.room(phase.end_units)
            count = worker_grant(
                rate, room, len(phase.members), wanted=wanted, in_hand=in_hand, secs=secs, all_per_sec=self._all_per_sec
            )
        had = stream.ranges(0, len(stream)) if self.ledger.num_waiting else ()
        if key in self._doubted:
            had = (*had, *self._doubted[key].ranges())
        ranges = self.ledger.lease(key, count, phase.end_units, had)
        if ranges and not self.first_leased:
            self.first_leased = now
        stream.extend(ranges)


MESH_SECS = 0.25
"""A mesh runs this far ahead of the chief; it is also how long a lock-step drain takes at most."""
WORKER_SECS = 10.0
"""An asynchronous worker's grant, far from the end of the phase."""


def mesh_grant(num_places: int, units_per_sec: float) -> int:
    """Return the units to grant a lock-step mesh: about MESH_SECS of work in whole steps.

    One step at least, which is time enough to renew it where it is longer than that; two before anything is known.

    Args:
      num_places: units of a whole step.
      units_per_sec: units per second of the whole mesh; 0 if unknown.

    >>> mesh_grant(num_places=4, units_per_sec=400.0)
    100
    """
    steps = max(1, round(units_per_sec * MESH_SECS / num_places)) if units_per_sec else 2
    return steps * num_places


def worker_grant(
    units_per_sec: float,
    room: int,
    num_workers: int,
    wanted: int = 1,
    in_hand: int = 0,
    secs: float = WORKER_SECS,
    all_per_sec: float = 0.0,
) -> int:
    """Return the units to grant one worker with a stream of its own: `secs` of its work, shrinking towards the end.

    Guided self-scheduling (Polychronopoulos and Kuck, 1987) with half a share, so that the workers end together. A
    worker that is slower than the mean of all has a share as small as its part of their rate: an equal one would keep
    it busy long after the others, and the phase with it. One that takes several units at a time gets as many at once,
    but of the last ones, with those that it has in hand, no more than its share.

    Args:
      units_per_sec: units per second of this worker; 0 if unknown.
      room: units of the phase that are not leased.
      num_workers: number of workers in the phase.
      wanted: units that the worker takes at a time.
      in_hand: units that it has.
      secs: seconds of work to hand out, far from the end.
      all_per_sec: units per second of all workers together; 0 if unknown.

    >>> worker_grant(units_per_sec=50.0, room=4000, num_workers=4), worker_grant(50.0, room=5, num_workers=4)
    (500, 1)
    >>> worker_grant(units_per_sec=0.0, room=4000, num_workers=4, wanted=50), worker_grant(50.0, 40, 4, wanted=50)
    (50, 10)
    >>> worker_grant(50.0, room=30, num_workers=4, wanted=50, in_hand=10)
    0
    >>> worker_grant(10.0, room=800, num_workers=4), worker_grant(10.0, room=800, num_workers=4, all_per_sec=160.0)
    (100, 25)
    """
    ahead = max(1, round(units_per_sec * secs))
    share = room // (2 * num_workers)
    if units_per_sec * num_workers < all_per_sec:
        share = int(share * num_workers * units_per_sec / all_per_sec)
    grant = max(1, min(ahead, share))
    if wanted == 1:
        return grant
    return max(0, min(max(grant, wanted), -(-(room + in_hand) // num_workers) - in_hand))


RATE_SECS = 1.0
"""Over about this long a measured rate forgets."""


@dataclass(slots=True)
class Rate:
    """Units a second, from a growing count: an exponential average over about RATE_SECS.

    >>> rate = Rate().observe(count=0, now=10.0).observe(count=50, now=10.5)
    >>> rate.per_sec
    100.0
    """

    per_sec: float = 0.0
    count: int = 0
    at: float | None = None

    def observe(self, count: int, now: float) -> Rate:
        """Return the rate after `count` units in all were done by `now` (monotonic seconds)."""
        if self.at is None or count < self.count:
            return Rate(self.per_sec, count, now)
        if now <= self.at or count == self.count:
            return self
        measured = (count - self.count) / (now - self.at)
        kept = math.exp(-(now - self.at) / RATE_SECS) if self.per_sec else 0.0
        return Rate(kept * self.per_sec + (1 - kept) * measured, count, now)
