"""The commands of a run's user at its chief: what is answered (`CommandPort`), and which orders are kept.

An order is a protocol that takes the place of the plan's for the rest of a stage. It is durable before its user hears
that it was taken. It is pending until a phase is entered for it; from then on it belongs to the stage of the plan that
this phase is in, and holds to that stage's end, even if the chief is replaced. A refused command changes nothing.

>>> orders = Orders()
>>> orders.give("ssp", 40, "the network is slow").number, orders.of(1)
(1, Order(number=1, spec='ssp', units=40, reason='the network is slow', stage=-1))
>>> orders.begin(1).stage, orders.pending, orders.of(0), orders.bound(1).spec
(1, None, None, 'ssp')
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from absl import logging

from hybridsync import protocols
from hybridsync.core.errors import HybridSyncError, NotRunning, WorkdirError
from hybridsync.core.plan import Stage
from hybridsync.interfaces.commands import (
    PENDING,
    Figure,
    HostUnits,
    MemberStatus,
    Order,
    StatusReply,
    StopReply,
    StopRequest,
    SwitchReply,
    SwitchRequest,
    highest,
)
from hybridsync.interfaces.phase import Phase
from hybridsync.telemetry.run_figures import Newest

if TYPE_CHECKING:  # it keeps the orders
    from hybridsync.chief.run_state import RunState


class OrderStore(Protocol):
    """Keeps the orders of a run.

    Attributes:
      newest: highest number of an order that was ever kept, though it may be gone; 0 for none.
    """

    @property
    def newest(self) -> int: ...

    def read(self) -> tuple[Order, ...]:
        """Return what is kept."""
        ...

    def write(self, orders: tuple[Order, ...]) -> None:
        """Replace what is kept; it is durable on return.

        Raises:
          WorkdirError: the disk refuses; what was kept is kept.
        """
        ...


class OrdersInMemory:
    """Orders of a run that leaves nothing."""

    def __init__(self) -> None:
        self._orders: tuple[Order, ...] = ()
        self.newest = 0

    def read(self) -> tuple[Order, ...]:
        return self._orders

    def write(self, orders: tuple[Order, ...]) -> None:
        self._orders, self.newest = orders, highest(orders, self.newest)


def _parsed(spec: str) -> str:
    protocols.resolve(Stage.parse(spec))
    return spec


class Orders:
    """The orders of one run: at most one that is pending, and one for each stage of the plan.

    The lock guards them and the store. It is not the run's: a disk may take long to write.

    Args:
      store: keeps them; None forgets them with the process.
      check: spec -> the spec that a phase is to have; raises PlanError or ConfigError where it cannot be used.
    """

    def __init__(self, store: OrderStore | None = None, check: Callable[[str], str] = _parsed) -> None:
        self._store = store or OrdersInMemory()
        self.check = check
        self._lock = threading.Lock()
        self._orders = self._store.read()
        self._stage = PENDING
        self._is_kept, self._was_refused = True, False
        self._news = list(self._orders)

    @property
    def pending(self) -> Order | None:
        """The order that no phase was entered for yet."""
        return self.bound(PENDING)

    def bound(self, stage: int) -> Order | None:
        """Return the order that a phase of this stage was entered for."""
        return next((order for order in self._orders if order.stage == stage), None)

    def of(self, stage: int) -> Order | None:
        """Return what is to be under way in a stage that is under way: the pending order, or the stage's own."""
        return self.pending or self.bound(stage)

    @property
    def held(self) -> Order | None:
        """The order that is pending, or else that of the current stage."""
        return self.of(self._stage)

    def enter(self, stage: int) -> None:
        """Note which stage is under way: `begin` does so, too."""
        self._stage = stage

    def give(self, spec: str, units: int, reason: str = "") -> Order:
        """Take an order in the place of the one that is pending; it is durable on return.

        Raises:
          WorkdirError: the disk refuses; nothing has changed.
        """
        with self._lock:
            order = Order(self._store.newest + 1, spec, units, reason)
            orders = self._with(order)
            self._store.write(orders)
            self._orders, self._is_kept = orders, True
            self._news.append(order)
        return order

    def begin(self, stage: int) -> Order | None:
        """Have the pending order belong to `stage`, for which a phase is entered; returns the order of that stage.

        The order itself is durable already, and a phase contains the number of the order that it carries out: training
        does not end because a disk refuses this (see `keep`).
        """
        with self._lock:
            self.enter(stage)
            if (pending := self.pending) is not None:
                self._orders, self._is_kept = self._with(replace(pending, stage=stage)), False
        self.keep()
        return self.bound(stage)

    def keep(self) -> None:
        """Make durable what `begin` has changed, if it is not yet: a refusal is logged once, and tried again later."""
        with self._lock:
            if self._is_kept:
                return
            try:
                self._store.write(self._orders)
            except WorkdirError as refusal:
                if not self._was_refused:
                    logging.warning("the stage of an order is not kept, which is tried again: %s", refusal)
                self._was_refused = True
                return
            self._is_kept, self._was_refused = True, False

    def take_news(self) -> list[Order]:
        """Return the orders that came since the last call; the first time also those that an earlier chief took."""
        with self._lock:
            news, self._news = self._news, []
            return news

    def _with(self, order: Order) -> tuple[Order, ...]:
        """Return the orders with one that takes the place of its stage's and of the pending one."""
        return (*(each for each in self._orders if each.stage not in (order.stage, PENDING)), order)


class CommandService:
    """Answers a run's user from the run's state; every public method takes its lock.

    Args:
      state: the run's state.
    """

    def __init__(self, state: RunState) -> None:
        self._state, self._condition = state, state.condition

    def status(self) -> StatusReply:
        """Return where the run stands (see `CommandPort.status`)."""
        figures = self._state.figures
        newest, seconds = figures.read(), figures.seconds
        with self._condition:
            state = self._state
            phase, counts, pending = state.leases.phase, state.ledger.counts(), state.orders.pending
            members, hosts = self._members(phase, newest), newest.units_of(counts.applied)
            return StatusReply(
                exit="",
                phase=phase.id.number if phase is not None else newest.phase,
                protocol=phase.spec if phase is not None else newest.protocol,
                reason=phase.reason if phase is not None else newest.reason,
                end_units=phase.end_units if phase is not None else counts.workload,
                ordered=pending.spec if pending is not None else "",
                is_stopping=state.preempted and counts.applied < counts.workload,
                **counts.to_json(),
                seconds=seconds,
                restarts=sum(newest.restarts.values()),
                **told_of(newest, seconds),
                members=members,
                hosts=tuple(HostUnits(*pair, units) for pair, units in hosts.items()),
            )

    def switch(self, request: SwitchRequest) -> SwitchReply:
        """Order another protocol (see `CommandPort.switch`)."""
        orders = self._state.orders
        spec = orders.check(request.spec)
        with self._condition:
            phase = self._running_phase()
            units = self._state.ledger.num_applied
        if (held := orders.held) is None or held.spec != spec:  # in progress or not: an order disables the policy
            orders.give(spec, units, request.reason)  # outside of the run's lock: a disk may take long
        with self._condition:
            self._condition.notify_all()
        return SwitchReply(spec, phase.spec, phase.id.number, units, spec != phase.spec)

    def stop(self, request: StopRequest) -> StopReply:
        """Have the run save and stop (see `CommandPort.stop`)."""
        with self._condition:
            state = self._state
            if state.over:
                raise NotRunning("the run is over; there is nothing to stop")
            if not state.preempted and state.ledger.num_applied < state.ledger.workload:  # else it ends by itself
                state.reports.stops.append(request.reason)
            state.ask_stop()  # first: the supervisor has to know it, should this chief die
            state.preempt()
            return StopReply(state.ledger.num_applied)

    # --- under the lock ---

    def _running_phase(self) -> Phase:
        state = self._state
        if state.over or state.preempted:
            raise NotRunning("the run is saving and stopping; start it again, then give the command")
        try:
            state.waits.raise_failure()
        except HybridSyncError as error:
            raise NotRunning(f"the run is ending: {error}") from None
        phase = state.leases.phase
        if phase is None or state.restarted:
            raise NotRunning("the run is in no phase yet; give the command again when it is (hybridsync status)")
        if state.ledger.num_applied >= state.ledger.workload:
            raise NotRunning(f"the run is at its end: all {state.ledger.workload:,} units are applied")
        return phase

    def _members(self, phase: Phase | None, newest: Newest) -> tuple[MemberStatus, ...]:
        state, members = self._state, self._state.members
        rates = state.leases.units_per_sec(members.workers.ids())
        slow = state.detector.flagged

        def state_of(role: str, role_id: int) -> str:
            if role == "worker" and role_id in members.quarantined:
                return "quarantined"
            if members.of(role).get(role_id) is None:
                return "gone" if state.over else "starting"
            if phase is None or (role == "server" and not phase.servers):
                return "waiting"
            if role == "worker" and role_id not in phase.members:
                return "left out" if role_id in state.phase_members.left_out else "waiting"
            return "training"

        def status_of(role: str, role_id: int) -> MemberStatus:
            member = members.of(role).get(role_id)
            return MemberStatus(
                role,
                role_id,
                state_of(role, role_id),
                units_per_sec=rates.get(role_id, 0.0) if role == "worker" else 0.0,
                restarts=newest.restarts.get((role, role_id), 0),
                pid=member.hello.pid if member is not None else 0,
                is_slow=role == "worker" and role_id in slow,
                sent_bytes=newest.sent_bytes.get(role_id, 0) if role == "worker" else 0,
                received_bytes=newest.received_bytes.get(role_id, 0) if role == "worker" else 0,
                host=newest.host_of(role, role_id),
            )

        places = [
            *(("server", i) for i in range(members.num_servers)),
            *(("worker", i) for i in range(members.num_workers)),
        ]
        return tuple(status_of(*place) for place in places)


def told_of(newest: Newest, seconds: float) -> dict:
    """Return the part of a `StatusReply` that the record alone tells.

    Args:
      newest: newest record of the run.
      seconds: duration of the run so far, in seconds.
    """
    saved = newest.checkpoint_units >= 0
    return {
        "num_switches": newest.num_switches,
        "stall_secs": newest.stall_secs,
        "checkpoint_units": newest.checkpoint_units,
        "checkpoint_age_secs": max(0.0, seconds - newest.checkpoint_t) if saved else 0.0,
        "checkpoint_bytes": newest.checkpoint_bytes,
        "figures": tuple(Figure(*each) for each in newest.figures.items()),
        "evaluations": newest.evaluations,
    }
