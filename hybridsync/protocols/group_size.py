"""Chooses the number of workers in a group: a fixed one, or the largest that costs little, as measured. Pure.

A worker's time from one request to the next is a wait for its group, an average, and computing. With `size=auto` groups
grow while the first two together take no more than `SHARE` of it, and shrink where they take more. A size that was too
dear is not tried again in the phase. The groups of a run are in its apply log, so a replay measures nothing.

    >>> sizes = GroupSize(2, most=8)
    >>> for at in range(9): sizes.on_request(0, float(at), average_secs=0.01); sizes.on_start(0, at + 0.02, 2)
    >>> sizes.size
    3

Source: Ripples (arXiv 1909.08029) speaks of "a large group"; how large, and this rule, are a reconstruction.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

SHARE = 0.2
"""Of a worker's time that its group rounds may take."""
NEWEST = 0.3
"""Weight of what was measured last in the cost of a size."""
LEAST_SAMPLES = 6
"""After how many group rounds of a size it is judged; more where there are more workers."""


class _Round(NamedTuple):
    asked_at: float
    started_at: float
    num_members: int


class GroupSize:
    """The size of groups in one phase.

    Args:
      least: size that the phase begins with.
      most: the largest; `least` for a fixed size.

    Attributes:
      size: size of the next group.
    """

    def __init__(self, least: int, most: int) -> None:
        self.size, self._least, self._most = least, least, max(least, most)
        self._asked: dict[int, float] = {}
        self._rounds: dict[int, _Round] = {}
        self._shares: list[float] = []
        self._costs: dict[int, float] = {}

    def on_request(self, worker: int, at: float, average_secs: float) -> None:
        """Note that a worker asks for a group, and what its last average took."""
        if self._least == self._most:
            return
        self._asked[worker] = at
        last = self._rounds.pop(worker, None)
        if last is None or last.num_members < self.size or at <= last.asked_at:
            return
        self._shares.append((last.started_at - last.asked_at + average_secs) / (at - last.asked_at))
        if len(self._shares) >= max(LEAST_SAMPLES, self._most):
            self._judge()

    def on_start(self, worker: int, at: float, num_members: int) -> None:
        """Note that the group of a worker that asked starts."""
        if worker in self._asked:
            self._rounds[worker] = _Round(self._asked.pop(worker), at, num_members)

    def forget_starts(self) -> None:
        """Forget who waits: everybody meets now, which says nothing of a group."""
        self._asked.clear()
        self._rounds.clear()

    def _judge(self) -> None:
        share = median(self._shares)  # the first average of a group may compile
        before = self._costs.get(self.size, share)
        self._shares, self._costs[self.size] = [], before + NEWEST * (share - before)
        if self._costs[self.size] > SHARE:
            self.size = max(self._least, self.size - 1)
        elif self.size < self._most and self._costs.get(self.size + 1, 0.0) <= SHARE:
            self.size += 1
