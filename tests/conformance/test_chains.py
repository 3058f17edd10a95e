"""Jobs of processes that go through several protocols each: to start a job for every protocol takes far longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync import protocols
from tests.conformance.drivers import counting, run_in_processes
from tests.multiprocess.test_replay_processes import launch
from tests.trainers import events_of, is_exact

DIGITS = str(Path(__file__).resolve().parents[2] / "configs/digits_mlp.py")
TALLY = str(Path(__file__).resolve().parents[2] / "configs/tally.py")
NUM_JOBS = 2
UNITS = 48
"""Of a stage: some for each of the four workers in every lease, and the last lock-step step is full."""


@pytest.mark.timeout(600)
def test_processes_that_sum_over_tcp_and_push_over_grpc_apply_every_unit_once_and_replay(tmp_path: Path) -> None:
    """The other tests' processes do both over shared memory."""
    run = tmp_path / "run"
    overrides = [
        "plan=preduce:30%,asp(wire=bfloat16):20%,bsp:30%,adpsgd",
        "workers=3",
        f"workload={4 * UNITS}",
        "telemetry.apply_log=true",
    ]
    summary = run_in_processes(TALLY, overrides, run, "--collective=host", "--link=grpc")
    assert summary["exit"] == "completed" and is_exact(summary["final"])
    assert [event["collective"] for event in events_of(run, "run_started")] == ["host"]
    done = launch("replay", str(run))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_rounded_gradients_are_replayed_bit_for_bit_where_two_servers_read_them_in_place(tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [
        "plan=asp(wire=bfloat16):30%,bsp:20%,ssp(wire=bfloat16):30%,asp",
        "workers=3",
        "servers=2",
        "workload=300",
        "telemetry.apply_log=true",
    ]
    summary = run_in_processes(DIGITS, overrides, run)
    assert summary["exit"] == "completed" and summary["units"]["applied"] == 300
    done = launch("replay", str(run))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names", [sorted(protocols.REGISTRY)[first::NUM_JOBS] for first in range(NUM_JOBS)], ids=" ".join
)
def test_processes_enter_each_protocol_from_asynchrony_and_from_lock_step_and_apply_every_unit_once(
    tmp_path: Path, names: list[str]
) -> None:
    stages = [stage for name in names for stage in ("asp", counting(name), "bsp", counting(name))]
    plan = ",".join(f"{stage}:{100 / len(stages)}%" for stage in stages[:-1])
    overrides = [f"plan={plan},{stages[-1]}", "workers=4", "checkpoint.secs=3600.0", f"workload={UNITS * len(stages)}"]
    summary = run_in_processes(TALLY, overrides, tmp_path / "run")
    assert summary["exit"] == "completed"
    assert is_exact(summary["final"])
    units = summary["units"]
    assert units["applied"] == units["workload"] == UNITS * len(stages)
    assert units["issued"] == units["applied"] + units["dropped"] + units["outstanding"]
    assert units["outstanding"] == units["rolled_back"] == 0
    entered = events_of(tmp_path / "run", "phase_entered")
    assert [event["protocol"] for event in entered] == stages
