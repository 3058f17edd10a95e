"""A phase that is broken, at a real chief, and holders of states that a test plays."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from hybridsync.core.errors import StalePhase
from hybridsync.core.plan import PhaseId
from hybridsync.interfaces.messages import RoleEvent, Snapshot, StateVersion
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ReaderPort
from hybridsync.phases.recovery import Found, Recovery
from tests.chief.chiefs import SERVER, WatchedChief, begin, enter, enter_all, make_chief
from tests.phases.contexts import context_of

HOME = "chief"
WORKERS = (0, 1, 2, 3)
SECS = 10.0
LIMITS: Any = SimpleNamespace(compute_secs=0.3, read_secs=SECS, compile_secs=0.2, silent_secs=0.0)
"""Shorter than a configuration may have them."""


def snapshot_of(phase_id: PhaseId, units: int, snapshot_id: int = 1) -> Snapshot:
    applied = ((0, units),) if units else ()
    return Snapshot(snapshot_id, StateVersion(phase_id, units, units, f"{units:04x}"), applied, (), 0, 0.0, 0.0)


class CommittedSource:
    """The chief's memory of the last commit."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.num_offers = 0

    def publish(self) -> Snapshot:
        self.num_offers += 1
        return snapshot_of(PhaseId(1, 0), self.units, snapshot_id=99)

    def adopt(self, snapshot: Snapshot, source: str, reader: ReaderPort) -> None:
        raise AssertionError(f"no test has the state of {source} kept")


class Scene:
    """A phase that is broken, the roles around it, and who was asked for what."""

    def __init__(self, spec: str = "bsp", *, kept: int = 4, units: int = 0) -> None:
        self.chief: WatchedChief = make_chief()
        servers, start = (SERVER,) if spec != "bsp" else (), snapshot_of(PhaseId(0, 0), units)
        self.phase: Phase = begin(self.chief, spec, servers=servers, snapshot=start)
        self.committed_source = CommittedSource(kept)
        self.asked: list[tuple[str, PhaseId, bool]] = []
        self.answers: dict[str, Snapshot | Exception | deque[Any]] = {}
        self.captured: tuple[Snapshot, str] = snapshot_of(PhaseId(1, 0), 0), HOME
        self.committing = 0
        self._recovery: Recovery | None = None

    def holder_at(self, address: str) -> Any:
        scene = self

        class Holder:
            def take_snapshot(self, phase_id: PhaseId, final: bool, place: int = 0) -> Snapshot:
                scene.asked.append((address, phase_id, final))
                answer = scene.answers.get(address, StalePhase(f"{address} is in another phase"))
                if isinstance(answer, deque):
                    answer = answer.popleft()
                if isinstance(answer, Exception):
                    raise answer
                return answer

        return Holder()

    def back(self, worker: int, units: int | None, phase_id: PhaseId | None = None) -> None:
        """Let a worker come back with the state after so many units, which it can hand over."""
        phase_id = phase_id or self.phase.id
        snapshot = None if units is None else snapshot_of(phase_id, units)
        if snapshot is not None:
            self.answers[f"worker:{worker}"] = snapshot
        enter(self.chief, worker, after=self.phase.id, held=snapshot.held if snapshot else None)

    def die(self, worker: int) -> None:
        self.chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, "exit code -9", 0.0))

    def await_newer(self, units: int, tick: Callable[[], None]) -> bool:
        if self.committing <= units:
            return False
        self.committed_source.units = self.committing
        return True

    def gather(self, unit_secs: float = 0.0, limits: Any = LIMITS) -> Found:
        with self.chief.control.turn() as state:
            state.gather()
        context = context_of(control=self.chief.control, config=SimpleNamespace(hang=limits), saving=self)
        self._recovery = self._recovery or Recovery(
            context, self.holder_at, self.committed_source, HOME, gather_secs=0.2
        )
        return self._recovery.gather(self.phase, self.captured, unit_secs)


@contextmanager
def meanwhile(do: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread, while the block goes on."""
    thread = threading.Timer(0.05, do)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECS)


def lock_step(units: int = 0) -> Scene:
    """Return a lock-step phase that began with `units`, that all have entered and worker 2 has left dead."""
    scene = Scene("bsp", units=units)
    enter_all(scene.chief, scene.phase)
    scene.die(2)
    return scene


def served() -> Scene:
    """Return an asynchronous phase that all have entered, broken by a worker's word."""
    scene = Scene("asp")
    enter_all(scene.chief, scene.phase)
    with scene.chief.control.turn() as state:
        state.break_phase("test")
    return scene
