"""The configuration of a run: nested frozen values, each checked when it is made.

>>> RunConfig(workload=100, unit_size=32, workers=0)
Traceback (most recent call last):
...
hybridsync.core.errors.ConfigError: workers must be at least 1, got 0; give the run a worker
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from hybridsync.config.device_config import DeviceConfig
from hybridsync.config.field_checks import check_json, check_types, require
from hybridsync.config.injected_stragglers import Straggler
from hybridsync.config.keywords import checked
from hybridsync.config.policy_config import PolicyConfig
from hybridsync.config.typing import is_frozen_dataclass
from hybridsync.core.errors import ConfigError, PlanError
from hybridsync.core.plan import Plan
from hybridsync.core.units import MOST_UNITS

LEAST_HANG_SECS, MOST_HANG_SECS = 2.0, 3600.0
"""Bounds of the limits of `HangConfig`."""
WARN_SECS = 30.0
"""A worker that makes no progress for so long is named to the user, or for half of its limit where that is shorter."""

MOST_WORKERS, MOST_SERVERS = 10_000, 1_000
"""Above these a mistake in a flag would fill the memory before anything could refuse it."""

MOST_UNIT_SECS = 86_400.0
"""Above this a wait overflows the system's clock sooner or later."""


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
        check_types(self, name)
        require(0 <= self.warmup < 1, f"{name}warmup", "in [0, 1)", self.warmup, "give a share of the workload")
        if self.kind != "piecewise":
            given = self.boundaries or self.factors
            require(
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
        require(ascending, f"{name}boundaries", "ascending shares in (0, 1)", self.boundaries, "correct them")
        require(min(self.factors) > 0, f"{name}factors", "above 0", self.factors, "correct them")


@checked
@dataclass(frozen=True)
class OptimizerConfig:
    """Configures the optimizer that a configuration file's `optimizer(config)` builds.

    Args:
        name: optimizer, as the file's `optimizer()` understands it.
        learning_rate: learning rate for the gradient of one unit; a protocol scales it.
        momentum: coefficient in [0, 1); of the names that come with the framework sgd alone reads it.
        weight_decay: 0 for none; adam refuses it, sgd, adamw and lion read it.
        clip: largest global norm of a unit's gradient, applied on the worker; None for no clipping.
        schedule: schedule of the learning rate.

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
        check_types(self, "optimizer.")
        require(bool(self.name), "optimizer.name", "a name", self.name, "for example sgd")
        require(self.learning_rate > 0, "optimizer.learning_rate", "above 0", self.learning_rate, "raise it")
        require(0 <= self.momentum < 1, "optimizer.momentum", "in [0, 1)", self.momentum, "correct it")
        require(self.weight_decay >= 0, "optimizer.weight_decay", "0 or more", self.weight_decay, "correct it")
        if self.clip is not None:
            require(self.clip > 0, "optimizer.clip", "above 0 or none", self.clip, "use none for no clipping")


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
        check_types(self, "checkpoint.")
        require(self.secs > 0, "checkpoint.secs", "above 0", self.secs, "raise it to save less often")
        require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep, "a run needs its newest checkpoint")


@checked
@dataclass(frozen=True)
class TelemetryConfig:
    """Selects what a run writes beside its checkpoints.

    Args:
        log_secs: seconds between lines of metrics.jsonl.
        apply_log: record every update, for `hybridsync replay`.
        timeline: write timeline.json.
        evaluate_units: units between evaluations; 0 evaluates at phase ends and the end only. The state of the first
            update that reaches such a place is evaluated. One evaluation is made at a time: places that pass meanwhile
            have none, and the event `evaluation_skipped` says so.
        trace_units: units that JAX's profiler traces, as first:stop without the last, such as 100:110; "" for none.

    Raises:
        ConfigError: a value is out of range.
    """

    log_secs: float = 1.0
    apply_log: bool = False
    timeline: bool = True
    evaluate_units: int = 0
    trace_units: str = ""

    def __post_init__(self) -> None:
        check_types(self, "telemetry.")
        if self.trace_units and not self.traced:
            raise ConfigError(
                f"telemetry.trace_units is {self.trace_units!r}, which names no units; write first:stop with a first "
                "unit of 0 or more that is below the other, such as 100:110"
            )
        require(self.log_secs > 0, "telemetry.log_secs", "above 0", self.log_secs, "raise it")
        require(
            self.evaluate_units >= 0,
            "telemetry.evaluate_units",
            "0 or more",
            self.evaluate_units,
            "0 evaluates at phase ends only",
        )

    @property
    def traced(self) -> range:
        """The units to trace."""
        found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", self.trace_units, re.ASCII)
        return range(*map(int, found.groups())) if found else range(0)


@checked
@dataclass(frozen=True)
class EmulationConfig:
    """Slowness that is put in on purpose, so that few cores can show what a protocol does.

    Args:
        compute_secs: shortest time a unit's gradient takes; the rest of it is waited.
        stragglers: `worker=3,delay_ms=30,from=10%,to=30%`, several separated by semicolons, or the name of a scenario
            (see `hybridsync.config.injected_stragglers`).
        link_bytes_per_sec: bandwidth of each worker's link, each direction, which its pushes and pulls, its collectives
            and its groups' averages pass; None is the machine's own.
        port_bytes_per_sec: bandwidth of a server's port, each direction, which all pushes and pulls in progress share
            fairly; None is the machine's own.
        incast: share of that port's goodput that each further transfer costs: k at once get port / (1 + incast * (k -
            1)) in all. A run that is not simulated refuses it without a port.
        latency_secs: more for each push, for each pull, and for each of the 2 (n-1) rounds of a collective of n.

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
        check_types(self, "emulation.")
        require(self.compute_secs >= 0, "emulation.compute_secs", "0 or more", self.compute_secs, "correct it")
        stragglers = Straggler.parse(self.stragglers)
        slowest = max([self.compute_secs, *(one.slowness.compute_secs(self.compute_secs) for one in stragglers)])
        require(slowest <= MOST_UNIT_SECS, "an emulated unit's seconds", "at most 86,400, a day", slowest, "lower them")
        for name in ("link_bytes_per_sec", "port_bytes_per_sec"):
            rate = getattr(self, name)
            if rate is not None:
                require(rate > 0, f"emulation.{name}", "above 0 or none", rate, "use none for the machine's own speed")
        for name in ("incast", "latency_secs"):
            value = getattr(self, name)
            require(value >= 0, f"emulation.{name}", "0 or more", value, "correct it")


@checked
@dataclass(frozen=True)
class HangConfig:
    """Sets when a process that makes no progress is given up: it is ended, and another one takes its place.

    A process that has died is noticed at once, whatever these limits are. No limit ends a worker that nobody waits for.
    The user is warned at half of a limit, after WARN_SECS at the latest (see docs/faults.md).

    Args:
        compute_secs: shortest time that a worker may be at one unit; it may take ten times as long as its recent units
            took in any case, and `compile_secs` for its first unit of a phase.
        read_secs: how long a worker may wait for the data of one unit.
        compile_secs: how long a worker may compile, or be at anything else but a unit, for example fetch a state.
        silent_secs: how long a process may send no heartbeat, and the chief run no Python. A process that is stopped
            for a shorter time, or gets no processor, goes on as if nothing had been; one that is frozen for good is
            replaced after so long.

    Raises:
        ConfigError: a value is out of range.
    """

    compute_secs: float = 60.0
    read_secs: float = 600.0
    compile_secs: float = 600.0
    silent_secs: float = 60.0

    def __post_init__(self) -> None:
        check_types(self, "hang.")
        for name in ("compute_secs", "read_secs", "compile_secs", "silent_secs"):
            rule = f"in [{LEAST_HANG_SECS:g}, {MOST_HANG_SECS:g}]"
            value = getattr(self, name)
            advice = "a healthy process needs the lower bound, and nobody waits longer than the upper one"
            require(LEAST_HANG_SECS <= value <= MOST_HANG_SECS, f"hang.{name}", rule, value, advice)


@checked
@dataclass(frozen=True)
class RunConfig:
    """Holds everything that a run is asked to do.

    Args:
        workload: units to apply.
        unit_size: examples of a unit; with the same seed another size is another run.
        workers: workers, and slots of the lock-step process group.
        min_workers: how many of them must be present for a run, and for a phase, to begin; 0 for a run that begins with
            all of them, and continues as long as there is one.
        servers: number of parameter servers; threads of one process share one store, whatever this number.
        plan: `name[(key=value,...)][:length]`, separated by commas; lengths are `12.5%`, `3200u` or `10passes`.
        seed: random seed of initialisation, data order and augmentation; 0 up to 2**32 - 1.
        optimizer: values for the file's `optimizer()`.
        model: the file's own frozen dataclass.
        data: the file's own frozen dataclass.
        checkpoint: settings of the checkpoints.
        telemetry: settings of the record.
        emulation: slowness put in on purpose.
        policy: treatment of stragglers, the momentum, the learning rate and the end of lock-step.
        hang: when a process that makes no progress is given up.
        devices: devices of each worker, and how a model is divided among them.
        drain_secs: seconds that the last units of an asynchronous phase may stand still before others get them too.

    Raises:
        ConfigError: a value is out of range or of another type, or one of the file's own cannot be written down.
        PlanError: the plan does not parse, or gives a stage no unit.
    """

    workload: int
    unit_size: int = 32
    workers: int = 4
    min_workers: int = 0
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
    hang: HangConfig = field(default_factory=HangConfig)
    devices: DeviceConfig = field(default_factory=DeviceConfig)
    drain_secs: float = 10.0

    def __post_init__(self) -> None:
        check_types(self, "")
        require(self.workload >= 1, "workload", "at least 1 unit", self.workload, "give the run work")
        require(self.workload < MOST_UNITS, "workload", "below 2**31 units", self.workload, "use a larger unit_size")
        require(self.unit_size >= 1, "unit_size", "at least 1 example", self.unit_size, "raise it")
        require(self.unit_size < MOST_UNITS, "unit_size", "below 2**31 examples", self.unit_size, "lower it")
        require(self.workers >= 1, "workers", "at least 1", self.workers, "give the run a worker")
        require(self.workers <= MOST_WORKERS, "workers", f"at most {MOST_WORKERS:,}", self.workers, "give it fewer")
        fewest = f"at most the {self.workers} workers, and not below 0"
        require(0 <= self.min_workers <= self.workers, "min_workers", fewest, self.min_workers, "give another number")
        require(self.servers >= 1, "servers", "at least 1", self.servers, "give the run a parameter server")
        require(self.servers <= MOST_SERVERS, "servers", f"at most {MOST_SERVERS:,}", self.servers, "give it fewer")
        require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed, "choose another")
        require(self.drain_secs > 0, "drain_secs", "above 0", self.drain_secs, "raise it")
        for name in ("model", "data"):
            value = getattr(self, name)
            require(
                is_frozen_dataclass(value),
                name,
                "an instance of a frozen dataclass",
                value,
                "declare it with @dataclass(frozen=True)",
            )
            check_json(name, value)
        for name in ("speeds", "shares"):
            values = getattr(self.policy, name)
            if values and len(values) != self.workers:
                raise ConfigError(
                    f"policy.{name} has {len(values)} values, the run {self.workers} workers; "
                    "give one for each worker, or none"
                )
        size = self.devices.size
        self.devices.check_unit(self.unit_size, self.devices.sizes(size) if size else {})
        self._check_plan()
        windows = self.workload // (self.workers * self.policy.detector_window)
        rule = f"at most {windows}, as many windows as each of {self.workers} workers has"
        consecutive, usual = self.policy.detector_consecutive, PolicyConfig.detector_consecutive
        can_fire = consecutive <= max(windows, usual) or not self.policy.detects
        advice = "nobody would ever be flagged: ask for fewer, or for a smaller policy.detector_window"
        require(can_fire, "policy.detector_consecutive", rule, consecutive, advice)
        for straggler in Straggler.parse(self.emulation.stragglers):
            require(
                straggler.worker < self.workers,
                "emulation.stragglers",
                f"about workers 0 to {self.workers - 1}",
                straggler.worker,
                "name one of them",
            )

    def _check_plan(self) -> None:
        plan = Plan.parse(self.plan)
        if plan.has_passes:  # checked once the data are known (see `Run`)
            return
        begin = 0
        for stage, end in zip(plan.stages, plan.ends(self.workload), strict=True):
            if end <= begin:
                raise PlanError(
                    f"plan {self.plan!r}: {stage.spec!r} would get no unit of the {self.workload}; "
                    "raise its share or the workload"
                )
            begin = end
