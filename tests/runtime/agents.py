"""A head with three hosts, and what its agents say."""

from __future__ import annotations

import dataclasses
from typing import Any

from hybridsync import __version__
from hybridsync.core.clock import Clock
from hybridsync.interfaces.agents import AgentHello, AgentReport
from hybridsync.runtime.supervisor.agent_sessions import (
    AgentAttached,
    AgentEnded,
    AgentEvent,
    AgentSessions,
    SessionNews,
)

DIGEST, TOKEN, LEASE_SECS = "c0ffee", "of the run", 10.0
FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32
"""Sessions."""


def hello(session: str = FIRST, index: int = 1, **fields: Any) -> AgentHello:
    first = AgentHello(f"node{index}", index, f"10.0.0.{index}:1", 4, __version__, DIGEST, session)
    return dataclasses.replace(first, **fields)


def report(*events: str, session: str = FIRST, index: int = 1, first: int = 0, seen: int = 0) -> AgentReport:
    return AgentReport(index, session, first, events, seen, 0.0)


class Wakes:
    """Counts how often a main loop was woken."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def sessions_of(clock: Clock, wake: Any = None, **options: Any) -> AgentSessions:
    given = {"num_hosts": 3, "config_digest": DIGEST, "lease_secs": LEASE_SECS, **options}
    return AgentSessions(wake=wake or Wakes(), clock=clock, **given)


def told(taken: list[tuple[int, SessionNews]]) -> list[str]:
    """Write what was taken as short texts: `1+node1`, `1:line`, `1-`."""
    texts = []
    for index, news in taken:
        match news:
            case AgentAttached(greeting):
                texts.append(f"{index}+{greeting.host}")
            case AgentEvent(line):
                texts.append(f"{index}:{line}")
            case AgentEnded():
                texts.append(f"{index}-")
    return texts
