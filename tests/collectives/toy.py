"""A backend of collectives that is made for a test: members post what they bring, and everybody combines it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from hybridsync.collectives.backend import CommunicatorPhase
from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import PhaseRevoked, WaitTimeout
from hybridsync.interfaces.messages import GroupReply
from hybridsync.training.averaging import AveragedPart, mean
from hybridsync.training.compiled_programs import Programs

SECS = 60.0


class Board:
    """What members post, by key and place; the condition guards it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._posted: dict[Hashable, dict[int, Any]] = {}
        self._broken = ""

    def exchange(self, key: Hashable, place: int, num_places: int, item: Any) -> tuple:
        """Post `item`; returns what all have posted under `key`, by their places."""
        with self._condition:
            posted = self._posted.setdefault(key, {})
            posted[place] = item
            self._condition.notify_all()
            complete = self._condition.wait_for(lambda: self._broken or len(posted) == num_places, SECS)
            if self._broken:
                raise PhaseRevoked(self._broken)
            if not complete:
                raise WaitTimeout(f"only places {sorted(posted)} of {num_places} came within {SECS:g} s")
            return tuple(posted[at] for at in range(num_places))

    def break_off(self, reason: str) -> None:
        with self._condition:
            self._broken = reason
            self._condition.notify_all()


class Calls:
    """How often each method was called, by any thread; the lock guards the counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def clear(self) -> None:
        self._counts.clear()

    def __getitem__(self, what: str) -> int:
        return self._counts[what]


class ToyCommunicator:
    """See `Communicator`."""

    joint_gradient = None

    def __init__(self, members: tuple[int, ...], sum_up: Callable[[tuple], Any], calls: Calls) -> None:
        self._members, self._sum_up, self._calls = members, sum_up, calls
        self._board, self._steps = Board(), Counter[tuple[str, int]]()
        self.met_at = 0.0

    def enter(self) -> None:
        self._calls.count("enter")

    def pack(self, contribution: Any) -> bool:
        return False

    def sum(self, index: int, contribution: Any) -> Any:
        total = self._sum_up(self._exchange("sum", index, contribution))
        self.met_at = SYSTEM_CLOCK.monotonic()
        return total

    def gather(self, index: int, reasons: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        return self._exchange("gather", index, reasons)

    def group_mean(self, reply: GroupReply, worker: int, part: AveragedPart) -> AveragedPart:
        self._calls.count("group_mean")
        place = reply.members.index(worker)
        average = mean(self._board.exchange(reply.sequence, place, len(reply.members), part))
        self.met_at = SYSTEM_CLOCK.monotonic()
        return average

    def break_off(self, reason: str) -> None:
        self._board.break_off(reason)

    def _exchange(self, what: str, index: int, item: Any) -> tuple:
        self._calls.count(what)
        self._steps[what, index] += 1
        return self._board.exchange((what, self._steps[what, index]), index, len(self._members), item)


class ToyCollectives:
    """See `Collectives`.

    Attributes:
      calls: what its communicators were asked for, by method.
    """

    calls: ClassVar = Calls()

    def __init__(self, programs: Programs) -> None:
        self._sum_up = programs.total

    def prepare(self, *, sums: bool, groups: bool) -> None:
        self.calls.count("prepare")

    def rest(self) -> None:
        self.calls.count("rest")

    def communicator(self, phase: CommunicatorPhase) -> ToyCommunicator:
        return ToyCommunicator(phase.members, self._sum_up, self.calls)
