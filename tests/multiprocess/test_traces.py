"""Worker processes trace chosen units, each into a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.job import Job
from tests.traces import units_of

pytestmark = pytest.mark.timeout(300)


def test_each_worker_process_leaves_a_trace_of_its_chosen_units(tmp_path: Path) -> None:
    flags = ("--workers=2", "--plan=bsp", "--set=workload=80", "--set=telemetry.trace_units=20:40")
    with Job(tmp_path / "run", "configs/digits_mlp.py", *flags) as job:
        assert job.wait() == 0, job.output + job.logs()
    traced = [units_of(tmp_path / "run" / "trace" / f"worker-{worker}") for worker in range(2)]
    assert not traced[0] & traced[1]
    assert {*range(22, 40)} <= traced[0] | traced[1] <= {*range(20, 40)}
