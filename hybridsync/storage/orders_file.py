"""Keeps the orders of a run's user in its workdir, so that they outlive the chief that took them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from hybridsync import protocols
from hybridsync.core.errors import WorkdirError
from hybridsync.core.plan import Plan, Stage
from hybridsync.interfaces.commands import PENDING, Order, highest
from hybridsync.storage.durable import Fence, read_file, unfenced, write_durable

ORDERS_FILE = "orders.json"


class OrdersFile:
    """Reads and writes the file `orders.json` of a workdir: `{"plan": ..., "newest": ..., "orders": [...]}`.

    See `chief.user_commands.OrderStore`.

    Args:
      workdir: existing directory, locked by this process.
      plan: plan in which the orders' stages count, as the run has it now.
      fence: see `write_durable`.

    Raises:
      WorkdirError: the file cannot be read, or holds no orders.
    """

    def __init__(self, workdir: str | os.PathLike[str], plan: str, fence: Fence = unfenced) -> None:
        self._path, self._plan, self._fence = Path(workdir) / ORDERS_FILE, plan, fence
        self.told_plan, self._orders, self.newest = self._read()

    def read(self) -> tuple[Order, ...]:
        """Return what is kept."""
        return self._orders

    def write(self, orders: tuple[Order, ...]) -> None:
        """Replace what is kept; it is durable on return.

        Raises:
          WorkdirError: the disk refuses; what was kept is kept.
          WorkdirTaken: by the fence; what was kept is kept.
        """
        newest = highest(orders, self.newest)
        record = {
            "plan": self._plan,
            "newest": newest,
            "orders": [dataclasses.asdict(order) for order in orders],
        }
        try:
            write_durable(self._path, json.dumps(record) + "\n", self._fence)
        except OSError as error:
            raise WorkdirError(
                f"the order cannot be kept in {self._path}: {error.strerror}; nothing was changed: free space or mend "
                "the disk, and give the command again"
            ) from error
        self._orders, self.newest = orders, newest

    def clear(self) -> None:
        """Keep none: a run begins anew.

        Raises:
          OSError: the disk refuses.
          WorkdirTaken: by the fence.
        """
        self._fence()
        self._path.unlink(missing_ok=True)
        self._orders, self.newest = (), 0

    def _read(self) -> tuple[str, tuple[Order, ...], int]:
        try:
            record = json.loads(read_file(self._path))
            orders = tuple(_checked(Order(**order)) for order in record["orders"])
            plan, newest = record["plan"], record["newest"]
            if type(plan) is not str or type(newest) is not int or newest < highest(orders):
                raise ValueError(f"the plan {plan!r} and the newest order {newest!r} are not of its orders")
            num_stages = len(Plan.parse(plan).stages)
            if any(order.stage >= num_stages for order in orders):
                raise ValueError(f"an order is for a stage that the plan {plan} has not")
            for number in ("number", "stage"):
                if len({getattr(order, number) for order in orders}) < len(orders):
                    raise ValueError(f"two orders have the same {number}")
            return plan, orders, newest
        except FileNotFoundError:
            return self._plan, (), 0
        except OSError as error:
            raise WorkdirError(f"cannot read {self._path}: {error.strerror}; mend the disk or its rights") from error
        except (ValueError, TypeError, KeyError) as error:
            raise WorkdirError(
                f"{self._path} is damaged ({error}); remove it, and the run goes on by its plan, or restore it"
            ) from None


def _checked(order: Order) -> Order:
    """Return an order as the file has it, if it is one.

    Raises:
      ValueError: a value is of another type or out of its range, or nothing can read its protocol.
    """
    for name, least in (("number", 1), ("units", 0), ("stage", PENDING)):
        value = getattr(order, name)
        if type(value) is not int or value < least:
            raise ValueError(f"the {name} of an order is {value!r}, not an integer of {least} or more")
    for name in ("spec", "reason"):
        if type(value := getattr(order, name)) is not str:
            raise ValueError(f"the {name} of order {order.number} is {value!r}, not a text")
    protocols.resolve(Stage.parse(order.spec))
    return order
