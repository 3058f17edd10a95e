"""What a slow worker waits for by itself, on a clock that stands still but for its waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.config import EmulationConfig
from hybridsync.emulation.device import Emulation
from tests.telemetry.clocks import ManualClock
from tests.trainers import events_of, tally_trainer


def unit_secs(config: EmulationConfig, real_secs: float = 0.01, *, worker: int = 1, unit: int = 4) -> float:
    """Return what a unit takes whose gradient takes this machine `real_secs`, of a workload of ten."""
    clock = ManualClock(now=0.0)
    emulation = Emulation(config, 10, clock.advance)
    clock.advance(real_secs)
    emulation.finish(worker, unit, 0.0, clock)
    return clock.now


@pytest.mark.parametrize(
    ("config", "secs"),
    [
        (EmulationConfig(), 0.01),
        (EmulationConfig(compute_secs=0.05), 0.05),
        (EmulationConfig(compute_secs=0.005), 0.01),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,delay_ms=30"), 0.08),
        (EmulationConfig(compute_secs=0.005, stragglers="worker=1,delay_ms=30"), 0.04),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,factor=4"), 0.2),
        (EmulationConfig(stragglers="worker=1,factor=4"), 0.04),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,factor=4,delay_ms=30"), 0.23),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,factor=2;worker=1,factor=3,delay_ms=1"), 0.301),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,rpc_ms=500,bytes_per_sec=1"), 0.05),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=1,factor=4,from=50%,to=80%"), 0.05),
        (EmulationConfig(compute_secs=0.05, stragglers="worker=0,factor=4"), 0.05),
    ],
)
def test_a_unit_takes_the_emulated_device_a_factor_and_a_delay_longer(config: EmulationConfig, secs: float) -> None:
    assert unit_secs(config) == pytest.approx(secs)


def test_what_a_slow_link_carries_takes_its_delay_and_its_bytes_and_nothing_where_nobody_is_slow() -> None:
    clock = ManualClock(now=0.0)
    config = EmulationConfig(stragglers="worker=1,rpc_ms=500,bytes_per_sec=100,from=50%")
    emulation = Emulation(config, 10, clock.advance)
    assert not emulation.send(1, unit=4, num_bytes=200)
    assert not emulation.send(0, unit=5, num_bytes=200)
    assert clock.now == 0.0
    assert emulation.send(1, unit=5, num_bytes=200)
    assert clock.now == pytest.approx(2.5)


def test_who_is_slow_by_its_link_alone_is_flagged_in_lock_step_where_everybody_waits_for_it(tmp_path: Path) -> None:
    emulation = EmulationConfig(compute_secs=0.01, stragglers="worker=1,rpc_ms=30")
    summary = tally_trainer("bsp", 240, emulation=emulation, workdir=tmp_path / "run").fit().summary
    assert summary.seconds >= 60 * 0.04
    assert 1 in [event["worker"] for event in events_of(tmp_path / "run", "straggler_flagged")]
