"""One worker in one phase: what every engine knows of itself, and how it runs the protocol's program. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from hybridsync.core.errors import PhaseRevoked, StalePhase
from hybridsync.interfaces.phase import Phase
from hybridsync.protocols import base
from hybridsync.protocols.base import Program
from hybridsync.training.local_updates import Stepping
from hybridsync.worker.requests import IO

if TYPE_CHECKING:
    from hybridsync.worker.stats import WorkerRecorder


class Numerics(Stepping, Protocol):
    """Computes at once, without a wait: the compiled programs, or a simulation's arithmetic."""

    @property
    def zero(self) -> Any:
        """The contribution of no unit."""
        ...

    def sum(self, contributions: Sequence[Any], /) -> Any:
        """Return the ordered sum of contributions, at least one."""
        ...

    def parameters(self, state: Any, /) -> Any:
        """Return what a gradient is computed on."""
        ...

    def loss(self, contribution: Any, /) -> Any:
        """Return a contribution's loss; None where there is none."""
        ...

    def non_finite(self, contribution: Any, /) -> str:
        """Name the first entry of a contribution that is no finite number; "" where all are."""
        ...


class PhaseMember:
    """One worker in one phase.

    Args:
      worker: id of the worker.
      phase: phase that the worker takes part in.
      recorder: notes what the worker does; its clock is the engine's.

    Attributes:
      protocol: protocol of the phase.
      incarnation: incarnation of the worker's process.
      now: returns monotonic seconds.
    """

    __slots__ = ("incarnation", "now", "phase", "protocol", "recorder", "worker")

    def __init__(self, worker: int, phase: Phase, recorder: WorkerRecorder) -> None:
        self.worker, self.phase, self.recorder = worker, phase, recorder
        self.protocol = phase.protocol
        self.incarnation = recorder.incarnation
        self.now = recorder.clock.monotonic

    def program(self) -> base.Program:
        """Return a fresh worker program of the phase's protocol."""
        return self.protocol.worker_program(len(self.phase.members))


CarryOut = Callable[[Any], Any]
"""Carries an effect out: returns its result, or the requests (`IO`) that return it."""
Effects = Mapping[type, CarryOut]
"""Effect class -> what carries it out."""


class _Vocabulary(dict[type, CarryOut]):
    """The effects of one mode; another one is a defect of the protocol."""

    def __missing__(self, kind: type) -> CarryOut:
        raise AssertionError(f"{kind.__name__} is not an effect of this mode")


def run_program(program: Program, effects: Effects) -> IO:
    """Run `program` to its end.

    A request that meets a stale phase, or a revocation, revokes the program: `PhaseRevoked` is thrown in at its current
    yield, which no program may survive.

    Raises:
      PhaseRevoked: the program was revoked; the text contains the reason.
      AssertionError: the program yields an effect outside its mode's vocabulary, or catches the revocation.
      Exception: any other error of a request; the program is closed first.
    """
    send, known, result = program.send, _Vocabulary(effects), None
    try:
        while True:
            try:
                effect = send(result)
            except StopIteration:
                return
            result = known[type(effect)](effect)
            if type(result) is GeneratorType:
                result = yield from result
    except (StalePhase, PhaseRevoked) as revoked:
        _revoke(program, revoked)
        raise PhaseRevoked(str(revoked)) from revoked
    finally:
        program.close()


def _revoke(program: Program, reason: Exception) -> None:
    try:
        program.throw(PhaseRevoked(str(reason)))
    except (PhaseRevoked, StopIteration):
        return
    raise AssertionError("a worker program went on after its phase was revoked; PhaseRevoked is not to be caught")
