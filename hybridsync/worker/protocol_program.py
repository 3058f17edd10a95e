"""Runs a worker program: carries out the effects it yields, and throws a revocation into it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hybridsync.core.errors import PhaseRevoked, StalePhase
from hybridsync.protocols.base import Program
from hybridsync.worker.requests import IO

Effects = Mapping[type, Callable[[Any], IO]]
"""Effect class -> what carries it out by requests; its return value is the effect's result."""


def run_program(program: Program, effects: Effects) -> IO:
    """Run `program` to its end.

    A request that meets a stale phase, or a revocation, revokes the program: `PhaseRevoked` is thrown in at its current
    yield, which no program may survive.

    Raises:
      PhaseRevoked: the program was revoked; the text says why.
      AssertionError: the program yields an effect outside its mode's vocabulary, or catches the revocation.
      Exception: any other error of a request; the program is closed first.
    """
    send, result = program.send, None
    try:
        while True:
            try:
                effect = send(result)
            except StopIteration:
                return
            carry_out = effects.get(type(effect))
            assert carry_out is not None, f"{type(effect).__name__} is not an effect of this mode"
            result = yield from carry_out(effect)
    except (StalePhase, PhaseRevoked) as revoked:
        _revoke(program, revoked)
        raise PhaseRevoked(str(revoked)) from revoked
    finally:
        program.close()


def at_once(answer: Callable[[Any], Any]) -> Callable[[Any], IO]:
    """Return what carries out an effect by a plain call, without a request."""

    def carry_out(effect: Any) -> IO:
        return answer(effect)
        yield  # makes a generator of it

    return carry_out


def _revoke(program: Program, reason: Exception) -> None:
    try:
        program.throw(PhaseRevoked(str(reason)))
    except (PhaseRevoked, StopIteration):
        return
    raise AssertionError("a worker program went on after its phase was revoked; PhaseRevoked is not to be caught")
