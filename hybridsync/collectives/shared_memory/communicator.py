"""Sums over shared memory: each member adds up one slice of all contributions, in the members' order.

The result is the ordered sum of `collectives.threads`, bit for bit where no number is subnormal: XLA takes those for
0. A round has two waits, for all contributions and for all slices. Nothing is written over what a member still reads: a
contribution stays until every slice is there, and a slice stays until all members have come to the next round (see
`Rounds.await_readers` for members of the last one only).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridsync.collectives.backend import CommunicatorPhase, JointGradient
from hybridsync.collectives.packing import FlatContributions, FlatParts
from hybridsync.collectives.shared_memory.rounds import CONTRIBUTED, COPIED, REDUCED, Rounds
from hybridsync.collectives.shared_memory.service import Joined
from hybridsync.collectives.shared_memory.slab import Area
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart
from hybridsync.training.buffer_layout import BufferTree
from hybridsync.training.compiled_programs import Programs
from hybridsync.training.lent_buffers import LentBuffers

ENTER_SECS = 60.0
"""How long the members of a phase wait for each other at its beginning."""

REASON_LENGTH = 256
"""Longest text that is told of why a unit was dropped, in characters."""

NOTE_BYTES = 1 << 16
"""Room for what one member tells of its units."""

BLOCK = 1 << 15
"""Numbers added at a time: they stay in the processor's cache until all members' are in."""

_SLICE = 16  # numbers of a cache line, of which each has one writer


class _Views(NamedTuple):
    """Holds what a member reads and writes in each round of the same members: views, made once.

    Attributes:
      peers: places of the other members.
      own: region of its contribution.
      reductions: for floats and integers how they combine, its slice of all contributions, and where it leaves theirs.
      slices: every member's slice of the sum, and its bytes in the whole.
    """

    peers: tuple[int, ...]
    own: np.ndarray
    reductions: list[tuple[np.ufunc, list[np.ndarray], np.ndarray]]
    slices: list[tuple[slice, np.ndarray]]


class SumKind:
    """Holds the buffers and programs that sums of one kind use.

    Args:
      area: region of the slab for these sums.
      flat: layout of the contributions.

    Attributes:
      results: this worker's buffers for the results.
    """

    def __init__(self, area: Area, flat: FlatContributions) -> None:
        self.area, self.flat = area, flat
        self.results = LentBuffers(flat.layout.nbytes)
        self._views: tuple[tuple[int, ...], _Views] | None = None  # of the last round: most have the same members

    @functools.cached_property
    def total(self) -> BufferTree:
        """The tree of each sum that lasts until the next one."""
        # Made once: an update took leaves of NumPy for new arrays each time, 272 us with 8 of them and three scalars,
        # 182 without. The next sum may write here once the update has read it, which the gradient after it shows.
        return self.flat.layout.over(self.results.lend())

    def views(self, own: int, members: tuple[int, ...]) -> _Views:
        """Return the views of the member at the place `own` in a round of `members`; its memory is reserved."""
        if self._views is None or self._views[0] != members:
            self._views = members, self._look(own, members)
        return self._views[1]

    def rest(self) -> None:
        """Let go of this process's buffers and views; what peers may read stays in the slab (see `Area.unmap`)."""
        self._views = None
        self.flat.rest()
        self.__dict__.pop("total", None)
        self.results.clear()
        self.area.unmap()

    def _look(self, own: int, members: tuple[int, ...]) -> _Views:
        area, parts, count = self.area, self.flat.parts, len(members)
        contributions = [parts(area.contribution(place)) for place in members]
        peers = tuple(place for place in members if place != own)
        found = _Views(peers, area.contribution(own), [], [])
        for part, combine in enumerate((np.add, np.maximum)):
            start = part * self.flat.float_bytes
            for index, place in enumerate(members):
                reduced = parts(area.reduced(place))[part]
                if not (its := reduced[(numbers := slice_of(reduced.size, index, count))]).size:
                    continue
                found.slices.append((slice(start + 4 * numbers.start, start + 4 * numbers.stop), its.view(np.uint8)))
                if place == own:
                    sources = [contribution[part][numbers] for contribution in contributions]
                    found.reductions.append((combine, sources, its))
        return found


class SharedMemoryCollectives:
    """Makes the communicators of one worker (see `Collectives`).

    Args:
      joined: this worker's part of the host's memory.
      slots: numbers of all workers, by their places.
      worker: number of this one.
      programs: the run's compiled programs.
    """

    def __init__(self, joined: Joined, slots: tuple[int, ...], worker: int, programs: Programs) -> None:
        self.joined, self.slots, self.own = joined, slots, slots.index(worker)
        self._state = programs.moving(programs.state)
        self.flats = FlatParts(self._state)
        self.notes = Area.after_words(joined.file, len(slots), NOTE_BYTES)
        self._end = self.notes.end
        self.contributions = self._kind(FlatContributions(programs.contribution_layout))
        self.parts = {optimizer: self._kind(self.flats[optimizer].flat) for optimizer in (False, True)}

    def prepare(self, *, sums: bool, groups: bool) -> None:
        """Take the memory of sums, and compile what packs a group's parts (see `Collectives.prepare`)."""
        if sums:
            self.contributions.area.reserve(self.own)
        if groups:
            self.flats.compile(self._state)

    def rest(self) -> None:
        """Let go of what sums need, which a later phase maps again (see `Collectives.rest`)."""
        for kind in (self.contributions, *self.parts.values()):
            kind.rest()

    def communicator(self, phase: CommunicatorPhase) -> SharedMemoryCommunicator:
        """Return the communicator of a phase (see `Collectives.communicator`)."""
        return SharedMemoryCommunicator(self, phase)

    def _kind(self, flat: FlatContributions) -> SumKind:
        area = Area(self.joined.file, self._end, len(self.slots), flat.layout.nbytes)
        self._end = area.end
        return SumKind(area, flat)


class SharedMemoryCommunicator:
    """The members of one phase (see `Communicator`).

    Args:
      shared: objects that all phases of this worker share.
      phase: the phase whose members sum.

    Attributes:
      met_at: see `Communicator.met_at`.
    """

    joint_gradient: JointGradient | None = None  # each runs its own program

    def __init__(self, shared: SharedMemoryCollectives, phase: CommunicatorPhase) -> None:
        self._shared, self._own = shared, shared.own
        self._members = self._places(phase.members)
        words, bells = shared.joined.words, shared.joined.doorbells
        self._rounds = Rounds(
            words, bells, self._own, name_of=shared.slots.__getitem__, phase=phase.id, members=self._members
        )
        self._num_rounds = 0
        self._packed: Any = None  # the contribution in the own region, until it is summed
        self.met_at = 0.0

    def enter(self) -> None:
        """Wait until all members are in the phase (see `Communicator.enter`)."""
        peers = self._peers(self._members)
        try:
            self._rounds.reach(0, CONTRIBUTED, peers)
            self._rounds.await_peers(0, CONTRIBUTED, peers, ENTER_SECS)
        except BaseException:
            self._rounds.leave()
            raise

    def pack(self, contribution: Any) -> bool:
        """Write a contribution into this member's region (see `Communicator.pack`).

        Nobody reads it there any more: each slice of the last sum was there before that returned.
        """
        if len(self._members) == 1:
            return False
        flat = self._shared.contributions.flat
        own = self._bring(self._members, self._shared.contributions, flat.split, contribution)
        self._packed = contribution
        return flat.layout.is_finite(own)

    def sum(self, index: int, contribution: Any) -> Any:
        """Deliver a contribution (see `Communicator.sum`)."""
        if len(self._members) == 1:
            self._rounds.check()
            return contribution
        kind, self._num_rounds = self._shared.contributions, self._num_rounds + 1
        if contribution is not self._packed:
            self._bring(self._members, kind, kind.flat.split, contribution)
        self._packed = None
        self._fill(kind.total.buffer, self._num_rounds, self._members, kind)
        return kind.total.arguments

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Tell why contributions are missing (see `Communicator.gather`)."""
        if len(self._members) == 1:
            self._rounds.check()
            return (reasons,)
        self._num_rounds += 1
        number, area, peers = self._num_rounds, self._shared.notes, self._peers(self._members)
        # JSON takes up to 12 bytes for a character. One is left at least: "" would mean that the unit is there.
        limit = max(1, min(REASON_LENGTH, NOTE_BYTES // (16 * len(reasons)) - 1))
        text = json.dumps([reason[:limit] for reason in reasons]).encode()
        try:
            area.reserve(self._own)
            own = area.contribution(self._own)
            own[:] = 0
            own[: len(text)] = np.frombuffer(text, np.uint8)
            self._rounds.reach(number, CONTRIBUTED, peers)
            self._rounds.await_peers(number, CONTRIBUTED, peers)
            told = [area.contribution(place).tobytes().rstrip(b"\0") for place in self._members]
            self._rounds.reach(number, REDUCED, peers)
            self._rounds.await_peers(number, REDUCED, peers)
        except BaseException:
            self._rounds.leave()
            raise
        return tuple(tuple(json.loads(text)) for text in told)

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        """Bring a part (see `Communicator.group_mean`)."""
        packing, kind = self._shared.flats[reply.optimizer], self._shared.parts[reply.optimizer]
        members = self._places(reply.members)
        self._bring(members, kind, packing.split, part)
        total = kind.results.lend()
        self._fill(total, reply.sequence, members, kind)
        floats, highest = kind.flat.parts(total)
        return packing.join(floats / np.float32(len(members)), highest)

    def break_off(self, reason: str) -> None:
        """Make the current call raise; called by the control thread (see `Communicator.break_off`)."""
        self._rounds.break_off(reason)

    def _bring(
        self, members: tuple[int, ...], kind: SumKind, write: Callable[[Any, np.ndarray], Any], what: Any
    ) -> np.ndarray:
        """Write what this member brings to a round into its region, and return that."""
        try:
            kind.area.reserve(self._own)
            own = kind.views(self._own, members).own
            write(what, own)
        except BaseException:  # so that no peer waits for this member
            self._rounds.leave()
            raise
        return own

    def _fill(self, total: np.ndarray, number: int, members: tuple[int, ...], kind: SumKind) -> None:
        """Write the sum, and of integers the maximum, of what all members have brought into a buffer of this one."""
        rounds, views = self._rounds, kind.views(self._own, members)
        peers = views.peers
        try:
            rounds.reach(number, CONTRIBUTED, peers)
            rounds.await_peers(number, CONTRIBUTED, peers)
            self.met_at = rounds.met_at(peers)
            # A group's members differ from round to round: one of the last round may still read this member's slice.
            rounds.await_readers(number, peers)
            # In the order of the members, whoever came first: the result has the bits of the sum among threads.
            for combine, sources, out in views.reductions:
                reduce_slice(combine, sources, out)
            rounds.reach(number, REDUCED, peers)
            rounds.await_peers(number, REDUCED, peers)
            for place, reduced in views.slices:  # which cover all of it
                total[place] = reduced
            rounds.reach(number, COPIED)
        except BaseException:
            rounds.leave()
            raise

    def _places(self, workers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._shared.slots.index(worker) for worker in workers)

    def _peers(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place for place in members if place != self._own)


def slice_of(size: int, index: int, num_members: int) -> slice:
    """Return which numbers of `size` the member at `index` adds up.

    >>> [slice_of(100, index, 3) for index in range(3)]
    [slice(0, 48, None), slice(48, 96, None), slice(96, 100, None)]
    """
    each = -(-size // (num_members * _SLICE)) * _SLICE
    return slice(min(size, index * each), min(size, (index + 1) * each))


@np.errstate(over="ignore", invalid="ignore")  # the member that checks the update reports a sum that overflows
def reduce_slice(combine: np.ufunc, sources: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Combine the members' sources, in their order, into `out`.

    Args:
      combine: binary function of two arrays.
      sources: two or more arrays of one size.
      out: array of that size, for the result.
    """
    for start in range(0, out.size, BLOCK):
        block = slice(start, start + BLOCK)
        result = out[block]
        combine(sources[0][block], sources[1][block], out=result)
        for source in sources[2:]:
            combine(result, source[block], out=result)
