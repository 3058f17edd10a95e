"""A phase may be revoked while a worker is at any request: the run goes on, and every unit counts once."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hybridsync import EmulationConfig, protocols
from hybridsync.protocols.base import (
    Average,
    AverageReplicas,
    Begin,
    Compute,
    JoinRound,
    Lease,
    LocalUpdate,
    Pull,
    PushPull,
    Ready,
    Version,
)
from hybridsync.protocols.modes import GROUP, LOCKSTEP, SERVER, SyncMode
from hybridsync.runtime.role.chief_wiring import ChiefRole
from hybridsync.trainer import FitResult, Trainer
from hybridsync.worker import group_runner, phase_runner, server_runner
from hybridsync.worker.drive_threads import Carriers, drive
from hybridsync.worker.requests import IO, CallServer
from tests.conformance.drivers import counting
from tests.trainers import events_of, is_exact, tally_trainer

WORKERS, WORKLOAD = 4, 90
SECS = 20.0
STEPS = 3
"""Of a worker by itself: several pushes in a phase, with several units each."""
SLOW = EmulationConfig(compute_secs=0.004)


REQUESTS: dict[type, tuple[str, ...]] = {
    Lease: ("LeaseUnits",),
    Compute: ("ComputeUnit",),
    Average: ("AllReduce",),
    Pull: ("pull",),
    PushPull: ("push_pull",),
    Ready: ("ready",),
    Begin: ("pull", "push"),
    JoinRound: ("JoinGroup",),
    AverageReplicas: ("AverageGroup",),
}
"""Effect -> what its engine asks for (see `name_of`)."""
OF_MODE: dict[SyncMode, dict[type, tuple[str, ...]]] = {
    LOCKSTEP: {LocalUpdate: ("UpdateReplica",)},
    SERVER: {},
    GROUP: {LocalUpdate: ("UpdateOwn",)},
}
FEW = ("LeaseUnits", "pull", "EnterReplica", "download_opt_state")
"""Requests of which each worker makes few in a phase."""


def name_of(request: Any) -> str:
    """Return what a kind of requests is called here."""
    return request.verb if isinstance(request, CallServer) else type(request).__name__


def stops_of(name: str) -> dict[str, bool]:
    """Return where a worker stops in a phase, by name, with whether that is seldom."""
    protocol, yields = protocols.parse(name), yields_of(name)
    of_effect = REQUESTS | OF_MODE[protocol.mode]
    stops = {
        request: count == 1 or request in FEW for kind, count in yields.items() for request in of_effect.get(kind, ())
    }
    if not protocol.mode.is_served:
        stops["EnterReplica"] = True
    if protocol.local_updates:
        stops["download_opt_state"] = True
    return stops


def yields_of(name: str) -> dict[type, int]:
    """Return the effects that a worker's program yields in its first two leases, each with how often."""
    seen: dict[type, int] = {}
    program = protocols.parse(name).worker_program(WORKERS)
    result: Any = None
    while True:
        try:
            effect = program.send(result)
        except StopIteration:
            return seen
        kind = type(effect)
        seen[kind] = seen.get(kind, 0) + 1
        result = Version(0, None)
        if kind is Lease:
            result = (seen[kind],) if seen[kind] <= 2 else None


class Revoker:
    """Breaks the phase when a worker is at a request of a kind for the `at`-th time, once in each of some phases.

    The worker stands where it is until everybody is being called back.

    Args:
      kind: of the request, by name.
      at: which of those of all workers in a phase.
      carried_out: whether the request is carried out before the phase breaks, or behind it.
      times: how many phases in a row are broken.
    """

    def __init__(self, kind: str, at: int, *, carried_out: bool, times: int = 1) -> None:
        self._kind, self._at, self._carried_out, self._times = kind, at, carried_out, times
        self._lock = threading.Lock()
        self._seen: dict[Any, int] = {}
        self.broken: list[Any] = []
        self.chief: Callable[[], ChiefRole | None] = lambda: None

    def drive(self, io: IO, carriers: Carriers, *rest: Any) -> None:
        drive(io, {kind: self._stop(do) for kind, do in carriers.items()}, *rest)

    def _stop(self, do: Callable[[Any], Any]) -> Callable[[Any], Any]:
        hooked = self._hook(do)
        return lambda request: (hooked if name_of(request) == self._kind else do)(request)

    def _hook(self, do: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handler(effect: Any) -> Any:
            if not self._carried_out:
                self._meet()
            result = do(effect)
            if self._carried_out:
                self._meet()
            return result

        return handler

    def _meet(self) -> None:
        chief = self.chief()
        assert chief is not None
        control, phase_id = chief.control, chief.run_state.leases.phase_id
        with self._lock:
            if len(self.broken) >= self._times or phase_id in self.broken:
                return
            self._seen[phase_id] = self._seen.get(phase_id, 0) + 1
            if self._seen[phase_id] < self._at:
                return
            self.broken.append(phase_id)
        with control.turn() as state:
            state.break_phase("test")
        assert control.wait_until(lambda state: state.phase_members.gathering, SECS), "nobody is called back"


def fit(plan: str, revoker: Revoker, workdir: pathlib.Path, patch: pytest.MonkeyPatch) -> FitResult:
    for runner in (phase_runner, server_runner, group_runner):
        patch.setattr(runner, "drive", revoker.drive)
    trainer: Trainer = tally_trainer(plan, WORKLOAD, workers=WORKERS, workdir=workdir, emulation=SLOW)
    revoker.chief = lambda: trainer._chief
    return trainer.fit()


def check(result: FitResult, workdir: pathlib.Path, num_broken: int) -> None:
    """Look at the tally, at the accounts, and at what is written of the phases."""
    assert result.completed and is_exact(result.summary.final), result.summary
    units = result.summary.units
    assert units.applied == units.workload == WORKLOAD
    assert units.outstanding == 0 and units.issued == WORKLOAD + units.dropped
    if not any(protocols.parse(event["protocol"]).mode is GROUP for event in events_of(workdir, "phase_entered")):
        assert units.rolled_back == 0, "replicas in groups have no state of all but that of their last synchronisation"
    entered, ended = events_of(workdir, "phase_entered"), events_of(workdir, "phase_ended")
    after = [event for event in entered if event["reason"] == "death"]
    assert [event["why"] for event in after] == [f"phase {event['phase'] - 1} cannot go on: test" for event in after]
    assert len([event for event in ended if "why" in event]) == len(after) == num_broken
    assert all(event["members"] == list(range(WORKERS)) for event in entered), "nobody was given up"
    assert [event["fingerprint"] for event in entered[1:]] == [event["fingerprint"] for event in ended[:-1]]
    assert [event["phase"] for event in entered] == list(range(1, len(entered) + 1))


STOPS = [(name, kind) for name in sorted(protocols.REGISTRY) for kind in stops_of(name)]
FIRST = {(protocols.parse(name).mode, kind): (name, kind) for name, kind in reversed(STOPS)}
"""(how workers meet, request) -> the first protocol that has it."""


def in_every_suite(*values: Any, where: bool) -> Any:
    """Return parameters that run with the soak tests alone, but `where`."""
    return pytest.param(*values, marks=() if where else pytest.mark.soak)


@pytest.mark.parametrize(
    ("name", "kind", "carried_out"),
    [in_every_suite(*stop, late, where=stop in FIRST.values()) for stop in STOPS for late in (False, True)],
)
def test_a_phase_that_is_revoked_at_any_request_is_followed_by_one_with_every_unit_exact(
    name: str, kind: str, carried_out: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoker = Revoker(kind, WORKERS - 1 if stops_of(name)[kind] else 3 * WORKERS - 1, carried_out=carried_out)
    spec = counting(name, STEPS)
    result = fit(f"{spec}:60%,bsp:20%,{spec}", revoker, tmp_path / "run", monkeypatch)
    assert len(revoker.broken) == 1, f"no worker was ever at {kind}"
    check(result, tmp_path / "run", 1)


@pytest.mark.parametrize(("name", "kind"), [in_every_suite(*stop, where=stop in FIRST.values()) for stop in STOPS])
def test_phases_that_are_revoked_at_their_first_request_again_and_again_lose_nothing(
    name: str, kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoker = Revoker(kind, 1, carried_out=False, times=3)
    result = fit(f"{counting(name, STEPS)}:60%,asp", revoker, tmp_path / "run", monkeypatch)
    assert len(revoker.broken) == 3
    check(result, tmp_path / "run", 3)
