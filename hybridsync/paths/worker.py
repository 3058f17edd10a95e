"""The worker loop, the same in a thread and in a process: take the next phase, run its engine, until none follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hybridsync import protocols
from hybridsync.clock import Clock
from hybridsync.errors import WaitTimeout
from hybridsync.messages import PhaseRequest
from hybridsync.paths.recorder import WorkerRecorder
from hybridsync.paths.replica import Replica
from hybridsync.plan import NO_EPOCH, Epoch, Phase
from hybridsync.ports import ChiefPort
from hybridsync.protocols.base import Path

PHASE_DEADLINE_SECS = 900.0
"""How long a worker waits for a next phase: the slowest role may be compiling for ten minutes."""


class Engine(Protocol):
    """Runs phases of one path."""

    def run(self, phase: Phase) -> None: ...


class WorkerLoop:
    """One worker's life.

    Args:
      worker: id.
      chief: says what comes next.
      engines: by path.
      replica: what this worker holds at the end of a lock-step phase.
      recorder: carries the incarnation and the current epoch.
    """

    def __init__(
        self,
        worker: int,
        chief: ChiefPort,
        engines: Mapping[Path, Engine],
        replica: Replica,
        recorder: WorkerRecorder,
        clock: Clock,
    ) -> None:
        self._worker, self._chief, self._engines = worker, chief, engines
        self._replica, self._recorder, self._clock = replica, recorder, clock

    def run(self) -> None:
        """Work until the chief says that the run is over.

        Raises:
          StaleIncarnation: another process has taken this worker's place.
          WaitTimeout: the chief announced no phase in time.
        """
        epoch, held = NO_EPOCH, None
        while (phase := self._next_phase(epoch, held)) is not None:
            path = protocols.parse(phase.spec).path
            self._recorder.enter(phase.epoch)
            self._engines[path].run(phase)
            held = self._replica.leave() if path is Path.SYNC else None
            epoch = phase.epoch

    def _next_phase(self, after: Epoch, held) -> Phase | None:
        deadline = self._clock.monotonic() + PHASE_DEADLINE_SECS
        while self._clock.monotonic() < deadline:
            reply = self._chief.next_phase(PhaseRequest(self._worker, self._recorder.incarnation, after, held))
            if reply.done:
                return None
            if reply.phase is not None:
                return reply.phase
        raise WaitTimeout(
            f"worker {self._worker} waited {PHASE_DEADLINE_SECS:g} s for the phase after epoch {after}; the chief "
            "answers but announces none"
        )
