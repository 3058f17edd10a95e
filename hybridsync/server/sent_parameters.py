"""The parameters that workers compute on, kept at a server until nothing can come that was computed on them. Pure.

>>> from hybridsync.core.plan import PhaseId
>>> first = Push(PhaseId(3, 7), worker=0, incarnation=1, units=(4,), base=1)
>>> given_back = []
>>> versions = Versions(given_back.append)
>>> versions.record_sent(first, 1, lambda: "w1")
>>> versions.record_sent(first, 4, lambda: "w4")
>>> versions.base_of(first)
'w1'
>>> versions.release(first._replace(base=4)), given_back
(None, ['w1'])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridsync.core.errors import HybridSyncError
from hybridsync.interfaces.messages import Push


class Versions:
    """Keeps what each worker's process was handed, by sequence.

    Args:
      give_back: takes what is kept no longer.
    """

    def __init__(self, give_back: Callable[[Any], object] = lambda served: None) -> None:
        self._give_back = give_back
        self._handed: dict[tuple[int, int], dict[int, Any]] = {}

    def record_sent(self, push: Push, sequence: int, lend: Callable[[], Any]) -> None:
        """Keep what answers `push`; of answers that were repeated, any may be the one that the worker goes on from."""
        for who in [who for who in self._handed if who[0] == push.worker and who[1] < push.incarnation]:
            self.forget(*who)  # a later process has the place, and its pushes are refused
        handed = self._handed.setdefault((push.worker, push.incarnation), {})
        if sequence not in handed:
            handed[sequence] = lend()

    def release(self, push: Push) -> None:
        """Forget what the worker had before the base of `push`, which is applied now."""
        handed = self._handed.get((push.worker, push.incarnation), {})
        for sequence in [sequence for sequence in handed if sequence < push.base]:
            self._give_back(handed.pop(sequence))

    def has_base(self, push: Push) -> bool:
        """Return whether what `push` was computed on is kept."""
        return push.base in self._handed.get((push.worker, push.incarnation), {})

    def base_of(self, push: Push) -> Any:
        """Return what `push` was computed on.

        Raises:
          HybridSyncError: it is not kept; the servers' accounts have come apart.
        """
        handed = self._handed.get((push.worker, push.incarnation), {})
        if push.base not in handed:
            raise HybridSyncError(
                f"worker {push.worker} pushed what it computed on update {push.base}'s parameters, but this server "
                f"keeps those of {sorted(handed)} for it; run the same command again to resume from the last checkpoint"
            )
        return handed[push.base]

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget a worker's processes up to this one, which are gone."""
        for who in [who for who in self._handed if who[0] == worker and who[1] <= incarnation]:
            for served in self._handed.pop(who).values():
                self._give_back(served)

    def clear(self) -> None:
        """Forget everybody: the phase is over."""
        for who in [*self._handed]:
            self.forget(*who)
