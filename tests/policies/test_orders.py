"""Which protocols a run's user may order."""

from __future__ import annotations

from functools import partial

import pytest

from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.interfaces.commands import Order
from hybridsync.phases.schedule import kept_orders
from hybridsync.policies.plan_checks import checked_order
from hybridsync.protocols import REGISTRY


@pytest.mark.parametrize("name", sorted({*REGISTRY} - {"diloco", "psplus", "localsgd"}))
def test_any_protocol_without_a_state_of_its_own_may_be_ordered(name: str) -> None:
    assert checked_order(name, RunConfig(workload=100, workers=4)) == name


@pytest.mark.parametrize(
    ("spec", "config", "message"),
    [
        ("sps", {}, "unknown protocol 'sps'; did you mean 'ssp'"),
        ("asp:50%", {}, "'asp:50%' is a plan; name one protocol without a length, for example 'asp'"),
        ("asp,bsp", {}, "'asp,bsp' is a plan; name one protocol"),
        ("backup(m=9)", {"workers": 2}, "backup"),
        (
            "diloco",
            {},
            "diloco keeps a momentum of its own, .* the plan 'bsp' has no room; .* a plan that names diloco",
        ),
        (
            "gba(batch=3)",
            {"servers": 2},
            r"gba\(batch=3\) may hold 2 pushes .* have room for 0; .* plan that names gba",
        ),
        ("preduce", {"policy": PolicyConfig(rate="sqrt")}, "policy.rate=sqrt is for updates on the mean"),
    ],
)
def test_what_the_run_cannot_make_is_refused(spec: str, config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_order(spec, RunConfig(workload=100, plan="bsp", **config))


@pytest.mark.parametrize("spec", ["bsp", "preduce", "adpsgd"])
def test_what_sums_among_workers_is_refused_where_the_network_is_not_theirs_alone(spec: str) -> None:
    config = RunConfig(workload=100, plan="asp")
    with pytest.raises(ConfigError, match=rf"^{spec} needs another network$"):
        checked_order(spec, config, "needs another network")
    assert checked_order("bsp_server", config, "needs another network") == "bsp_server"


def test_an_order_that_the_network_of_the_next_session_does_not_allow_is_dropped() -> None:
    orders = (Order(1, "bsp", 40, stage=0), Order(2, "ssp", 60))
    config = RunConfig(workload=100, plan="asp:50%,ssp")
    check = partial(checked_order, sums_refused="needs another network")
    kept, dropped = kept_orders(orders, "asp:50%,ssp", config, check)
    assert [order.number for order in kept] == [2]
    assert [(order.number, why) for order, why in dropped] == [(1, "bsp needs another network")]


def test_what_a_plan_prepares_may_be_ordered() -> None:
    config = RunConfig(workload=100, plan="bsp:50%,diloco")
    assert checked_order("diloco", config) == "diloco"


def test_an_order_scales_the_rate_as_the_run_does() -> None:
    config = RunConfig(workload=100, plan="bsp", policy=PolicyConfig(rate="sqrt"))
    assert checked_order("bsp", config) == "bsp(scaling=sqrt)"
