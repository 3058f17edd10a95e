"""Checks a plan together with its policies before any role starts, and so without JAX.

>>> from hybridsync.config import RunConfig
>>> check_plan(RunConfig(workload=100, plan="bsp:50%,asp"))
"""

from __future__ import annotations

import itertools

from hybridsync import protocols
from hybridsync.config.run_config import RunConfig
from hybridsync.core.errors import ConfigError
from hybridsync.core.plan import Plan
from hybridsync.policies.momentum import is_asynchronous
from hybridsync.protocols.base import Protocol


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


def _may_end_early(stages: list[Protocol], num_workers: int) -> bool:
    """Return whether an asynchronous stage follows one of lock-step."""
    return any(
        before.mode.moves_together and after.mode.is_served and is_asynchronous(after, num_workers)
        for before, after in itertools.pairwise(stages)
    )
