"""The log of a simulation's decisions: JSON lines that are the same, byte for byte, whenever the seed is the same.

Every line holds `t` (virtual seconds) and `kind`: the events of events.jsonl without their wall time, and

    lease     worker, epoch, ranges      the chief gave these units out: none where it had none
    update    epoch, sequence, units, base, rate, weight      an update was applied
    push      worker, epoch, units, base, sequence, duplicate, dropped      a worker has the answer to its push
    serve     server, epoch      a parameter server took over the phase's state
"""

from __future__ import annotations

from typing import Any, TextIO

from hybridsync.interfaces.messages import LeaseReply, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.simulator.event_loop import Loop
from hybridsync.simulator.simulated_cluster import Watch
from hybridsync.simulator.simulated_process import Process
from hybridsync.storage.apply_log import ApplyLog, Entry, Left
from hybridsync.storage.jsonl import encode
from hybridsync.telemetry.events import Elapsed, Events


class Story(Watch):
    """Writes down what is decided.

    Args:
      file: takes the lines.
      loop: virtual time.
    """

    def __init__(self, file: TextIO, loop: Loop) -> None:
        self._file, self._loop = file, loop
        self._newest = (0, 0)

    def write(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        self._file.write(encode({"t": self._loop.now, "kind": kind, **fields}) + "\n")

    def served(self, server: Process, phase: Phase) -> None:
        self.write("serve", server=server.id, epoch=phase.epoch.number)

    def leased(self, worker: Process, phase: Phase, reply: LeaseReply) -> None:
        self.write("lease", worker=worker.id, epoch=phase.epoch.number, ranges=reply.ranges)

    def pushed(self, push: Push, reply: PushReply) -> None:
        self.write(
            "push",
            worker=push.worker,
            epoch=push.epoch.number,
            units=push.units,
            base=push.base,
            sequence=reply.sequence,
            duplicate=reply.duplicate,
            dropped=reply.dropped,
        )

    def updated(self, entry: Entry) -> None:
        """Write down an update; of a lock-step step, which every member makes, the first of them."""
        if (entry.epoch, entry.sequence) <= self._newest:
            return
        self._newest = entry.epoch, entry.sequence
        self.write(
            "update",
            epoch=entry.epoch,
            sequence=entry.sequence,
            units=entry.units,
            base=entry.base,
            rate=entry.rate,
            weight=entry.weight,
        )


class ToldLog:
    """One role's apply log, whose updates go into a story at once (see `hybridsync.storage.apply_log.ApplyLog`).

    Args:
      story: where to.
      log: the role's own.
    """

    def __init__(self, story: Story, log: ApplyLog) -> None:
        self._story, self._log = story, log

    def write(self, entry: Entry) -> None:
        self._story.updated(entry)
        self._log.write(entry)

    def leave(self, left: Left) -> None:
        self._log.leave(left)

    def flush(self) -> None:
        self._log.flush()

    def clear(self) -> None:
        self._log.clear()


class ToldEvents:
    """Events that go into a story as well (see `hybridsync.telemetry.events.Events`)."""

    def __init__(self, events: Events, story: Story) -> None:
        self._events, self._story = events, story
        self.elapsed: Elapsed = events.elapsed

    def write(self, kind: str, *, epoch: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = self._events.write(kind, epoch=epoch, wall=wall, **fields)
        self._story.write(kind, epoch=epoch, **fields)
        return event

    def close(self) -> None:
        self._events.close()
