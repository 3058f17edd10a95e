import math
import os
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridsync.config import (
    AS_FAST,
    CheckpointConfig,
    EmulationConfig,
    HangConfig,
    OptimizerConfig,
    PolicyConfig,
    RunConfig,
    ScheduleConfig,
    Slowness,
    Straggler,
    Stragglers,
    TelemetryConfig,
    apply_overrides,
    check_resumable,
    load_config,
    to_json,
)
from hybridsync.core.errors import ConfigError, PlanError, ResumeError
from hybridsync.lab.simulator.scenarios import load_scenario
from tests.access import no_access


@dataclass(frozen=True)
class Mlp:
    hidden: tuple[int, ...] = (64, 64)
    dropout: float = 0.0
    norm: bool = True


CONFIG = RunConfig(workload=4_000, unit_size=32, model=Mlp())

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: replace(CONFIG, workload=0), "workload must be at least 1 unit, got 0"),
    (lambda: replace(CONFIG, unit_size=0), "unit_size must be at least 1 example, got 0"),
    (lambda: replace(CONFIG, workers=0), "workers must be at least 1, got 0"),
    (lambda: replace(CONFIG, servers=0), "servers must be at least 1, got 0"),
    (lambda: replace(CONFIG, seed=-1), "seed must be in"),
    (lambda: replace(CONFIG, seed=2**32), "seed must be in"),
    (lambda: replace(CONFIG, drain_secs=0.0), "drain_secs must be above 0"),
    (lambda: replace(CONFIG, workload="4000"), "workload must be int, got '4000' (str)"),
    (lambda: replace(CONFIG, workers=True), "workers must be int, got True (bool)"),
    (lambda: replace(CONFIG, optimizer={"name": "sgd"}), "optimizer must be OptimizerConfig"),
    (lambda: replace(CONFIG, model={"hidden": 64}), "model must be an instance of a frozen dataclass"),
    (lambda: replace(CONFIG, model=Mlp), "model must be an instance of a frozen dataclass"),
    (lambda: OptimizerConfig(learning_rate=0.0), "optimizer.learning_rate must be above 0, got 0.0"),
    (lambda: OptimizerConfig(learning_rate=float("nan")), "optimizer.learning_rate must be finite"),
    (lambda: OptimizerConfig(momentum=1.0), "optimizer.momentum must be in [0, 1)"),
    (lambda: OptimizerConfig(weight_decay=-0.1), "optimizer.weight_decay must be 0 or more"),
    (lambda: OptimizerConfig(clip=0.0), "optimizer.clip must be above 0 or none"),
    (lambda: OptimizerConfig(name=""), "optimizer.name must be a name"),
    (lambda: ScheduleConfig(kind=cast(Any, "linear")), "must be 'constant' or 'piecewise' or 'cosine', got 'linear'"),
    (lambda: ScheduleConfig(warmup=1.0), "optimizer.schedule.warmup must be in [0, 1)"),
    (lambda: ScheduleConfig(boundaries=(0.5,)), "must be empty for kind 'constant'"),
    (
        lambda: ScheduleConfig("piecewise", (0.5,), ()),
        "boundaries has 1 values and optimizer.schedule.factors 0",
    ),
    (lambda: ScheduleConfig("piecewise"), "one factor for each of one or more boundaries"),
    (lambda: ScheduleConfig("piecewise", (0.5, 0.5), (1.0, 0.1)), "must be ascending shares"),
    (lambda: ScheduleConfig("piecewise", (0.5, 1.0), (1.0, 0.1)), "must be ascending shares"),
    (lambda: ScheduleConfig("piecewise", (0.5,), (0.0,)), "factors must be above 0"),
    (lambda: HangConfig(compute_secs=1.0), "hang.compute_secs must be in [2, 3600], got 1.0"),
    (lambda: HangConfig(read_secs=3601.0), "hang.read_secs must be in [2, 3600], got 3601.0"),
    (lambda: HangConfig(compile_secs=math.inf), "hang.compile_secs must be finite, got inf"),
    (lambda: HangConfig(silent_secs=0.0), "hang.silent_secs must be in [2, 3600], got 0.0"),
    (lambda: CheckpointConfig(secs=0.0), "checkpoint.secs must be above 0"),
    (lambda: CheckpointConfig(keep=0), "checkpoint.keep must be at least 1"),
    (lambda: TelemetryConfig(log_secs=0.0), "telemetry.log_secs must be above 0"),
    (lambda: TelemetryConfig(evaluate_units=-1), "telemetry.evaluate_units must be 0 or more"),
    (lambda: TelemetryConfig(trace_units="20"), "telemetry.trace_units is '20', which names no units"),
    (lambda: TelemetryConfig(trace_units="20:20"), "telemetry.trace_units is '20:20', which names no units"),
    (lambda: TelemetryConfig(trace_units="-1:5"), "telemetry.trace_units is '-1:5', which names no units"),
    (lambda: EmulationConfig(compute_secs=-0.1), "emulation.compute_secs must be 0 or more"),
    (lambda: EmulationConfig(stragglers="worker=3"), "emulation.stragglers: cannot read 'worker=3'"),
    (lambda: EmulationConfig(stragglers="worker=3,delay_ms=3,speed=2"), "unknown key 'speed'"),
    (lambda: EmulationConfig(stragglers="worker=3,delay_ms=3,to=30"), "'30' lacks its %"),
    (lambda: EmulationConfig(stragglers="worker=3,delay_ms=3,from=50%,to=30%"), "from < to"),
    (lambda: EmulationConfig(stragglers="delay_ms=3"), "('worker' is missing)"),
    (lambda: EmulationConfig(stragglers="worker=-1,delay_ms=3"), "must have worker=0 or more, got -1"),
    (lambda: EmulationConfig(stragglers="worker=1,factor=0.5"), "must have factor=1 or more, got 0.5"),
    (lambda: EmulationConfig(stragglers="worker=1,factor=nan"), "must have factor=1 or more, got nan"),
    (lambda: EmulationConfig(stragglers="worker=1,rpc_ms=-2"), "must have rpc_ms=0 or more, got -2"),
    (lambda: EmulationConfig(stragglers="worker=1,bytes_per_sec=0"), "must have bytes_per_sec above 0, got 0"),
    (lambda: EmulationConfig(stragglers="worker=1,rpc_ms=2,every=5%"), "'every' and 'for' go together"),
    (
        lambda: EmulationConfig(stragglers="worker=1,rpc_ms=2,every=5%,for=6%"),
        "must have 0% < for <= every <= 100%, got 6% and 5%",
    ),
    (lambda: EmulationConfig(stragglers="syncswitch-3"), "did you mean 'syncswitch-"),
    (lambda: EmulationConfig(link_bytes_per_sec=0.0), "emulation.link_bytes_per_sec must be above 0 or none, got 0.0"),
    (lambda: EmulationConfig(port_bytes_per_sec=-1.0), "emulation.port_bytes_per_sec must be above 0 or none"),
    (lambda: EmulationConfig(port_bytes_per_sec=math.inf), "emulation.port_bytes_per_sec must be finite, got inf"),
    (lambda: EmulationConfig(latency_secs=-0.001), "emulation.latency_secs must be 0 or more, got -0.001"),
    (
        lambda: PolicyConfig(detector="paper", detector_floor=0.8),
        "policy.detector_floor must be left out with policy.detector=paper, got 0.8",
    ),
    (
        lambda: RunConfig(workload=400, workers=4, policy=PolicyConfig(detector_consecutive=11)),
        "policy.detector_consecutive must be at most 10, as many windows as each of 4 workers has, got 11",
    ),
    (
        lambda: replace(CONFIG, emulation=EmulationConfig(stragglers="worker=4,delay_ms=3")),
        "emulation.stragglers must be about workers 0 to 3, got 4",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_value_out_of_range_is_refused_with_its_name_and_value(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert caught.value.exit_code == 1


@dataclass(frozen=True)
class Inner:
    value: Any


@dataclass(frozen=True)
class Outer:
    inner: Inner
    sizes: tuple[Any, ...] = (1, 2.5, "three", None, True)


@pytest.mark.parametrize(
    "value", [Path("data"), np.dtype("float32"), np.float32, np.int64(3), (1, {2}), {"at": Path()}]
)
@pytest.mark.parametrize("group", ["model", "data"])
def test_a_value_that_config_json_cannot_hold_is_refused_by_its_field(group: str, value: Any) -> None:
    groups: dict[str, Any] = {group: Outer(Inner(value))}
    with pytest.raises(
        ConfigError, match=rf"^{group}\.inner\.value is .*, which config\.json cannot hold; give its name"
    ):
        RunConfig(workload=10, unit_size=1, **groups)


@pytest.mark.parametrize("key", [(1, 2), (), Inner(1), Path("data"), np.int64(3)])
def test_a_key_that_config_json_cannot_hold_is_refused_by_its_field(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model\.inner\.value has the key .*, which config\.json cannot hold"):
        RunConfig(workload=10, unit_size=1, model=Outer(Inner([{key: 3}])))


def test_what_config_json_can_hold_is_taken() -> None:
    config = RunConfig(workload=10, unit_size=1, model=Outer(Inner({"at": ((0.5,), None)})))
    assert to_json(config)["model"]["inner"] == {"value": {"at": [[0.5], None]}}
    keyed = RunConfig(workload=10, unit_size=1, model=Outer(Inner({2: "a", 0.5: "b", True: "c", None: "d"})))
    assert set(to_json(keyed)["model"]["inner"]["value"]) == {"2", "0.5", "true", "null"}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("bsp:60%,asp:60%", "the shares sum to 120 %"),
        ("bsp,asp", "both lack a length"),
        ("bsp:0.001%,asp", "'bsp' would get no unit of the 4000"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(plan: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        replace(CONFIG, plan=plan)
    assert message in str(caught.value)


def test_a_configuration_cannot_be_changed_in_place() -> None:
    config: Any = CONFIG
    with pytest.raises(FrozenInstanceError):
        config.workers = 8


def test_several_stragglers_are_separated_by_semicolons() -> None:
    text = "worker=3,delay_ms=30,from=10%,to=30%; worker=0,delay_ms=5"
    assert Straggler.parse(text) == (Straggler(3, 0.03, 0.1, 0.3), Straggler(0, 0.005, 0.0, 1.0))
    assert Straggler.parse("") == ()


def test_every_way_to_be_slow_can_be_given_and_scenarios_stand_beside_stragglers() -> None:
    text = "worker=2,delay_ms=5,factor=4,rpc_ms=10,bytes_per_sec=1e6,from=10%,to=90%,every=20%,for=5%;syncswitch-1"
    assert Straggler.parse(text) == (
        Straggler(2, 0.005, 0.1, 0.9, factor=4.0, rpc_secs=0.01, bytes_per_sec=1e6, every=0.2, lasts=0.05),
        Straggler(0, rpc_secs=0.01, start=0.02, stop=0.04),
    )


def slow_units(text: str, worker: int = 0, workload: int = 1000) -> list[range]:
    """Return the stretches of units with which a worker is slow."""
    stragglers = Stragglers(text, workload)
    slow = [unit for unit in range(workload) if stragglers.of(worker, unit) is not AS_FAST]
    ends = [i for i in range(len(slow)) if i + 1 == len(slow) or slow[i + 1] != slow[i] + 1]
    begins = [0, *(end + 1 for end in ends[:-1])]
    return [range(slow[begin], slow[end] + 1) for begin, end in zip(begins, ends, strict=True)] if slow else []


@pytest.mark.parametrize(
    ("when", "stretches"),
    [
        ("", [range(1000)]),
        (",from=10%,to=30%", [range(100, 300)]),
        (",every=20%,for=5%", [range(start, start + 50) for start in range(0, 1000, 200)]),
        (",every=20%,for=5%,from=30%,to=75%", [range(300, 350), range(500, 550), range(700, 750)]),
        (",every=20%,for=15%,from=30%,to=60%", [range(300, 450), range(500, 600)]),
        (",every=10%,for=10%,from=30%,to=60%", [range(300, 600)]),
    ],
)
def test_a_straggler_is_slow_for_good_for_a_stretch_or_again_and_again(when: str, stretches: list[range]) -> None:
    assert slow_units(f"worker=0,delay_ms=3{when}") == stretches
    assert slow_units(f"worker=0,delay_ms=3{when}", worker=1) == []


def test_the_scenarios_of_sync_switch_name_so_many_workers_so_often_and_so_much() -> None:
    assert slow_units("syncswitch-1") == [range(20, 40)]
    assert slow_units("syncswitch-1", worker=1) == []
    assert slow_units("syncswitch-2") == slow_units("syncswitch-2", worker=1)
    assert slow_units("syncswitch-2") == [range(20, 40), range(80, 100), range(140, 160), range(200, 220)]
    assert slow_units("syncswitch-2", worker=2) == []
    assert Stragglers("syncswitch-1", 1000).of(0, 30) == Slowness(rpc_secs=0.01)
    assert Stragglers("syncswitch-2", 1000).of(1, 30) == Slowness(rpc_secs=0.03)


def test_several_reasons_to_be_slow_add_up() -> None:
    text = "worker=0,factor=2,rpc_ms=5;worker=0,factor=3,delay_ms=1,rpc_ms=5,bytes_per_sec=100,to=50%"
    both, one = (Stragglers(text, 100).of(0, unit) for unit in (10, 60))
    assert both == Slowness(6.0, 0.001, 0.01, 100.0)
    assert one == Slowness(2.0, 0.0, 0.005)
    assert both.compute_secs(0.5) == pytest.approx(3.001)
    assert both.transfer_secs(200) == pytest.approx(2.01)


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("workers=8", lambda config: config.workers == 8),
        ("plan=bsp:10%,asp", lambda config: config.plan == "bsp:10%,asp"),
        ("optimizer.learning_rate=0.1", lambda config: config.optimizer.learning_rate == 0.1),
        ("optimizer.learning_rate=1", lambda config: type(config.optimizer.learning_rate) is float),
        ("optimizer.clip=2.5", lambda config: config.optimizer.clip == 2.5),
        ("optimizer.clip=none", lambda config: config.optimizer.clip is None),
        ("emulation.link_bytes_per_sec=2e7", lambda config: config.emulation.link_bytes_per_sec == 2e7),
        ("emulation.port_bytes_per_sec=none", lambda config: config.emulation.port_bytes_per_sec is None),
        ("optimizer.schedule.kind=cosine", lambda config: config.optimizer.schedule.kind == "cosine"),
        ("telemetry.apply_log=true", lambda config: config.telemetry.apply_log is True),
        ("model.hidden=32", lambda config: config.model.hidden == (32,)),
        ("model.hidden=(16, 8)", lambda config: config.model.hidden == (16, 8)),
        ("model.norm=False", lambda config: config.model.norm is False),
        (
            "emulation.stragglers=worker=3,delay_ms=30",
            lambda config: config.emulation.stragglers == "worker=3,delay_ms=30",
        ),
    ],
)
def test_an_override_sets_a_value_of_the_fields_own_type(override: str, read: Callable[[Any], bool]) -> None:
    assert read(apply_overrides(CONFIG, [override]))


def test_overrides_take_effect_together_and_the_later_of_two_holds() -> None:
    config = apply_overrides(
        CONFIG,
        [
            "optimizer.schedule.kind=piecewise",
            "optimizer.schedule.boundaries=0.5,0.75",
            "optimizer.schedule.factors=0.1,0.01",
            "workers=2",
            "workers=3",
        ],
    )
    assert config.optimizer.schedule == ScheduleConfig("piecewise", (0.5, 0.75), (0.1, 0.01))
    assert (config.workers, CONFIG.workers) == (3, 4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.momentum=0", "unknown configuration key 'optimiser'; did you mean 'optimizer'?"),
        ("optimizer.learningrate=0", "'optimizer.learningrate'; did you mean 'optimizer.learning_rate'?"),
        ("optimizer.schedule.knd=cosine", "did you mean 'optimizer.schedule.kind'?"),
        ("model.hiden=3", "did you mean 'model.hidden'?"),
        ("zzz=1", "unknown configuration key 'zzz'; known: workload, unit_size"),
        ("optimizer=sgd", "'optimizer' is a group, got 'sgd' for it; set one of optimizer.name"),
        ("seed.value=1", "'seed' is a value and has no key 'value'; set seed=..."),
        ("workers", "cannot read the override 'workers'; write path=value"),
        ("=3", "cannot read the override '=3'"),
        ("workers=four", "workers must be int, got 'four' in place of 4"),
        ("workers=4.0", "workers must be int, got '4.0'"),
        ("workers=0", "workers must be at least 1, got 0"),
        ("telemetry.apply_log=1", "telemetry.apply_log must be bool, got '1'"),
        ("optimizer.clip=small", "optimizer.clip must be float or none, got 'small'"),
        ("optimizer.schedule.kind=linear", "must be 'constant' or 'piecewise' or 'cosine', got 'linear'"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate must be finite"),
        ("model.hidden=1,x", "model.hidden must be tuple[int, ...], got '1,x'"),
        ("plan=bsp:60%,asp:60%", "the shares sum to 120 %"),
    ],
)
def test_an_override_that_does_not_fit_is_refused_with_what_would(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(CONFIG, [override])
    assert message in str(caught.value)


@given(
    workers=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1),
    learning_rate=st.floats(1e-6, 10.0),
    momentum=st.floats(0.0, 0.99),
    hidden=st.lists(st.integers(1, 4_096), max_size=4).map(tuple),
)
def test_what_an_override_writes_is_what_it_reads(
    workers: int, seed: int, learning_rate: float, momentum: float, hidden: tuple[int, ...]
) -> None:
    wanted = replace(
        CONFIG,
        workers=workers,
        seed=seed,
        optimizer=replace(CONFIG.optimizer, learning_rate=learning_rate, momentum=momentum),
        model=replace(Mlp(), hidden=hidden),
    )
    overrides = [
        f"workers={workers}",
        f"seed={seed}",
        f"optimizer.learning_rate={learning_rate!r}",
        f"optimizer.momentum={momentum!r}",
        f"model.hidden={hidden}",
    ]
    assert apply_overrides(CONFIG, overrides) == wanted


HEADER = """
from __future__ import annotations
from dataclasses import dataclass
from hybridsync.config import RunConfig

@dataclass(frozen=True)
class Model:
    hidden: int = 8

def task(config): ...
def optimizer(config): ...
"""


def test_a_file_is_run_and_its_own_dataclass_can_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(HEADER + "def config():\n    return RunConfig(workload=8, unit_size=2, model=Model())\n")
    loaded = load_config(file)
    assert loaded.config.workload == 8
    assert callable(loaded.module.task)
    assert apply_overrides(loaded.config, ["model.hidden=16"]).model.hidden == 16


def test_a_file_that_is_changed_within_a_second_is_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "same.py"
    for workload in (16, 32):
        file.write_text(HEADER + f"def config():\n    return RunConfig(workload={workload}, unit_size=1, plan='bsp')\n")
        os.utime(file, (1e9, 1e9))
        assert load_config(file).config.workload == workload
    assert [path.name for path in tmp_path.iterdir()] == ["same.py"]


def test_two_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    loaded = []
    for workload in (3, 4):
        file = tmp_path / str(workload) / "same.py"
        file.parent.mkdir()
        file.write_text(HEADER + f"def config():\n    return RunConfig(workload={workload}, unit_size=1, plan='bsp')\n")
        loaded.append(load_config(file))
    assert [one.module.config().workload for one in loaded] == [3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "has no function config()"),
        ("def config(): ...\n", "has no function task(config)"),
        (HEADER + "def config():\n    return 3\n", "config() returned int, not RunConfig"),
        (HEADER + "def config():\n    return missing\n", "bad.py, line 13: NameError: name 'missing'"),
        (
            HEADER + "def config():\n    return RunConfig(workload=0, unit_size=1)\n",
            "line 13: workload must be",
        ),
        ("import nothing_of_that_name\n", "bad.py, line 1: ModuleNotFoundError"),
        ("def config(:\n", "bad.py, line 1: invalid syntax"),
        (HEADER + "config = RunConfig(workload=9, unit_size=1)\n", "has no function config()"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_refused_and_the_nearest_one_named(tmp_path: Path) -> None:
    (tmp_path / "digits_mlp.py").write_text("")
    with pytest.raises(ConfigError, match=r"there is no configuration file .*digit_mlp\.py.*did you mean .*digits_mlp"):
        load_config(tmp_path / "digit_mlp.py")


def test_a_plan_error_of_a_file_stays_a_plan_error(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(HEADER + "def config():\n    return RunConfig(workload=9, unit_size=1, plan='bsp,asp')\n")
    with pytest.raises(PlanError, match="both lack a length"):
        load_config(file)


@pytest.mark.parametrize(
    "override",
    [
        "workers=8",
        "plan=asp",
        "checkpoint.secs=1",
        "telemetry.apply_log=true",
        "emulation.compute_secs=0.02",
        "emulation.port_bytes_per_sec=1e6",
        "drain_secs=1",
    ],
)
def test_a_resume_may_change_how_the_run_is_carried_out(override: str) -> None:
    check_resumable(to_json(CONFIG), apply_overrides(CONFIG, [override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "another seed: it was started with 0, the configuration says 1"),
        ("workload=5000", "another workload: it was started with 4000, the configuration says 5000"),
        ("model.hidden=8", "another model.hidden: it was started with [64, 64], the configuration says [8]"),
        ("optimizer.learning_rate=0.1", "optimizer.learning_rate: it was started with 0.05, the"),
        ("optimizer.schedule.kind=cosine", "optimizer.schedule.kind: it was started with constant"),
        (
            "unit_size=64",
            "another unit_size: it was started with 32, the configuration says 64; use the earlier",
        ),
    ],
)
def test_a_resume_that_would_be_another_run_is_refused_with_both_values(override: str, message: str) -> None:
    with pytest.raises(ResumeError) as caught:
        check_resumable(to_json(CONFIG), apply_overrides(CONFIG, [override]))
    assert message in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_resume_with_a_larger_workload_names_init_from_and_one_with_a_smaller_does_not() -> None:
    for workload, is_named in (("5000", True), ("3000", False)):
        with pytest.raises(ResumeError) as caught:
            check_resumable(to_json(CONFIG), apply_overrides(CONFIG, [f"workload={workload}"]))
        assert ("--init_from" in str(caught.value)) is is_named


def test_all_that_differs_is_named_at_once() -> None:
    with pytest.raises(ResumeError, match=r"another workload: .*; another seed: "):
        check_resumable(to_json(CONFIG), apply_overrides(CONFIG, ["seed=1", "workload=5000"]))


def test_another_model_class_is_refused_by_the_fields_that_only_one_has() -> None:
    @dataclass(frozen=True)
    class Resnet:
        depth: int = 8

    with pytest.raises(ResumeError, match=r"model\.depth: it was started with nothing, the configuration says 8"):
        check_resumable(to_json(CONFIG), replace(CONFIG, model=Resnet()))


def test_another_unit_size_is_possible_when_units_are_converted() -> None:
    check_resumable(to_json(CONFIG), replace(CONFIG, unit_size=64), convert_units=True)


@pytest.mark.parametrize("plan", ["bsp:1u,asp", "bsp:1passes,asp"])
def test_lengths_in_units_are_not_converted(plan: str) -> None:
    config = replace(CONFIG, plan=plan)
    with pytest.raises(ResumeError, match="--convert_units converts shares of the workload, and the plan 'bsp:1"):
        check_resumable(to_json(config), replace(config, unit_size=64), convert_units=True)


def test_a_file_that_nobody_may_look_for_is_refused_in_one_line(tmp_path: Path) -> None:
    with no_access(tmp_path):
        for load, kind in ((load_config, "configuration"), (load_scenario, "scenario")):
            with pytest.raises(ConfigError, match=rf"cannot read the {kind} file .*: Permission denied; give yourself"):
                load(tmp_path / "job.py")
