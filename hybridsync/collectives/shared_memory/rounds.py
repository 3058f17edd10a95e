"""Runs the rounds of a phase, in which workers wait for each other: keeps how far each has come, and which are gone.

A worker's progress is one number: the phase, the round in it, and the stage of that round. A member waits until its
peers have come as far as itself. The slab then holds everything that they wrote before, because the processors that
`backend.suits` names keep the order of writes, and of reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hybridsync.collectives.shared_memory.doorbells import Doorbells
from hybridsync.collectives.shared_memory.slab import Words
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.deadlines import MEMBERS_SECS
from hybridsync.core.errors import PhaseRevoked, WaitTimeout
from hybridsync.core.plan import PhaseId

CONTRIBUTED, REDUCED, COPIED = 1, 2, 3
"""Stages of a round: the member has written its contribution, has written its slice of the sum, has stopped reading."""

DEADLINE_SECS = MEMBERS_SECS
"""How long a member waits for the slowest one; before that the chief gives up who hangs."""

POLL_SECS = 0.05
"""How long a member waits at most before it looks again without having been woken."""

_ROUND_BITS, _STAGES = 40, 4
_LEFT = (1 << _ROUND_BITS) - 1  # above every round number: a worker has left the phase before the end of one


class Rounds:
    """One worker's rounds in one phase.

    Args:
      words: the words of all workers.
      doorbells: the doorbells of all workers.
      own: place of this worker.
      name_of: place -> number of the worker, for messages.
      phase: id of the phase.
      members: places of the phase's members.
    """

    def __init__(
        self,
        words: Words,
        doorbells: Doorbells,
        own: int,
        name_of: Callable[[int], int],
        phase: PhaseId,
        members: Iterable[int],
    ) -> None:
        self._words, self._doorbells, self._own, self._name_of = words, doorbells, own, name_of
        self._phase = ((phase.number & 0xFFFF) << 7 | phase.nonce & 0x7F) << _ROUND_BITS
        # A worker with a place takes part, or is lost: its successor is a member of later phases only.
        self._sessions = {place: words.session(place) for place in members}
        self._last: tuple[int, tuple[int, ...]] = (0, ())
        self._broken = ""

    def reach(self, number: int, stage: int, peers: Sequence[int] = ()) -> None:
        """Say how far this worker is, and wake the `peers` that may wait for it."""
        if stage == CONTRIBUTED:  # before its progress, by which peers know that it is there
            self._words.set_arrival(self._own, SYSTEM_CLOCK.monotonic())
        self._words.set_progress(self._own, self._phase + number * _STAGES + stage)
        self._doorbells.ring(peers)

    def await_peers(self, number: int, stage: int, peers: Sequence[int], timeout_secs: float = DEADLINE_SECS) -> None:
        """Wait until all `peers` are as far.

        Raises:
          PhaseRevoked: the phase was broken off, or a peer has ended or left it.
          WaitTimeout: a peer did not come in time.
        """
        position = self._phase + number * _STAGES + stage
        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        missing = [place for place in peers if not self._is_as_far(place, position)]
        while missing:
            self.check()
            if (remaining := deadline - SYSTEM_CLOCK.monotonic()) <= 0:
                names = [self._name_of(place) for place in missing]
                raise WaitTimeout(
                    f"workers {names} did not come to round {number} within {timeout_secs:g} s; see their logs"
                )
            self._doorbells.wait(min(POLL_SECS, remaining))
            missing = [place for place in missing if not self._is_as_far(place, position)]
        self.check()

    def met_at(self, peers: Iterable[int]) -> float:
        """Return when the last of this worker and its `peers` came, monotonic seconds; the same for each of them.

        Called between the stages `CONTRIBUTED` and `REDUCED` of a round: no peer comes to the next one before that. A
        member that waited is woken a while after the last one came, on busy processors some milliseconds.
        """
        return max(map(self._words.arrival, (self._own, *peers)))

    def await_readers(self, number: int, peers: tuple[int, ...]) -> None:
        """Wait until nobody reads what this worker reduced in its last round; then it may write the next one's.

        Peers of both rounds do not read any more, since they have come to this one.

        Args:
          number: number of the round that begins.
          peers: places of the other members of that round.

        Raises:
          PhaseRevoked: the phase was broken off.
          WaitTimeout: a reader does not go on.
        """
        (last, readers), self._last = self._last, (number, peers)
        copied = self._phase + last * _STAGES + COPIED
        deadline = SYSTEM_CLOCK.monotonic() + DEADLINE_SECS
        for place in readers:
            while place not in peers and copied - COPIED <= self._words.progress(place) < copied:
                self.check()
                if not self._is_here(place):
                    break
                if SYSTEM_CLOCK.monotonic() >= deadline:
                    raise WaitTimeout(
                        f"worker {self._name_of(place)} still reads the sum of round {last} after "
                        f"{DEADLINE_SECS:g} s; see its log"
                    )
                self._doorbells.wait(POLL_SECS / 50)  # no bell rings for a copy, which takes less time than a wake-up

    def leave(self) -> None:
        """Leave the phase in the middle of a round: peers that wait for this worker wait no more."""
        self._words.set_progress(self._own, self._phase + _LEFT)
        self._doorbells.ring(place for place in self._sessions if place != self._own)

    def break_off(self, reason: str) -> None:
        """Make the current wait, and every later one, raise PhaseRevoked; called by another thread."""
        self._broken = self._broken or reason
        self._doorbells.wake()

    def check(self) -> None:
        """Raise PhaseRevoked where the phase was broken off."""
        if self._broken:
            raise PhaseRevoked(self._broken)

    def _is_as_far(self, place: int, position: int) -> bool:
        progress = self._words.progress(place)
        if position <= progress < self._phase + _LEFT:
            return True
        if progress == self._phase + _LEFT:
            raise PhaseRevoked(f"worker {self._name_of(place)} has left the phase")
        if not self._is_here(place):
            raise PhaseRevoked(f"worker {self._name_of(place)} has ended")
        return False

    def _is_here(self, place: int) -> bool:
        """Return whether the process that takes part has not ended; one of a replay may join later than its peers."""
        session = self._words.session(place)
        self._sessions[place] = self._sessions[place] or session
        return session == 0 or session == self._sessions[place] > 0
