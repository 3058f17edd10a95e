"""Keeps what a run's user has ordered: a protocol that takes the place of the plan's for the rest of a stage.

An order is durable before its user hears that it was taken. It is pending until a phase is entered for it; from then on
it belongs to the stage of the plan that this phase is in, and holds to that stage's end, even if the chief is replaced.

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
from typing import Protocol

from absl import logging

from hybridsync import protocols
from hybridsync.core.errors import WorkdirError
from hybridsync.core.plan import Stage
from hybridsync.interfaces.commands import PENDING, Order, highest


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
