"""Orders in a workdir: they outlive the process, and a damaged file is refused by name."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from hybridsync.chief.user_commands import Orders
from hybridsync.core.errors import WorkdirError
from hybridsync.interfaces.commands import Order
from hybridsync.storage import orders_file
from hybridsync.storage.orders_file import ORDERS_FILE, OrdersFile

ORDERS = (Order(1, "ssp", 4, "it is slow", 0), Order(2, "bsp", 9))


def test_orders_are_read_again_with_the_plan_that_they_are_of(tmp_path: Path) -> None:
    OrdersFile(tmp_path, "bsp:50%,asp").write(ORDERS)
    again = OrdersFile(tmp_path, "asp")
    assert (again.told_plan, again.read()) == ("bsp:50%,asp", ORDERS)
    assert (tmp_path / ORDERS_FILE).stat().st_mode & 0o777 == 0o600
    again.clear()
    assert OrdersFile(tmp_path, "asp").read() == () and not (tmp_path / ORDERS_FILE).exists()


def test_a_number_does_not_come_again_when_its_order_is_gone(tmp_path: Path) -> None:
    """The record tells orders apart by their number."""
    kept = OrdersFile(tmp_path, "bsp:50%,asp")
    kept.write(ORDERS)
    kept.write(())  # a resume with another plan
    assert Orders(OrdersFile(tmp_path, "asp")).give("ssp", 12).number == 3
    assert OrdersFile(tmp_path, "asp").newest == 3


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan": "asp", "orders": [{"number": 1}]}', "\x00"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / ORDERS_FILE).write_text(text)
    with pytest.raises(WorkdirError, match=r"orders\.json is damaged .*; remove it, and the run goes on by its plan"):
        OrdersFile(tmp_path, "asp")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"number": "1"}, r"the number of an order is '1'"),
        ({"number": True}, r"the number of an order is True"),
        ({"number": 0}, r"the number of an order is 0"),
        ({"spec": 5}, r"the spec of order 1 is 5, not a text"),
        ({"spec": "nonsense"}, r"unknown protocol 'nonsense'"),
        ({"units": -1}, r"the units of an order is -1"),
        ({"reason": None}, r"the reason of order 1 is None"),
        ({"stage": "0"}, r"the stage of an order is '0'"),
        ({"stage": 2}, r"an order is for a stage that the plan bsp:50%,asp has not"),
        ({"stage": -1}, r"two orders have the same stage"),
        ({"number": 2}, r"two orders have the same number"),
    ],
)
def test_an_order_that_is_none_is_refused_by_file_and_value(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    first, second = (dataclasses.asdict(order) for order in ORDERS)
    record = {"plan": "bsp:50%,asp", "newest": 2, "orders": [{**first, **wrong}, second]}
    (tmp_path / ORDERS_FILE).write_text(json.dumps(record))
    with pytest.raises(WorkdirError, match=rf"orders\.json is damaged \({why}.*\); remove it, and the run goes on"):
        OrdersFile(tmp_path, "asp")


@pytest.mark.parametrize("wrong", [{"plan": "%%%"}, {"plan": 5}, {"newest": 1}, {"newest": "2"}, {"orders": 5}])
def test_a_file_of_orders_with_a_wrong_value_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    record = {"plan": "bsp:50%,asp", "newest": 2, "orders": [dataclasses.asdict(order) for order in ORDERS]}
    (tmp_path / ORDERS_FILE).write_text(json.dumps({**record, **wrong}))
    with pytest.raises(WorkdirError, match=r"orders\.json is damaged \(.*\); remove it, and the run goes on by its"):
        OrdersFile(tmp_path, "asp")


def test_what_the_disk_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = OrdersFile(tmp_path, "asp")
    kept.write(ORDERS[:1])

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(orders_file, "write_durable", refuse)
    with pytest.raises(WorkdirError, match=r"cannot be kept in .*: no space left; nothing was changed"):
        kept.write(ORDERS)
    assert kept.read() == ORDERS[:1]
