"""The log of a simulation's decisions: JSON lines that are the same, byte for byte, whenever the seed is the same.

Every line holds `t` (virtual seconds) and `kind`: the events of events.jsonl without their wall time, and

    lease     worker, phase, ranges      the chief gave these units out: none where it had none
    update    phase, sequence, units, base, rate, weight      an update was applied
    push      worker, phase, units, base, sequence, duplicate, dropped      a worker has the answer to its push
    serve     server, phase      a parameter server took over the phase's state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

from hybridsync.interfaces.messages import LeaseReply, Push, PushReply
from hybridsync.interfaces.phase import Phase
from hybridsync.lab.simulator.event_loop import Loop
from hybridsync.lab.simulator.simulated_process import Process
from hybridsync.lab.simulator.watch import Watch
from hybridsync.storage.apply_log import ApplyLog
from hybridsync.storage.apply_log_entries import Entry, Left
from hybridsync.storage.jsonl import encode
from hybridsync.telemetry.events import Elapsed, Events


class DecisionLog(Watch):
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
        self.write("serve", server=server.id, phase=phase.id.number)

    def leased(self, worker: Process, phase: Phase, reply: LeaseReply) -> None:
        self.write("lease", worker=worker.id, phase=phase.id.number, ranges=reply.ranges)

    def pushed(self, push: Push, reply: PushReply) -> None:
        self.write(
            "push",
            worker=push.worker,
            phase=push.phase_id.number,
            units=push.units,
            base=push.base,
            sequence=reply.sequence,
            duplicate=reply.duplicate,
            dropped=reply.dropped,
        )

    def updated(self, entry: Entry) -> None:
        """Write down an update; of a lock-step step, which every member makes, the first of them."""
        if (entry.phase, entry.sequence) <= self._newest:
            return
        self._newest = entry.phase, entry.sequence
        self.write(
            "update",
            phase=entry.phase,
            sequence=entry.sequence,
            units=entry.units,
            base=entry.base,
            rate=entry.rate,
            weight=entry.weight,
        )


class MirroredApplyLog:
    """One role's apply log, whose updates go into a decision log at once (see `hybridsync.storage.apply_log.ApplyLog`).

    Args:
      decision_log: log that is written to.
      log: apply log of the role.
    """

    def __init__(self, decision_log: DecisionLog, log: ApplyLog) -> None:
        self._decision_log, self._log = decision_log, log

    def write(self, entry: Entry) -> None:
        self._decision_log.updated(entry)
        self._log.write(entry)

    def record_left(self, left: Left) -> None:
        self._log.record_left(left)

    def detach(self) -> Callable[[], None]:
        return self._log.detach()

    def flush(self) -> None:
        self._log.flush()

    def clear(self) -> None:
        self._log.clear()


class MirroredEvents:
    """Events that go into a decision log as well (see `hybridsync.telemetry.events.Events`)."""

    def __init__(self, events: Events, decision_log: DecisionLog) -> None:
        self._events, self._decision_log = events, decision_log
        self.elapsed: Elapsed = events.elapsed

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = self._events.write(kind, phase=phase, wall=wall, **fields)
        self._decision_log.write(kind, phase=phase, **fields)
        return event

    def close(self) -> None:
        self._events.close()
