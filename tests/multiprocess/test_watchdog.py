"""A worker whose unit hangs is ended by its own watchdog, replaced, and the unit is computed by somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.job import assert_exactly_once
from tests.multiprocess.scenarios import tally, until_told


@pytest.mark.timeout(300)
def test_a_worker_that_hangs_where_nobody_waits_for_it_is_replaced(tmp_path: Path) -> None:
    planted = until_told("unit_17_hangs_once")
    with tally(tmp_path / "run", plan="asp", units=3000, workers=2, planted=planted) as job:
        (lost,) = job.until(lambda: job.events("role_lost"), "a worker was lost")
        worker = lost["id"]
        message = f"the watchdog ends worker {worker}: unit 17 has made no progress for "
        assert lost["role"] == "worker" and lost["reason"].startswith(f"exit 70: {message}")
        job.until(lambda: job.live_workers().get(worker, lost["pid"]) != lost["pid"], "another process had joined")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["dropped"] == 0
        assert [event["pid"] for event in job.events("role_lost")] == [lost["pid"]]
        log = job.log(f"worker-{worker}")
        told, stacks = log.split(message)
        assert "planted.py" in stacks and "in hang" in stacks and "in gradient" in stacks
        assert "its limit is 5 s. Stacks of all threads follow" in stacks and "watchdog" not in told
