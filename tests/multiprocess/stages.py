"""A role killed at a stage of a switch: `python -m tests.multiprocess.stages` tries every role, stage and direction."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from hybridsync.core.clock import SYSTEM_CLOCK
from tests.multiprocess.job import Job, assert_exactly_once
from tests.multiprocess.scenarios import gone, newest_pid, tally

STAGES = ("DRAIN", "CAPTURE", "RESERVE", "ENTER", "COMMIT")
PLANS = ("bsp:50%,asp", "asp:50%,bsp")
VICTIMS = ("chief-0", "server-0", "worker-0", "worker-1", "supervisor-0")


def a_role_is_killed_at_a_stage(workdir: Path, plan: str, stage: str, victim: str) -> dict[str, int]:
    """Every unit is applied once, every phase is handed out once; returns the run's accounting.

    Only the server's death, or everybody's, may cost units that were applied.
    """
    units, more = 400, ("--checkpoint_secs=600",)

    def start(planted: str) -> Job:
        return tally(workdir, *more, plan=plan, units=units, workers=3, unit_secs=0.02, planted=planted)

    with start(f"stands_at:{stage}") as job:
        marker = workdir / f"at-{stage}"
        job.until(marker.exists, f"the switch came to {stage}")
        role, _, role_id = victim.rpartition("-")
        pid = newest_pid(job, role, int(role_id))
        os.kill(pid, signal.SIGKILL)
        assert gone(pid), f"{victim} outlived SIGKILL"
        marker.unlink()
        if victim == "supervisor-0":
            pids = [event["pid"] for event in job.events("role_started")]
            assert all(gone(pid) for pid in pids), "a role outlived its supervisor"
            job.kill_everything()
        else:
            assert job.wait(stuck_secs=60.0) == 0, job.output + job.logs()
    if victim == "supervisor-0":
        with start("") as job:
            assert job.wait(stuck_secs=60.0) == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    phase_numbers = [event["phase"] for event in job.events("phase_entered")]
    assert phase_numbers == sorted(set(phase_numbers)), f"a phase was handed out twice: {phase_numbers}"
    counts = job.summary()["units"]
    if victim not in ("server-0", "supervisor-0"):
        assert counts["rolled_back"] == 0, f"the death of {victim} at {stage} cost {counts['rolled_back']} units"
    assert job.tracebacks() == []
    return counts


def main(only: str = "") -> None:
    """Try everything that `only` is part of the name of, and print a line each."""
    failed = 0
    for plan in PLANS:
        for stage in STAGES:
            for victim in VICTIMS:
                name = f"{plan} {stage} {victim}"
                if only not in name:
                    continue
                started = SYSTEM_CLOCK.monotonic()
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        counts = a_role_is_killed_at_a_stage(Path(folder) / "run", plan, stage, victim)
                        result = f"exact, rolled_back {counts['rolled_back']}"
                    except AssertionError as error:
                        failed += 1
                        result = f"FAILED: {error}"
                print(f"{name}: {result} ({SYSTEM_CLOCK.monotonic() - started:.0f} s)", flush=True)
    print(f"{failed} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
