"""A role's start that is ordered again while the fork server carries out the former order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hybridsync.runtime.agent import role_process
from hybridsync.runtime.agent.host_messages import StartRole
from hybridsync.runtime.agent.role_process import Starts


class Process:
    """A process that the fork server is asked for, and that has started once the test says so."""

    def __init__(self, client: Any, role: str, role_id: int, restart_count: int, *rest: Any, **fields: Any) -> None:
        self.restart_count, self.is_there = restart_count, False
        self.done: list[str] = []

    def has_started(self) -> bool:
        return self.is_there

    def kill(self) -> None:
        self.done.append("kill")

    def reap(self) -> int:
        self.done.append("reap")
        return -9

    def close(self) -> None:
        self.done.append("close")


def order(restart_count: int) -> StartRole:
    spec = SimpleNamespace(role="worker", role_id=0, restart_count=restart_count, num_threads=1)
    return StartRole(spec, "start")  # pyright: ignore[reportArgumentType]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The processes that were asked for, in order."""
    found: list[Process] = []

    def process(*values: Any, **fields: Any) -> Process:
        found.append(Process(*values, **fields))
        return found[-1]

    client = SimpleNamespace(fd=0, close=lambda: None)
    monkeypatch.setattr(role_process, "ForkServerClient", lambda *values: client)
    monkeypatch.setattr(role_process, "RoleProcess", process)
    return found


def starts() -> Starts:
    logs: Any = SimpleNamespace(path=lambda name: name, open=None)
    return Starts((), logs, lambda line: None, 30.0, None)


def test_a_process_under_way_is_not_handed_over_with_another_order(made: list[Process]) -> None:
    asked = starts()
    asked.request(order(0))
    assert list(asked.take()) == []
    asked.request(order(1))  # while the fork server starts the first
    first = made[0]
    first.is_there = True
    assert list(asked.take()) == [] and first.done == ["kill", "reap"]
    second = made[1]
    second.is_there = True
    ((process, started),) = cast("list[tuple[Process, StartRole]]", list(asked.take()))
    assert process is second and second.restart_count == started.spec.restart_count == 1
    assert list(asked.take()) == [] and len(made) == 2


def test_an_order_that_still_waits_is_replaced(made: list[Process]) -> None:
    asked = starts()
    asked.request(order(0))
    asked.request(order(1))
    assert list(asked.take()) == []
    (process,) = made
    process.is_there = True
    ((_, started),) = cast("list[tuple[Process, StartRole]]", list(asked.take()))
    assert started.spec.restart_count == process.restart_count == 1
