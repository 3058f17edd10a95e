"""A policy acts on a live run of processes: a straggler leaves lock-step and comes back, and no process ends for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridsync.telemetry.summary import read_summary
from tests.multiprocess.job import Job

WORKLOAD = 1600
FLAGS = (
    *("--workers=3", "--compute_secs=0.02", "--stragglers=worker=1,delay_ms=80,from=7.5%,to=30%"),
    *(f"--set=workload={WORKLOAD}", "--set=telemetry.timeline=false"),
)


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["elastic", pytest.param("greedy", marks=pytest.mark.soak)])
def test_a_straggler_is_dealt_with_and_no_process_is_restarted(tmp_path: Path, policy: str) -> None:
    plan = "--plan=bsp:60%,asp"
    with Job(tmp_path / "run", "configs/tally.py", plan, f"--policy={policy}", *FLAGS) as job:
        assert job.wait() == 0, job.output + job.logs()
    summary = read_summary(tmp_path / "run")
    assert summary is not None
    assert {key: summary["final"][key] for key in ("min_count", "max_count")} == {"min_count": 1, "max_count": 1}
    assert summary["units"]["rolled_back"] == 0
    assert not job.events("role_lost") and len(job.events("worker_joined")) == 3
    entered = [(event["protocol"], event["members"], event["reason"]) for event in job.events("phase_entered")]
    everybody = [0, 1, 2]
    meanwhile = ("bsp", [0, 2]) if policy == "elastic" else ("asp", everybody)
    assert entered[:3] == [
        ("bsp", everybody, "start"),
        (*meanwhile, "policy"),
        ("bsp", everybody, "policy"),
    ], job.output
    # On a busy machine others are slow, too: detours may take all that was planned for asynchrony.
    assert entered[-1] in [("asp", everybody, "planned"), ("bsp", everybody, "policy")]
    decided = [event["action"] for event in job.events("policy_decided") if event["action"] != "stay"]
    # Injected by unit, the delay may come again: a detour's units are not done in order. So there may be more pairs.
    assert decided[:2] == ["without workers [1]" if policy == "elastic" else "asp instead", "as planned"]
    begins = [event["units"] for event in job.events("phase_entered")]
    phases = list(zip(entered, begins, [*begins[1:], WORKLOAD], strict=True))
    lock_step = sum(stop - start for (protocol, *_), start, stop in phases if protocol == "bsp")
    detours = sum(stop - start for (protocol, _, why), start, stop in phases if (protocol, why) == ("asp", "policy"))
    left = WORKLOAD - detours  # several detours may take more than was planned for asynchrony
    assert lock_step == min(WORKLOAD * 6 // 10, left), "the lock-step share is done, wherever it was"
