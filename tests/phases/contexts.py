"""A context of which a test's stages use a few parts alone."""

from __future__ import annotations

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
