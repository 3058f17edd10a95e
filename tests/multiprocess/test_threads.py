"""Each role of a run computes with as many threads as it was given, and the record tells the number."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.multiprocess.scenarios import tally


def threads_of_xla(pid: int) -> int:
    names = []
    for task in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(task.read_text().strip())
    return names.count("tf_XLAEigen")


@pytest.mark.timeout(300)
def test_every_role_has_the_threads_that_were_asked_for(tmp_path: Path) -> None:
    with tally(tmp_path / "run", "--threads_per_role=3", plan="asp", units=2000, workers=2) as job:
        job.until_phase("asp")
        pids = {event["role"]: event["pid"] for event in job.events("role_started")}
        assert {role: threads_of_xla(pids[role]) for role in ("server", "worker")} == {"server": 3, "worker": 3}
        (started,) = job.events("run_started")
        assert started["num_threads"] == 3
