"""A phase that is broken, on a real board, and holders of states that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hybridsync.core.clock import SYSTEM_CLOCK
from hybridsync.core.errors import StaleEpoch
from hybridsync.core.plan import Epoch
from hybridsync.interfaces.messages import Capture, Held, RoleEvent
from hybridsync.interfaces.phase import Phase
from hybridsync.interfaces.ports import ReaderPort
from hybridsync.phases.recovery import Found, Recovery
from tests.chief.chiefs import SERVER, WatchedChief, begin, enter, enter_all, make_chief

HOME = "chief"
WORKERS = (0, 1, 2, 3)
SECS = 10.0


def capture_of(epoch: Epoch, units: int, capture_id: int = 1) -> Capture:
    applied = ((0, units),) if units else ()
    return Capture(capture_id, Held(epoch, units, units, f"{units:04x}"), applied, (), 0, 0.0, 0.0)


class Keeper:
    """The chief's memory of the last commit."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.num_offers = 0

    def offer(self) -> Capture:
        self.num_offers += 1
        return capture_of(Epoch(1, 0), self.units, capture_id=99)

    def take(self, capture: Capture, source: str, reader: ReaderPort) -> None:
        raise AssertionError(f"no test has the state of {source} kept")


class Scene:
    """A phase that is broken, the roles around it, and who was asked for what."""

    def __init__(self, spec: str = "bsp", *, kept: int = 4, units: int = 0) -> None:
        self.chief: WatchedChief = make_chief()
        servers, start = (SERVER,) if spec != "bsp" else (), capture_of(Epoch(0, 0), units)
        self.phase: Phase = begin(self.chief, spec, servers=servers, capture=start)
        self.keeper = Keeper(kept)
        self.asked: list[tuple[str, Epoch, bool]] = []
        self.answers: dict[str, Capture | Exception] = {}
        self.captured: tuple[Capture, str] = capture_of(Epoch(1, 0), 0), HOME
        self.committing = 0
        self._recovery: Recovery | None = None

    def holder_at(self, address: str) -> Any:
        scene = self

        class Holder:
            def capture(self, epoch: Epoch, final: bool) -> Capture:
                scene.asked.append((address, epoch, final))
                answer = scene.answers.get(address, StaleEpoch(f"{address} is in another epoch"))
                if isinstance(answer, Exception):
                    raise answer
                return answer

        return Holder()

    def back(self, worker: int, units: int | None, epoch: Epoch | None = None) -> None:
        """Let a worker come back with the state after so many units, which it can hand over."""
        epoch = epoch or self.phase.epoch
        capture = None if units is None else capture_of(epoch, units)
        if capture is not None:
            self.answers[f"worker:{worker}"] = capture
        enter(self.chief, worker, after=self.phase.epoch, held=capture.held if capture else None)

    def die(self, worker: int) -> None:
        self.chief.service.role_lost(RoleEvent("worker", worker, 100 + worker, "exit code -9", 0.0))

    def await_newer(self, units: int) -> bool:
        if self.committing <= units:
            return False
        self.keeper.units = self.committing
        return True

    def gather(self, unit_secs: float = 0.0) -> Found:
        self.chief.control.gather()
        self._recovery = self._recovery or Recovery(
            self.chief.control, self.holder_at, self.keeper, HOME, SYSTEM_CLOCK, self.await_newer, gather_secs=0.2
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
    scene.chief.control.break_phase("test")
    return scene
