"""The log of a simulation's decisions: JSON lines that are the same, byte for byte, whenever the seed is the same.

Every line holds `t` (virtual seconds) and `kind`: the events of events.jsonl without their wall time, and

    lease     worker, epoch, ranges      the chief gave these units out: none where it had none
    update    epoch, sequence, units, base, rate, weight      an update was applied
    push      worker, epoch, units, base, sequence, duplicate, dropped      a worker has the answer to its push
    serve     server, epoch      a parameter server took over the phase's state
"""

from __future__ import annotations

from typing import Any, TextIO

from hybridsync.applylog import ApplyLog, Entry, Left
from hybridsync.messages import LeaseReply, Push, PushReply
from hybridsync.phase import Phase
from hybridsync.sim.loop import Loop
from hybridsync.sim.process import Process
from hybridsync.sim.world import Watch, World
from hybridsync.telemetry.events import Elapsed, Events
from hybridsync.telemetry.lines import encode


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


class ToldWorld(World):
    """A world whose updates go into a story.

    Args:
      story: where to.
      *arguments, **options: of the `World`.
    """

    def __init__(self, story: Story, *arguments: Any, **options: Any) -> None:
        self._story = story
        super().__init__(*arguments, watch=story, **{**options, "logs_updates": True})

    def apply_log(self) -> _Told:
        return _Told(self._story, super().apply_log())


class _Told:
    """One role's updates, told at once (see `hybridsync.applylog.ApplyLog`)."""

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
