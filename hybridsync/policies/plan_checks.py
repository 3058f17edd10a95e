"""Checks a plan together with its policies before any role starts, and so without JAX.

>>> from hybridsync.config import RunConfig
>>> check_plan(RunConfig(workload=100, plan="bsp:50%,asp"))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hybridsync import protocols
from hybridsync.config.run_config import RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import Plan, Stage
from hybridsync.policies.momentum import is_asynchronous
from hybridsync.protocols.base import Outer, Protocol

CheckOrder = Callable[[str, RunConfig], str]
"""Checks what a run's user orders, as `checked_order` does."""


def parsed_plan(config: RunConfig) -> Plan:
    """Return the parsed plan; stages that do not say how they scale the rate do so as the configuration says.

    Raises:
      ConfigError: the configuration wants another scaling than a stage has.
      PlanError: unknown protocol or argument.
    """
    return protocols.with_scaling(Plan.parse(config.plan), config.policy.rate, config.workers)


def check_plan(config: RunConfig) -> None:
    """Check that the plan's protocols can work with the workers and the policies.

    Raises:
      ConfigError: one cannot, or an early end of lock-step is asked for where nothing asynchronous follows.
      PlanError: unknown protocol or argument.
    """
    stages = [protocols.resolve(stage) for stage in parsed_plan(config).stages]
    members = tuple(range(config.workers))
    for protocol in stages:
        if protocol.mode.is_served:
            protocol.server_rule(members)
    if config.policy.trigger != "off" and not _may_end_early(stages, config.workers):
        raise ConfigError(
            f"policy.trigger is {config.policy.trigger!r}, but no lock-step stage of the plan {config.plan!r} has an "
            "asynchronous one behind it: write one like bsp:50%,asp, whose share is then the most, or "
            "policy.trigger=off"
        )


def order_warning(plan: Plan, num_workers: int) -> str:
    """Return a warning of a plan that begins with asynchrony and has lock-step later; "" for any other.

    >>> order_warning(Plan.parse("asp:50%,bsp"), 8)[:68]
    "plan 'asp:50%,bsp': lock-step comes after asynchrony, where it gains"
    >>> order_warning(Plan.parse("bsp:50%,asp"), 8), order_warning(Plan.parse("bsp:10%,asp:40%,bsp"), 8)
    ('', '')
    """
    first, *later = [protocols.resolve(stage) for stage in plan.stages]
    in_step = any(protocol.staleness_bound(num_workers) == 0 for protocol in later)
    if not (in_step and is_asynchronous(first, num_workers)):
        return ""
    return (
        f"plan {str(plan)!r}: lock-step comes after asynchrony, where it gains little accuracy. At equal shares it was "
        "better first on every job that was measured: write the lock-step stage first"
    )


def sums_among_workers(plan: Plan) -> list[str]:
    """Return the stages of a plan whose workers sum among themselves: lock-step without a server, and groups.

    >>> sums_among_workers(Plan.parse("bsp:10%,bsp_server:10%,preduce:10%,asp"))
    ['bsp', 'preduce']
    """
    modes = [(stage.spec, protocols.resolve(stage).mode) for stage in plan.stages]
    return [spec for spec, mode in modes if not mode.is_served and (mode.moves_together or mode.has_group_rounds)]


def checked_order(spec: str, config: RunConfig, sums_refused: str = "") -> str:
    """Return the protocol that a run's user orders, as a phase of that run names it.

    Args:
      spec: as written in a plan, without a share.
      config: configuration of the run.
      sums_refused: reason why workers may not sum among themselves; "" where they may.

    Raises:
      PlanError: the text is not a protocol, or names several, or has a share.
      ConfigError: it cannot work with the workers, or needs what only a plan that names it prepares, or a network that
        the run does not have.

    >>> checked_order("ssp(staleness=2)", RunConfig(workload=100))
    'ssp(staleness=2)'
    """
    (stage,) = protocols.with_scaling(Plan((Stage.parse(spec),)), config.policy.rate, config.workers).stages
    protocol, members = protocols.resolve(stage), tuple(range(config.workers))
    if sums_refused and sums_among_workers(Plan((stage,))):
        raise ConfigError(f"{stage.spec} {sums_refused}")
    if protocol.mode.is_served:
        protocol.server_rule(members)
    if protocol.mode.has_group_rounds:
        protocol.group_rule(members, config.seed)
    planned = [protocols.resolve(each) for each in parsed_plan(config).stages]
    changes = [each.change(config.workers) for each in (protocol, *planned)]
    kept = [change.name if isinstance(change, Outer) else "" for change in changes]
    if kept[0] and kept[0] not in kept[1:]:
        raise ConfigError(
            f"{stage.spec} keeps a momentum of its own, for which the state of a run with the plan {config.plan!r} has "
            f"no room; stop the run, and resume it with a plan that names {stage.protocol}"
        )
    held = [each.num_answered_early(config.workers) for each in (protocol, *planned)]
    if config.servers > 1 and held[0] > max(held[1:]):
        raise ConfigError(
            f"{stage.spec} may hold {held[0]} pushes that it has answered, but the servers of a run with the plan "
            f"{config.plan!r} have room for {max(held[1:])}; stop the run, and resume it with a plan that names "
            f"{stage.protocol}"
        )
    return stage.spec


def _may_end_early(stages: list[Protocol], num_workers: int) -> bool:
    """Return whether an asynchronous stage follows one of lock-step."""
    return any(
        before.mode.moves_together and after.mode.is_served and is_asynchronous(after, num_workers)
        for before, after in itertools.pairwise(stages)
    )
