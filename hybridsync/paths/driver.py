"""Drives a worker program: carries out the effects it yields, and throws a revocation into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hybridsync.errors import PhaseRevoked, StaleEpoch
from hybridsync.protocols.base import Program

Handlers = Mapping[type, Callable[[Any], Any]]
"""Effect class -> what carries it out; its return value is the effect's result."""


def drive(program: Program, handlers: Handlers) -> None:
    """Run `program` to its end.

    A handler that meets a stale epoch, or raises PhaseRevoked itself, revokes the program: `PhaseRevoked` is thrown in
    at its current yield, which no program may survive.

    Raises:
      PhaseRevoked: the program was revoked; the text says why.
      AssertionError: the program yields an effect outside its path's vocabulary, or catches the revocation.
      Exception: whatever else a handler raises; the program is closed first.
    """
    result: Any = None
    try:
        while True:
            try:
                effect = program.send(result)
            except StopIteration:
                return
            handler = handlers.get(type(effect))
            assert handler is not None, f"{type(effect).__name__} is not an effect of this path"
            result = handler(effect)
    except (StaleEpoch, PhaseRevoked) as revoked:
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
