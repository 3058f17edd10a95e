"""Carries out what workers ask for that hold the state themselves: in lock-step, or in groups."""

from __future__ import annotations

from typing import Any

from hybridsync.core.errors import HybridSyncError, RoleLost, WaitTimeout
from hybridsync.lab.simulator.drive_events import PENDING, Carriers, EventDriver, Then
from hybridsync.lab.simulator.simulated_process import TRY_SECS, is_lost
from hybridsync.worker.requests import (
    AllGather,
    AllReduce,
    AverageGroup,
    ComputeUnit,
    CopyReplica,
    EnterReplica,
    JoinGroup,
    SendPart,
    StoreFullSync,
    UpdateOwn,
    UpdateReplica,
)


class ReplicaCarriers:
    """Carries out what lock-step and groups share: the starting state, and a slow worker's part in a collective.

    Args:
      driver: driver of the worker's engine.
    """

    def __init__(self, driver: EventDriver) -> None:
        self._driver, self._simulated, self._replica = driver, driver.simulated, driver.worker.replica

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {EnterReplica: self._fetch, SendPart: self._send}

    def _fetch(self, request: EnterReplica, then: Then) -> Any:
        simulated = self._simulated
        secs = simulated.transfer_secs if self._replica.lacks(request.phase) else 0.0
        simulated.loop.after(secs, self._enter, request, then, simulated.loop.now)
        return PENDING

    def _enter(self, request: EnterReplica, then: Then, began: float) -> None:
        if self._driver.is_stale(self._enter, request, then, began):
            return
        loop = self._simulated.loop
        try:
            self._replica.enter(request.phase)
        except HybridSyncError as error:
            if isinstance(error, (RoleLost, WaitTimeout)) and not is_lost(error, loop.now - began):
                loop.after(TRY_SECS, self._enter, request, then, began)
            else:
                then(error)
            return
        self._driver.worker.recorder.stamps = self._replica.stamps
        then(None)

    def _send(self, request: SendPart, then: Then) -> Any:
        simulated = self._simulated
        secs = simulated.part_secs(self._driver.worker.id, request.unit, request.what)
        if not secs:
            return False
        simulated.loop.after(secs, then, True)
        return PENDING


class LockstepCarriers:
    """The requests of a lock-step phase.

    Args:
      driver: driver of the worker's engine.
    """

    def __init__(self, driver: EventDriver) -> None:
        self._driver, self._simulated, self._replica = driver, driver.simulated, driver.worker.replica
        self._index = driver.phase.members.index(driver.worker.id)
        self._all_reduce_of = driver.simulated.all_reduce(driver.phase)

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {
            **ReplicaCarriers(self._driver).carriers,
            ComputeUnit: self._compute,
            AllReduce: self._all_reduce,
            AllGather: self._all_gather,
            UpdateReplica: self._update,
        }

    def _compute(self, request: ComputeUnit, then: Then) -> Any:
        parameters = self._simulated.arithmetic.parameters(self._replica.state)
        return self._driver.compute(ComputeUnit(request.unit, parameters), then)

    def _all_reduce(self, request: AllReduce, then: Then) -> Any:
        member = self._driver.worker
        self._all_reduce_of.deliver(self._index, request.contribution, request.num_units, member, then)
        return PENDING

    def _all_gather(self, request: AllGather, then: Then) -> Any:
        self._all_reduce_of.gather_reasons(self._index, request.reasons, then)
        return PENDING

    def _update(self, request: UpdateReplica, then: Then) -> Any:
        state, units, simulated = self._replica.state, request.units, self._simulated
        if units:
            state = request.total.applied_to(state, units=len(units), factor=request.factor)
        simulated.loop.after(simulated.network.cluster.costs.update_secs, self._updated, request, state, then)
        return PENDING

    def _updated(self, request: UpdateReplica, state: Any, then: Then) -> None:
        if not self._driver.is_stale(self._updated, request, state, then):
            self._replica.update(request.units, state, request.factor, request.slots, request.dropped)
            then(None)


class GroupCarriers:
    """The requests of a group phase.

    Args:
      driver: driver of the worker's engine.
    """

    def __init__(self, driver: EventDriver) -> None:
        self._driver, self._simulated, self._replica = driver, driver.simulated, driver.worker.replica

    @property
    def carriers(self) -> Carriers:
        """Carriers of each kind of request."""
        return {
            **ReplicaCarriers(self._driver).carriers,
            CopyReplica: lambda request, then: self._replica.state,
            UpdateOwn: self._update,
            JoinGroup: self._join,
            AverageGroup: self._average,
            StoreFullSync: self._store,
        }

    def _update(self, request: UpdateOwn, then: Then) -> Any:
        self._simulated.loop.after(self._simulated.network.cluster.costs.update_secs, self._updated, request, then)
        return PENDING

    def _updated(self, request: UpdateOwn, then: Then) -> None:
        driver, simulated = self._driver, self._simulated
        if driver.is_stale(self._updated, request, then):
            return
        state = simulated.arithmetic.step(request.state, request.contribution, request.factor)
        self._replica.stamp_update()
        simulated.watch.stepped(driver.worker, driver.phase, request.unit)
        then(state)

    def _join(self, request: JoinGroup, then: Then) -> Any:
        simulated = self._simulated
        kind = "serve" if request.request.serves else "meet"  # one of each may be in progress
        self._driver.worker.calls.ask(kind, lambda: simulated.group_for(request.request), then)
        return PENDING

    def _average(self, request: AverageGroup, then: Then) -> Any:
        driver, simulated, reply = self._driver, self._simulated, request.reply
        if len(reply.members) == 1:
            return simulated.arithmetic.averaged([request.state], reply)[0]
        simulated.average(driver.phase, reply).deliver(request.state, driver.worker, then)
        return PENDING

    def _store(self, request: StoreFullSync, then: Then) -> None:
        self._replica.store_full_sync(request.reply, request.state, request.factor)
