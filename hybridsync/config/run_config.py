"""The configuration of a run: nested frozen values, each checked when it is made.

>>> RunConfig(workload=100, unit_size=32, workers=0)
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: workers must be at least 1, got 0; give the run a worker
"""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from hybridsync.config.injected_stragglers import Straggler
from hybridsync.config.keywords import checked
from hybridsync.config.typing import annotations, describe, fits, is_frozen_dataclass
from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.core.plan import Plan
from hybridsync.core.units import MOST_UNITS


def _check_types(config: Any, prefix: str) -> None:
    for name, annotation in annotations(type(config)).items():
        value = getattr(config, name)
        if not fits(value, annotation):
            raise ConfigError(
                f"{prefix}{name} must be {describe(annotation)}, got {value!r} ({type(value).__name__}); "
                "change its type"
            )
        if not _is_finite(value):
            raise ConfigError(f"{prefix}{name} must be finite, got {value!r}; give it a number")


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _require(holds: bool, name: str, rule: str, value: Any, advice: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {value!r}; {advice}")


def _check_json(name: str, value: Any) -> None:
    """Check that config.json can hold a value of the file's own groups.

    Raises:
        ConfigError: it cannot; the message names the field.
    """
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            _check_json(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for item in value:
            _check_json(name, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_scalar(f"{name} has the key", key)
            _check_json(name, item)
    else:
        _check_scalar(f"{name} is", value)


def _check_scalar(what: str, value: Any) -> None:
    """Check that JSON knows a value that has no parts; keys can be nothing else."""
    if not isinstance(value, str | int | float | None):
        raise ConfigError(
            f"{what} {value!r} ({type(value).__name__}), which config.json cannot hold; give its name as a text, "
            "and make it of that in task(config)"
        )


@dataclass(frozen=True)
class Empty:
    """A model or data group without settings of its own."""


@checked
@dataclass(frozen=True)
class ScheduleConfig:
    """Moves the learning rate with progress; positions are shares of the workload.

    Args:
        kind: "constant"; "piecewise", where the rate is `factors[i]` of the learning rate from
            `boundaries[i]` on; or "cosine", down to 0 at the end.
        boundaries: ascending shares of the workload in (0, 1); piecewise only.
        factors: positive, one for each boundary; piecewise only.
        warmup: share of the workload over which the rate rises linearly from 0; 0 for none.

    Raises:
        ConfigError: a value is out of range, or belongs to another kind.
    """

    kind: Literal["constant", "piecewise", "cosine"] = "constant"
    boundaries: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    warmup: float = 0.0

    def __post_init__(self) -> None:
        name = "optimizer.schedule."
        _check_types(self, name)
        _require(0 <= self.warmup < 1, f"{name}warmup", "in [0, 1)", self.warmup, "give a share of the workload")
        if self.kind != "piecewise":
            given = self.boundaries or self.factors
            _require(
                not given,
                f"{name}boundaries and factors",
                f"empty for kind {self.kind!r}",
                given,
                "remove them, or choose kind 'piecewise'",
            )
            return
        if not self.boundaries or len(self.boundaries) != len(self.factors):
            raise ConfigError(
                f"{name}boundaries has {len(self.boundaries)} values and {name}factors {len(self.factors)}; "
                "a piecewise schedule needs one factor for each of one or more boundaries"
            )
        ascending = all(low < high for low, high in zip((0.0, *self.boundaries), (*self.boundaries, 1.0), strict=True))
        _require(ascending, f"{name}boundaries", "ascending shares in (0, 1)", self.boundaries, "correct them")
        _require(min(self.factors) > 0, f"{name}factors", "above 0", self.factors, "correct them")


@checked
@dataclass(frozen=True)
class OptimizerConfig:
    """Configures the optimizer that a configuration file's `optimizer(config)` builds.

    Args:
        name: optimizer, as the file's `optimizer()` understands it.
        learning_rate: of one unit's gradient; a protocol scales it.
        momentum: in [0, 1); of the names that come with the framework sgd alone reads it.
        weight_decay: 0 for none; adam refuses it, sgd, adamw and lion read it.
        clip: largest global norm of a unit's gradient, applied on the worker; None for no clipping.
        schedule: how the rate moves.

    Raises:
        ConfigError: a value is out of range.
    """

    name: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        _check_types(self, "optimizer.")
        _require(bool(self.name), "optimizer.name", "a name", self.name, "for example sgd")
        _require(self.learning_rate > 0, "optimizer.learning_rate", "above 0", self.learning_rate, "raise it")
        _require(0 <= self.momentum < 1, "optimizer.momentum", "in [0, 1)", self.momentum, "correct it")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", "0 or more", self.weight_decay, "correct it")
        if self.clip is not None:
            _require(self.clip > 0, "optimizer.clip", "above 0 or none", self.clip, "use none for no clipping")


@checked
@dataclass(frozen=True)
class CheckpointConfig:
    """Sets when the state is saved and how many saves are kept.

    Args:
        secs: seconds between saves; a switch and the end save besides.
        keep: newest checkpoints kept.

    Raises:
        ConfigError: a value is out of range.
    """

    secs: float = 10.0
    keep: int = 3

    def __post_init__(self) -> None:
        _check_types(self, "checkpoint.")
        _require(self.secs > 0, "checkpoint.secs", "above 0", self.secs, "raise it to save less often")
        _require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep, "a run needs its newest checkpoint")


@checked
@dataclass(frozen=True)
class TelemetryConfig:
    """Selects what a run writes beside its checkpoints.

    Args:
        log_secs: seconds between lines of metrics.jsonl.
        apply_log: record every update, for `hybridsync replay`.
        timeline: write timeline.json.
        evaluate_units: units between evaluations; 0 evaluates at phase ends and the end only.

    Raises:
        ConfigError: a value is out of range.
    """

    log_secs: float = 1.0
    apply_log: bool = False
    timeline: bool = True
    evaluate_units: int = 0

    def __post_init__(self) -> None:
        _check_types(self, "telemetry.")
        _require(self.log_secs > 0, "telemetry.log_secs", "above 0", self.log_secs, "raise it")
        _require(
            self.evaluate_units >= 0,
            "telemetry.evaluate_units",
            "0 or more",
            self.evaluate_units,
            "0 evaluates at phase ends only",
        )


@checked
@dataclass(frozen=True)
class EmulationConfig:
    """Slowness that is put in on purpose, so that few cores can show what a protocol does.

    Args:
        compute_secs: shortest time a unit's gradient takes; the rest of it is waited.
        stragglers: `worker=3,delay_ms=30,from=10%,to=30%`, several separated by semicolons, or the name of a scenario
            (see `hybridsync.config.injected_stragglers`).
        link_bytes_per_sec: of each worker's link to the parameter servers, each direction; None is the machine's own.
        port_bytes_per_sec: of a server's port, each direction, which all workers' pushes and pulls that are under way
            share fairly; None is the machine's own.
        incast: how much of that port each further transfer costs: k at once get port / (1 + incast * (k - 1)) in all.
        latency_secs: more for each push and for each pull.

    Raises:
        ConfigError: a value is out of range or cannot be read.
    """

    compute_secs: float = 0.0
    stragglers: str = ""
    link_bytes_per_sec: float | None = None
    port_bytes_per_sec: float | None = None
    incast: float = 0.0
    latency_secs: float = 0.0

    def __post_init__(self) -> None:
        _check_types(self, "emulation.")
        _require(self.compute_secs >= 0, "emulation.compute_secs", "0 or more", self.compute_secs, "correct it")
        Straggler.parse(self.stragglers)
        for name in ("link_bytes_per_sec", "port_bytes_per_sec"):
            rate = getattr(self, name)
            if rate is not None:
                _require(rate > 0, f"emulation.{name}", "above 0 or none", rate, "use none for the machine's own speed")
        for name in ("incast", "latency_secs"):
            value = getattr(self, name)
            _require(value >= 0, f"emulation.{name}", "0 or more", value, "correct it")


MomentumVariant = Literal["keep", "zero", "scaled", "ramp_linear", "ramp_steps", "ramp_stages"]


@checked
@dataclass(frozen=True)
class PolicyConfig:
    """Sets how a run deals with stragglers, the momentum, the learning rate and the end of lock-step.

    Args:
        detector: who is a straggler: "robust" (median and MAD, with a floor), "paper" (mean - std), or "off".
        detector_deviations: k of its threshold; None is 2 of "robust", 1 of "paper".
        detector_window: units of a worker that are judged together.
        detector_consecutive: windows in a row that make a straggler, and that clear it.
        detector_floor: of "robust", the share of the median above which nobody is slow.
        speeds: how fast each worker's device is beside the others, where they differ; () for all alike.
        shares: units that each worker takes in one lock-step step, where that is fixed; () for one each.
        momentum: what becomes of it where the plan goes over to asynchrony: it is kept, its slots are zeroed once, or
            its coefficient is divided by the workers, for good or until it has been ramped up again.
        ramp: share of the workload that ramping takes.
        online: what becomes of lock-step while there are stragglers: "baseline" ignores them, "greedy" trains
            asynchronously meanwhile, "elastic" goes on without them, "rebalance" deals a step's units out by speed.
        guard: whether "greedy" and "elastic" act only where that saves more than it costs ("on"), or on every straggler
            ("off"), as their paper has them.
        trigger: what ends a lock-step stage before its share is done: "off", or "knee", where the loss stops falling
            steeply; an asynchronous stage has to follow.
        most_units: of one worker in a lock-step step under "rebalance"; more of them are a larger batch.
        rate: how it grows with the units of an update: "linear", or with their square root.

    Raises:
        ConfigError: a value is out of range.
    """

    detector: Literal["robust", "paper", "off"] = "robust"
    detector_deviations: float | None = None
    detector_window: int = 10
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
        _check_types(self, "policy.")
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
        _require(
            deviations is None or deviations >= 0, "policy.detector_deviations", "0 or more", deviations, "raise it"
        )
        for name in ("detector_window", "detector_consecutive"):
            _require(getattr(self, name) >= 1, f"policy.{name}", "at least 1", getattr(self, name), "raise it")
        floor = self.detector_floor
        _require(0 < floor <= 1, "policy.detector_floor", "above 0 and at most 1", floor, "give a share of the median")
        _require(self.most_units >= 1, "policy.most_units", "at least 1", self.most_units, "raise it")
        above = all(speed > 0 for speed in self.speeds)
        _require(0 < self.ramp <= 1, "policy.ramp", "above 0 and at most 1", self.ramp, "give a share of the workload")
        _require(above, "policy.speeds", "above 0", self.speeds, "give each worker's speed beside the others")
        some = not self.shares or (min(self.shares) >= 0 and sum(self.shares) > 0)
        _require(some, "policy.shares", "0 or more, and one above it", self.shares, "give each worker's units a step")

    @property
    def detects(self) -> bool:
        """Return whether workers are judged."""
        return self.detector != "off"

    @property
    def assigns_several(self) -> bool:
        """Return whether a worker may take several units of a lock-step step."""
        return self.online == "rebalance" or any(units > 1 for units in self.shares)


@checked
@dataclass(frozen=True)
class RunConfig:
    """Everything a run is asked to do.

    Args:
        workload: units to apply.
        unit_size: examples of a unit; with the same seed another size is another run.
        workers: workers, and slots of the lock-step process group.
        servers: parameter servers; threads of one process share one store, whatever this says.
        plan: `name[(key=value,...)][:share%]`, separated by commas.
        seed: of initialisation, data order and augmentation; 0 up to 2**32 - 1.
        optimizer: values for the file's `optimizer()`.
        model: the file's own frozen dataclass.
        data: the file's own frozen dataclass.
        checkpoint: when to save.
        telemetry: what to write.
        emulation: slowness put in on purpose.
        policy: how the run reacts to what happens to it.
        drain_secs: how long the last units of an asynchronous phase may stand still before others get them too.

    Raises:
        ConfigError: a value is out of range or of another type, or one of the file's own cannot be written down.
        PlanError: the plan does not parse, or gives a stage no unit.
    """

    workload: int
    unit_size: int = 32
    workers: int = 4
    servers: int = 1
    plan: str = "bsp:12.5%,asp"
    seed: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    model: Any = field(default_factory=Empty)
    data: Any = field(default_factory=Empty)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    emulation: EmulationConfig = field(default_factory=EmulationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    drain_secs: float = 10.0

    def __post_init__(self) -> None:
        _check_types(self, "")
        _require(self.workload >= 1, "workload", "at least 1 unit", self.workload, "give the run work")
        _require(self.workload < MOST_UNITS, "workload", "below 2**31 units", self.workload, "use a larger unit_size")
        _require(self.unit_size >= 1, "unit_size", "at least 1 example", self.unit_size, "raise it")
        _require(self.workers >= 1, "workers", "at least 1", self.workers, "give the run a worker")
        _require(self.servers >= 1, "servers", "at least 1", self.servers, "give the run a parameter server")
        _require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed, "choose another")
        _require(self.drain_secs > 0, "drain_secs", "above 0", self.drain_secs, "raise it")
        for name in ("model", "data"):
            value = getattr(self, name)
            _require(
                is_frozen_dataclass(value),
                name,
                "an instance of a frozen dataclass",
                value,
                "declare it with @dataclass(frozen=True)",
            )
            _check_json(name, value)
        for name in ("speeds", "shares"):
            values = getattr(self.policy, name)
            if values and len(values) != self.workers:
                raise ConfigError(
                    f"policy.{name} has {len(values)} values, the run {self.workers} workers; "
                    "give one for each worker, or none"
                )
        self._check_plan()
        for straggler in Straggler.parse(self.emulation.stragglers):
            _require(
                straggler.worker < self.workers,
                "emulation.stragglers",
                f"about workers 0 to {self.workers - 1}",
                straggler.worker,
                "name one of them",
            )

    def _check_plan(self) -> None:
        plan = Plan.parse(self.plan)
        begin = 0
        for stage, end in zip(plan.stages, plan.ends(self.workload), strict=True):
            if end <= begin:
                raise PlanError(
                    f"plan {self.plan!r}: {stage.spec!r} would get no unit of the {self.workload}; "
                    "raise its share or the workload"
                )
            begin = end
