"""Online policies in one process: they act while it trains, every unit is applied once, and a resume goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hybridsync import EmulationConfig, TelemetryConfig, Trainer
from hybridsync.config import PolicyConfig
from hybridsync.telemetry.metrics import Metrics
from tests.trainers import events_of, is_exact, tally_trainer

SLOW = EmulationConfig(compute_secs=0.01, stragglers="worker=2,delay_ms=50,from=5%,to=15%")
ALL = [0, 1, 2]
WORKLOAD, SHARE = 2400, 1440


def trainer(policy: Any, workdir: Path, **more: Any) -> Trainer:
    options = {"workload": WORKLOAD, "workers": 3, "emulation": SLOW, "policy": PolicyConfig(online=policy), **more}
    return tally_trainer("bsp:60%,asp", workdir=workdir, telemetry=TelemetryConfig(timeline=False), **options)


def phases(workdir: Path) -> list[tuple[str, list[int], str]]:
    return [(event["protocol"], event["members"], event["reason"]) for event in events_of(workdir, "phase_entered")]


def lock_step_share_is_done(workdir: Path) -> bool:
    """Tell so of a run that was never set back; several detours may take more than was planned for asynchrony."""
    entered = events_of(workdir, "phase_entered")
    ends = [*(event["units"] for event in entered[1:]), WORKLOAD]
    units = Counter[str]()
    for event, end in zip(entered, ends, strict=True):
        units["detour" if (event["protocol"], event["reason"]) == ("asp", "policy") else event["protocol"]] += (
            end - event["units"]
        )
    return units["bsp"] == min(SHARE, WORKLOAD - units["detour"])


@pytest.mark.parametrize(
    ("policy", "meanwhile"),
    [("greedy", ("asp", ALL)), pytest.param("elastic", ("bsp", [0, 1]), marks=pytest.mark.soak)],
)
def test_a_straggler_is_dealt_with_while_it_is_one(tmp_path, policy, meanwhile):
    result = trainer(policy, tmp_path).fit()
    assert is_exact(result.summary.final) and result.summary.units.rolled_back == 0
    start, planned = ("bsp", ALL, "start"), ("asp", ALL, "planned")
    assert phases(tmp_path)[:3] == [start, (*meanwhile, "policy"), ("bsp", ALL, "policy")]
    assert phases(tmp_path)[-1] in [planned, ("bsp", ALL, "policy")], "a busy machine may take further detours"
    assert lock_step_share_is_done(tmp_path)
    switches = [each["from"] + "-" + each["to"] for each in result.summary.switches if each["reason"] == "policy"]
    assert switches[:2] == [f"bsp-{meanwhile[0]}", f"{meanwhile[0]}-bsp"]


def test_a_run_that_is_stopped_on_a_detour_makes_up_for_it_when_it_goes_on(tmp_path):
    first = trainer("greedy", tmp_path)

    def stop(metrics: Metrics) -> None:
        if metrics.protocol == "asp":
            first.preempt()

    first.add_hook(stop, every=30)
    assert not first.fit().completed
    assert [spec for spec, *_ in phases(tmp_path)] == ["bsp", "asp"]
    even = EmulationConfig(compute_secs=0.005)
    result = trainer("greedy", tmp_path, emulation=even).fit()
    assert result.completed and is_exact(result.summary.final)
    entered = [spec for spec, *_ in phases(tmp_path)]
    assert entered[:3] == ["bsp", "asp", "bsp"], "and more of both where this machine was busy"
    assert lock_step_share_is_done(tmp_path)
