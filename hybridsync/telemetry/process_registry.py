"""Follows the processes of the record: each start and each end is written once, by whichever chief hears of it. Pure.

>>> roster = Roster([{"kind": "role_started", "role": "worker", "id": 1, "pid": 7}])
>>> former, newer = ("worker", 1, 0, 7), ("worker", 1, 1, 7)
>>> roster.joined(newer)
>>> roster.record_end(former), roster.record_end(newer), roster.record_end(newer)
(Loss(is_news=True, leaves=False), Loss(is_news=True, leaves=True), Loss(is_news=False, leaves=False))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hybridsync.interfaces.messages import Process

Place = tuple[str, int]


class Loss(NamedTuple):
    """Describes what the end of a process means for the record.

    Args:
      is_news: it is not written yet.
      leaves: whether the event leaves the place empty; otherwise a newer process has the place, or it never took part.
    """

    is_news: bool
    leaves: bool


class Roster:
    """Follows the processes of a run since it was last started.

    A chief that was restarted continues from the record of the earlier one: that one may have given a process up whose
    end its supervisor reports only now, or may not have lived to hear of an end at all.

    Args:
      events: events of the run, in order.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._present: dict[Place, Process] = {}
        self._gone: set[Process] = set()
        for event in events:
            if event["kind"] == "run_started":
                self._present, self._gone = {}, set()
            if event["kind"] == "role_started":
                self.joined(_process(event))
            if event["kind"] == "role_lost" and "pid" in event:
                self.record_end(_process(event))

    @property
    def present(self) -> list[Process]:
        """The processes that take part by what was told so far."""
        return list(self._present.values())

    def joined(self, process: Process) -> None:
        """Note that a process takes part; threads come again under the same pid."""
        self._present[process[:2]] = process
        self._gone.discard(process)

    def record_end(self, process: Process) -> Loss:
        """Note that a process is gone, and return what that means."""
        news, leaves = process not in self._gone, self._present.get(process[:2]) == process
        self._gone.add(process)
        if leaves:
            del self._present[process[:2]]
        return Loss(news, leaves)


def _process(event: Mapping[str, Any]) -> Process:
    return event["role"], event["id"], event.get("restart_count", 0), event["pid"]
