"""One worker in one phase: what every engine knows of itself. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hybridsync.interfaces.phase import Phase
from hybridsync.protocols import base

if TYPE_CHECKING:
    from hybridsync.worker.stats import WorkerRecorder


class Numerics(Protocol):
    """Computes at once, without a wait: the compiled programs, or a simulation's arithmetic."""

    def loss(self, contribution: Any, /) -> Any:
        """Return a contribution's loss; None where there is none."""
        ...

    def non_finite(self, contribution: Any, /) -> str:
        """Name the first entry of a contribution that is no finite number; "" where all are."""
        ...


class PhaseMember:
    """One worker in one phase.

    Args:
      worker: id.
      phase: that it takes part in.
      recorder: notes what the worker does; its clock is the engine's.

    Attributes:
      protocol: of the phase.
      incarnation: of the worker's process.
      now: returns monotonic seconds.
    """

    def __init__(self, worker: int, phase: Phase, recorder: WorkerRecorder) -> None:
        self.worker, self.phase, self.recorder = worker, phase, recorder
        self.protocol = phase.protocol
        self.incarnation = recorder.incarnation
        self.now = recorder.clock.monotonic

    def program(self) -> base.Program:
        """Return a fresh worker program of the phase's protocol."""
        return self.protocol.worker_program(len(self.phase.members))

    def begin_unit(self, unit: int) -> float:
        """Record that the computation of `unit` begins; returns when."""
        self.recorder.computing(unit)
        return self.now()

    def end_unit(self, category: str, started: float, loss: Any) -> None:
        """Record that the computation that began at `started` has ended."""
        self.recorder.turn_to("")
        self.recorder.compute(category, started, self.now(), loss)
