"""What the threads of a run declare to a watchdog, seen in one process, where nobody is ever ended."""

from __future__ import annotations

import re
import threading
from contextlib import AbstractContextManager, nullcontext

import pytest

from hybridsync.config import HangConfig
from hybridsync.core.deadlines import transfer_secs
from hybridsync.core.work_deadlines import COMPILE_SECS, SLACK_SECS, UNLIMITED, Piece, WatchedUnits, Watching
from hybridsync.phases.checkpointing import COMMIT_DEADLINE_SECS, LEAVING_SECS
from hybridsync.runtime.role.watchdog import Watchdog
from tests.trainers import is_exact, tally_trainer

WORKLOAD = 60
SMALL_SECS = transfer_secs(0)
"""What a transfer of the tally's few bytes may take, rounded."""


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[float]]:
    """Return the limits of all pieces by their names, in which N stands for a number."""
    found: dict[str, set[float]] = {}
    lock = threading.Lock()

    def note(name: str, limit_secs: float) -> None:
        with lock:
            found.setdefault(re.sub(r"\d+", "N", name), set()).add(limit_secs)

    def begin(self: Watching, name: str, limit_secs: float) -> Piece:
        note(name, limit_secs)
        return Piece(name, limit_secs, 0.0)

    def work(self: Watching, name: str, limit_secs: float) -> AbstractContextManager[object]:
        note(name, limit_secs)
        return nullcontext()

    def refuse(self: Watchdog) -> None:
        raise AssertionError("a watchdog would end the user's own process")

    monkeypatch.setattr(Watching, "begin", begin)
    monkeypatch.setattr(Watching, "work", work)
    monkeypatch.setattr(Watching, "units", lambda self, limit: WatchedUnits(self, limit))
    monkeypatch.setattr(Watchdog, "start", refuse)
    return found


def test_every_role_declares_its_work_and_no_watchdog_looks_at_threads_of_the_users_process(
    declared: dict[str, set[float]],
) -> None:
    assert is_exact(tally_trainer("bsp:30%,asp:30%,adpsgd", WORKLOAD).fit().summary.final)
    short = {name: limits for name, limits in declared.items() if name and not name.startswith(("unit", "the stage"))}
    assert {name: {round(limit) for limit in limits if limit < UNLIMITED} for name, limits in short.items()} == {
        "the state of phase N": {2 * SMALL_SECS},
        "reading the data of a unit": {HangConfig.read_secs},
        "the mesh of phase N": {COMPILE_SECS},
        "a lock-step step": set(),
        "the average of a group": set(),
        "a pull": {4 * SMALL_SECS},
        "a push": {4 * SMALL_SECS},
        "an update": {2 * SMALL_SECS},
        "the commit of N units": {COMMIT_DEADLINE_SECS + 2 * SMALL_SECS},
        "the evaluation of N units": set(),  # user code of any length: the wait for it has a limit
        "the evaluation at unit N": {COMMIT_DEADLINE_SECS + LEAVING_SECS + SLACK_SECS},
        "the last commits": {COMMIT_DEADLINE_SECS + SLACK_SECS},
    }
    assert COMPILE_SECS in declared["unit N"], "the first unit of a phase may compile"
    assert HangConfig.compute_secs in declared["unit N"], "the others go by the recent ones, which were short"
    stages = {name.removeprefix("the stage ") for name in declared if name.startswith("the stage ")}
    assert stages >= {"RUN", "STOP_LEASES", "CAPTURE", "RESERVE", "ANNOUNCE", "COMMIT", "AWAIT_COMMIT"}
