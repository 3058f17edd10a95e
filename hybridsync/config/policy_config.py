"""The configuration of a run's policies: stragglers, momentum, learning rate and the end of lock-step."""

import math
from dataclasses import dataclass
from typing import Literal

from hybridsync.config.field_checks import check_types, require
from hybridsync.config.keywords import checked
from hybridsync.core.errors import ConfigError

MomentumVariant = Literal["keep", "zero", "scaled", "ramp_linear", "ramp_steps", "ramp_stages"]


@checked
@dataclass(frozen=True)
class PolicyConfig:
    """Sets how a run deals with stragglers, the momentum, the learning rate and the end of lock-step.

    Args:
        detector: rule that finds stragglers: "robust" (median and MAD, with a floor), "paper" (mean - std), or "off".
        detector_deviations: k of its threshold; None is 2 of "robust", 1 of "paper".
        detector_window: units of a worker that are judged together, at most.
        detector_window_secs: seconds in which they come that are enough, from five units on; 0 for no such limit.
        detector_consecutive: windows in a row that make a straggler, and that clear it.
        detector_floor: for "robust" only: share of the median above which no worker counts as slow.
        speeds: relative speed of each worker's device, where they differ; () for all alike.
        shares: units that each worker takes in one lock-step step, where that is fixed; () for one each.
        momentum: treatment of the momentum where the plan goes over to asynchrony: it is kept, its slots are zeroed
            once, or its coefficient is divided by the workers, for good or until it has been ramped up again.
        ramp: share of the workload that ramping takes.
        online: what a lock-step stage does while there are stragglers: "baseline" ignores them, "greedy" trains
            asynchronously meanwhile, "elastic" continues without them, "rebalance" divides a step's units among the
            workers by speed.
        guard: whether "greedy" and "elastic" act only where that saves more than it costs ("on"), or on every straggler
            ("off"), as their paper has them.
        trigger: event that ends a lock-step stage before its share is done: "off", or "knee", where the loss stops
            falling steeply; an asynchronous stage has to follow.
        most_units: maximum number of units of one worker in a lock-step step under "rebalance"; more of them are a
            larger batch.
        rate: growth of the learning rate with the units of an update: "linear", or "sqrt", with their square root.

    Raises:
        ConfigError: a value is out of range.
    """

    detector: Literal["robust", "paper", "off"] = "robust"
    detector_deviations: float | None = None
    detector_window: int = 10
    detector_window_secs: float = 5.0
    detector_consecutive: int = 4
    detector_floor: float = 0.9
    speeds: tuple[float, ...] = ()
    shares: tuple[int, ...] = ()
    momentum: MomentumVariant = "keep"
    ramp: float = 0.25
    rate: Literal["linear", "sqrt"] = "linear"
    online: Literal["baseline", "greedy", "elastic", "rebalance"] = "baseline"
    guard: Literal["on", "off"] = "on"
    trigger: Literal["off", "knee"] = "off"
    most_units: int = 4

    def __post_init__(self) -> None:
        check_types(self, "policy.")
        if self.online != "baseline" and self.detector == "off":
            raise ConfigError(
                f"policy.online is {self.online!r}, but policy.detector is 'off': nobody would tell it who is slow; "
                "choose a detector, or policy.online=baseline"
            )
        if self.guard == "off" and self.online not in ("greedy", "elastic"):
            raise ConfigError(
                f"policy.guard is 'off', but policy.online is {self.online!r}, which has no form without one; use "
                "policy.online=greedy or elastic, or policy.guard=on"
            )
        moves = [name for name in ("greedy", "knee") if name in (self.online, self.trigger)]
        if len(moves) == 2:
            raise ConfigError(
                "policy.online is 'greedy' and policy.trigger is 'knee': both say when lock-step ends; choose one"
            )
        if moves and self.momentum != "keep":
            raise ConfigError(
                f"policy is {moves[0]!r}, but policy.momentum is {self.momentum!r}, which acts at the plan's own "
                "switches alone: use policy.momentum=keep, policy.online=elastic, or policy.trigger=off"
            )
        if self.shares and self.online in ("elastic", "rebalance"):
            raise ConfigError(
                f"policy.shares are fixed, but policy.online is {self.online!r}, which decides by rates who takes how "
                "many units of a step: leave one of them out"
            )
        deviations = self.detector_deviations
        require(
            deviations is None or deviations >= 0, "policy.detector_deviations", "0 or more", deviations, "raise it"
        )
        for name in ("detector_window", "detector_consecutive"):
            require(getattr(self, name) >= 1, f"policy.{name}", "at least 1", getattr(self, name), "raise it")
        secs = self.detector_window_secs
        require(0 <= secs < math.inf, "policy.detector_window_secs", "0 or more, and finite", secs, "give seconds")
        floor = self.detector_floor
        has_floor = self.detector == "robust" or floor == PolicyConfig.detector_floor
        rule = f"left out with policy.detector={self.detector}"
        require(has_floor, "policy.detector_floor", rule, floor, "the detector 'robust' alone has a floor")
        require(0 < floor <= 1, "policy.detector_floor", "above 0 and at most 1", floor, "give a share of the median")
        require(self.most_units >= 1, "policy.most_units", "at least 1", self.most_units, "raise it")
        above = all(speed > 0 for speed in self.speeds)
        require(0 < self.ramp <= 1, "policy.ramp", "above 0 and at most 1", self.ramp, "give a share of the workload")
        require(above, "policy.speeds", "above 0", self.speeds, "give each worker's speed beside the others")
        some = not self.shares or (min(self.shares) >= 0 and sum(self.shares) > 0)
        require(some, "policy.shares", "0 or more, and one above it", self.shares, "give each worker's units a step")

    @property
    def detects(self) -> bool:
        """Return whether workers are judged."""
        return self.detector != "off"

    @property
    def assigns_several(self) -> bool:
        """Return whether a worker may take several units of a lock-step step."""
        return self.online == "rebalance" or any(units > 1 for units in self.shares)
