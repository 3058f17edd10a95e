"""A context of which a test's stages use a few parts alone, and what the doubles of a chief share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.work_deadlines import UNWATCHED
from hybridsync.phases.run_context import RunContext


def context_of(**parts: Any) -> RunContext:
    """Return a context with `parts`; what a test does not name is None, but for clock, tick and watchdog."""
    others: dict[str, Any] = dict.fromkeys(each.name for each in fields(RunContext))
    others |= {"clock": SYSTEM_CLOCK, "tick": lambda: None, "watchdog": UNWATCHED}
    return RunContext(**{**others, **parts})


class ChiefDouble:
    """The state of a chief without parts: what a test sets stands for its ledger, its leases and its phase."""

    ledger: Any = property(lambda self: self)
    leases = phase_members = detector = waits = ledger

    @contextmanager
    def turn(self) -> Iterator[Any]:
        yield self
