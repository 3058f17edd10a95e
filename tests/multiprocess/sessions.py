"""Runs of many sessions: each is ended from outside, at a drawn point, and the same command goes on with the next."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.multiprocess.job import Job, assert_exactly_once, processes_of
from tests.multiprocess.planted import SAVE_STAGES
from tests.multiprocess.scenarios import SOON, gone, tally
from tests.multiprocess.stages import STAGES

ANYWHERE = "anywhere"
GRACE_SECS = 60.0
"""How long a run may take to save and leave: far above a unit, and below what preemption notices give."""


def switching(num_switches: int) -> str:
    """Return a plan of equal stages, lock-step and asynchronous in turn."""
    share = 100 / (num_switches + 1)
    return ",".join(f"{'asp' if stage % 2 else 'bsp'}:{share:g}%" for stage in range(num_switches + 1))


PLAN = switching(39)


def drawn(rng: random.Random, at_stages: int, in_saves: int, anywhere: int) -> list[str]:
    """Return where each session ends, in a drawn order: every stage in turn, every step of a save in turn, or
    anywhere."""
    points = [STAGES[index % len(STAGES)] for index in range(at_stages)]
    points += [SAVE_STAGES[index % len(SAVE_STAGES)] for index in range(in_saves)]
    points += [ANYWHERE] * anywhere
    rng.shuffle(points)
    return points


def everything_is_killed_again_and_again(
    workdir: Path, points: Sequence[str], *, seed: int, units: int, workers: int = 3, plan: str = PLAN
) -> dict[str, int]:
    """Kill the whole tree of processes at each point; the last session completes, exact. Returns the run's
    accounting."""
    rng = random.Random(seed)

    def start(planted: str, unit_secs: float) -> Job:
        more = "--checkpoint_secs=1"
        return tally(workdir, more, plan=plan, units=units, workers=workers, unit_secs=unit_secs, planted=planted)

    for session, point in enumerate(points):
        with start("" if point == ANYWHERE else f"stands_at:{point}", 0.01) as job:
            if point == ANYWHERE:
                job.pause(rng.uniform(0.5, 15.0))
            else:
                marker = workdir / f"at-{point}"
                job.until(marker.exists, f"session {session} came to {point}")
            assert job.process.poll() is None, f"session {session} ended by itself:\n{job.screen()}\n{job.logs()}"
            pids = processes_of(job.process.pid)
            job.kill_everything()
            assert all(map(gone, pids)), f"session {session}: a role outlived its supervisor"
        for left in workdir.glob("*at-*"), workdir.glob("was-*"):
            for path in left:
                path.unlink(missing_ok=True)
    with start("", 0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    phase_numbers = [event["phase"] for event in job.events("phase_entered")]
    assert phase_numbers == sorted(set(phase_numbers)), f"a phase was handed out twice: {phase_numbers}"
    assert job.tracebacks() == []
    return job.summary()["units"]


def until_heeded(job: Job, number: signal.Signals = signal.SIGTERM) -> None:
    """Wait until the program handles the signal: before that, it is the interpreter's, which has nothing to save."""

    def handled() -> bool:
        status = Path(f"/proc/{job.process.pid}/status").read_text()
        (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(mask, 16) >> (number - 1) & 1)

    job.until(handled, f"{number.name} was heeded")


def asked_to_stop_again_and_again(
    workdir: Path, runtimes: Iterable[str], *, seed: int, units: int, plan: str = PLAN, longest_secs: float = 6.0
) -> dict[str, int]:
    """Ask each session to stop at a drawn time: it saves and leaves with 75. Returns the accounting of the last
    session.

    Nothing is rolled back by any of them.
    """
    rng = random.Random(seed)
    for session, runtime in enumerate(runtimes):
        with tally(workdir, f"--runtime={runtime}", plan=plan, units=units, workers=2, unit_secs=0.05) as job:
            until_heeded(job)
            job.pause(rng.uniform(0.0, longest_secs))
            pids = processes_of(job.process.pid)
            job.send(signal.SIGTERM)
            assert job.wait(secs=GRACE_SECS) == 75, f"session {session} ({runtime}):\n{job.output}\n{job.logs()}"
            assert all(map(gone, pids)), f"session {session} left a role behind"
    with tally(workdir, "--runtime=inprocess", plan=plan, units=units, workers=2, unit_secs=0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    assert job.summary()["units"]["rolled_back"] == 0, "a preempted run lost units"
    assert job.events("rollback") == [] and job.tracebacks() == []
    return job.summary()["units"]


def a_second_signal_ends_it_at_once(workdir: Path) -> None:
    """A run in one process does not wait for its units either; the same command completes it."""
    with tally(workdir, "--runtime=inprocess", plan="bsp", units=40, workers=2, unit_secs=5.0) as job:
        job.until_units(1)  # else no unit may have been leased, for which the first signal waits
        job.send(signal.SIGTERM)
        job.pause(0.5)
        assert job.process.poll() is None, "the first signal did not wait for the units under way"
        job.send(signal.SIGTERM)
        assert job.wait(secs=3.0) == -signal.SIGTERM, job.output  # a unit takes longer
        assert job.events()[-1]["kind"] != "run_finished"


def a_server_stands_still(workdir: Path, secs: float | None, *, units: int = 900) -> dict[str, int]:
    """Stop a server: for `secs`, which nobody may lose anything by, or, where that is None, until it is replaced.

    Returns the run's accounting.
    """
    more = ("--checkpoint_secs=2", "--servers=2", "--set=model.copies=4", *(SOON if secs is None else ()))
    with tally(workdir, *more, plan="asp", units=units, workers=3, unit_secs=0.02) as job:
        job.until_units(units // 6)
        (pid,) = [e["pid"] for e in job.events("role_started") if (e["role"], e["id"]) == ("server", 0)]
        os.kill(pid, signal.SIGSTOP)
        if secs is None:
            assert job.until_lost(pid)["reason"].startswith("no sign of life")
            assert gone(pid), "the stopped server was left behind"
        else:
            job.pause(secs)
            os.kill(pid, signal.SIGCONT)
        assert job.wait() == 0, job.output + job.logs()
    assert_exactly_once(job.summary())
    reasons = [event["reason"] for event in job.events("phase_entered")]
    assert reasons == (["start"] if secs is not None else ["start", "death"])
    lost = [event["role"] for event in job.events("role_lost")]
    assert lost == ([] if secs is not None else ["server"]), f"{lost} were lost with it"
    assert job.tracebacks() == []
    return job.summary()["units"]
