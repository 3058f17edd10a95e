"""Follows the processes of the record: each start and each end is written once, by whichever chief hears of it. Pure.

>>> roster = Roster([{"kind": "role_started", "role": "worker", "id": 1, "pid": 7}])
>>> roster.joined("worker", 1, 8)
>>> roster.record_end("worker", 1, 7), roster.record_end("worker", 1, 8), roster.record_end("worker", 1, 8)
(Loss(is_news=True, leaves=False), Loss(is_news=True, leaves=True), Loss(is_news=False, leaves=False))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Place = tuple[str, int]


class Loss(NamedTuple):
    """Describes what the end of a process means for the record.

    Args:
      is_news: it is not written yet.
      leaves: its place is empty by it; otherwise a newer process has the place, or it never took part.
    """

    is_news: bool
    leaves: bool


class Roster:
    """Follows the processes of a run since it was last started.

    A chief that was restarted goes on from what the earlier one has written: that one may have given a process up
    whose end its supervisor tells only now, or may not have lived to hear of an end at all.

    Args:
      events: of the run, in order.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._present: dict[Place, int] = {}
        self._gone: set[tuple[Place, int]] = set()
        for event in events:
            if event["kind"] == "run_started":
                self._present, self._gone = {}, set()
            if event["kind"] == "role_started":
                self.joined(event["role"], event["id"], event["pid"])
            if event["kind"] == "role_lost" and "pid" in event:
                self.record_end(event["role"], event["id"], event["pid"])

    @property
    def present(self) -> dict[Place, int]:
        """(role, id) -> process, of those that take part by what was told so far."""
        return dict(self._present)

    def joined(self, role: str, role_id: int, pid: int) -> None:
        """Note that a process takes part; threads come again under the same pid."""
        self._present[role, role_id] = pid
        self._gone.discard(((role, role_id), pid))

    def record_end(self, role: str, role_id: int, pid: int) -> Loss:
        """Note that a process is gone, and return what that means."""
        place = role, role_id
        news, leaves = (place, pid) not in self._gone, self._present.get(place) == pid
        self._gone.add((place, pid))
        if leaves:
            del self._present[place]
        return Loss(news, leaves)
