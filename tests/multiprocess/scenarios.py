"""Faults as stories: each starts jobs, hurts them, and asserts; with a planted bug the same story must fail."""

from __future__ import annotations

import functools
import os
import random
import select
import signal
from itertools import pairwise
from pathlib import Path

from hybridsync.core.plan import Plan
from hybridsync.storage.jsonl import read_lines
from tests.multiprocess.job import STUCK_SECS, Job, assert_exactly_once

AVERAGED = "bsp:20%,asp:60%,bsp"
LONGEST_GAP_SECS = 2.5
"""The others' pause that a lost worker may cost at most: the lease is longer, a new process takes longer."""


GLOO = "--collective=host"
"""For what only a process group meets."""
GRPC = "--link=grpc"
"""For pushes that leave shared memory alone."""

SOON = ("--set=hang.silent_secs=4", "--set=hang.compute_secs=4", "--set=hang.read_secs=4")
"""For processes that are stopped, or hang, for good: half a minute is nothing by default."""

TCP = "--link=tcp"
"""For buffers on sockets of their own, as between hosts."""


def tally(
    workdir: Path,
    *more: str,
    plan: str,
    units: int,
    workers: int = 4,
    unit_secs: float = 0.01,
    planted: str = "",
    under: tuple[str, ...] = (),
) -> Job:
    """Start, or resume, a tally run whose workers take `unit_secs` a unit; `more` are further flags."""
    flags = [*more, f"--workers={workers}", f"--plan={plan}", f"--compute_secs={unit_secs}"]
    flags += [f"--set=workload={units}", "--set=telemetry.log_secs=0.1"]
    return Job(workdir, "configs/tally.py", *flags, planted=planted, under=under)


def until_told(*planted: str) -> str:
    """Plant, beside bugs, that units take their time until `Job.hurry`: the run lasts as long as its story needs."""
    return "+".join(filter(None, ("units_take_their_time_until_told", *planted)))


def workers_started(job: Job) -> list[int]:
    """Return the number of each worker that has joined, as often as a process of it did."""
    return sorted(event["id"] for event in job.events("role_started") if event["role"] == "worker")


def longest_pause(job: Job, protocol: str) -> float:
    """Return the longest time in this protocol's phases that passed without a unit applied, by metrics.jsonl."""
    lines = [line for line in read_lines(job.workdir / "metrics.jsonl") if line["protocol"] == protocol]
    grown = [line for before, line in pairwise(lines) if line["units"] > before["units"]]
    return max(b["t"] - a["t"] for a, b in pairwise(grown) if a["phase"] == b["phase"])


def gone(pid: int, secs: float = 60.0) -> bool:
    """Wait for the end of a process that is not our child, and return whether it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], secs)[0])
    finally:
        os.close(descriptor)


def workers_are_killed_under_asp(
    workdir: Path,
    *more: str,
    plan: str = AVERAGED,
    units: int = 1500,
    workers: int = 4,
    victims: tuple[int, ...] = (1, 2),
    planted: str = "",
    stuck_secs: float = STUCK_SECS,
) -> None:
    """The others do not pause, each unit is applied once, and the new processes enter the lock-step mesh."""
    planted = until_told(planted)
    with tally(workdir, *more, plan=plan, units=units, workers=workers, unit_secs=0.04, planted=planted) as job:
        job.until_phase("asp")
        dead = set()
        for worker in victims:
            job.pause(1.0)  # on a busy machine, too, it has pushed a unit since the servers' last report
            dead.add(job.kill_worker(worker))
        for pid in dead:
            assert job.until_lost(pid)["reason"] == "signal SIGKILL"
        job.until(lambda: len(workers_started(job)) >= workers + len(dead), "other processes took their places")
        job.hurry()
        assert job.wait(stuck_secs=stuck_secs) == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert longest_pause(job, "asp") < LONGEST_GAP_SECS
        last = job.events("phase_entered")[-1]
        if last["protocol"] == "bsp":
            assert sorted(last["members"]) == list(range(workers))
            assert not dead & set(job.live_workers().values())
        assert job.tracebacks() == []


def everything_is_killed_and_resumed(workdir: Path, *, planted: str = "", workers: int = 3) -> None:
    """What was applied after the last commit is rolled back with the state, and applied again."""
    save, units = "--checkpoint_secs=600", 2000  # none between unit 0 and the end, which is seconds away
    with tally(workdir, save, plan="asp", units=units, workers=workers, unit_secs=0.02, planted=planted) as job:
        job.until_units(150)
        pids = [event["pid"] for event in job.events("role_started")]
        job.kill_everything()
        assert all(gone(pid) for pid in pids), "a role outlived its supervisor"
        assert job.events()[-1]["kind"] != "run_finished"
    with tally(workdir, save, plan="asp", units=units, workers=workers, unit_secs=0.0, planted=planted) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        (rollback,) = job.events("rollback")
        assert rollback["rolled_back"] >= 150 and rollback["to_units"] == 0
        assert job.summary()["units"]["rolled_back"] == rollback["rolled_back"]
        assert [event["reason"] for event in job.events("phase_entered")] == ["start", "resume"]
        phase_numbers = [event["phase"] for event in job.events("phase_entered")]
        assert phase_numbers == sorted(set(phase_numbers)), "a phase was handed out twice"
        assert job.tracebacks() == []


def sigterm_saves_and_the_same_command_completes(
    workdir: Path,
    *,
    plan: str = "asp:50%,bsp",
    units: int = 600,
    workers: int = 2,
    planted: str = "",
    to_all: bool = False,
    number: signal.Signals = signal.SIGTERM,
) -> None:
    """Exit 75 means that nothing was lost: no unit is rolled back when the run goes on.

    With `to_all` every process of the run gets the signal `number`.
    """
    phases = [stage.protocol for stage in Plan.parse(plan).stages]
    slow = "--stragglers=worker=0,delay_ms=300,from=55%,to=100%"  # the run does not end before it is asked to
    for protocol in phases:
        with tally(workdir, slow, plan=plan, units=units, workers=workers, planted=planted) as job:
            job.until_phase(protocol)
            (job.send_to_all if to_all else job.send)(number)
            assert job.wait() == 75, job.output + job.logs()
            summary = job.summary()
            assert summary["exit"] == "preempted" and 0 < summary["units"]["applied"] < units
            assert job.events()[-1]["kind"] == "run_finished"
            assert job.tracebacks() == []
    with tally(workdir, plan=plan, units=units, workers=workers, planted=planted) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0, "a preempted run lost units"
        assert job.events("rollback") == []
        assert [event["reason"] for event in job.events("phase_entered")].count("resume") == len(phases)


def a_second_sigterm_ends_the_run_at_once(workdir: Path, *, workers: int = 2, planted: str = "") -> None:
    """It does not wait for the units under way; the same command completes the run."""
    with tally(workdir, plan="bsp", units=40, workers=workers, unit_secs=4.0, planted=planted) as job:
        job.until_units(workers)  # the next steps are handed out already
        job.send(signal.SIGTERM)
        job.pause(0.5)
        assert job.process.poll() is None, "the first signal did not wait for the units under way"
        job.send(signal.SIGTERM)
        assert job.wait(secs=3.0) == 70, job.output  # a unit takes longer
        assert "a second signal has ended the run before it was saved" in job.screen()
        assert job.events()[-1]["kind"] != "run_finished"
    with tally(workdir, plan="bsp", units=40, workers=workers, unit_secs=0.0, planted=planted) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())


def a_worker_is_stopped_beyond_its_lease(
    workdir: Path,
    *,
    plan: str = "asp:80%,bsp",
    units: int = 3000,
    workers: int = 4,
    victim: int = 2,
    planted: str = "",
    stuck_secs: float = STUCK_SECS,
) -> None:
    """The others go on and take over its units; its process is ended, and another one takes its place."""
    planted = until_told(planted)
    with tally(workdir, *SOON, plan=plan, units=units, workers=workers, unit_secs=0.05, planted=planted) as job:
        job.until_units(100)
        pid = job.kill_worker(victim, signal.SIGSTOP)
        lost = job.until_lost(pid)
        assert lost["reason"].startswith("no sign of life") and lost["id"] == victim
        job.until(lambda: len(workers_started(job)) > workers, "another process took its place")
        job.hurry()
        assert job.wait(stuck_secs=stuck_secs) == 0, job.output + job.logs()
        assert gone(pid), "the stopped process was left behind"
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert longest_pause(job, "asp") < LONGEST_GAP_SECS
        started = [event["pid"] for event in job.events("role_started") if event.get("id") == victim]
        assert len(started) == 2 and started[0] == pid
        assert job.tracebacks() == []


def members_are_lost_in_lock_step(
    workdir: Path,
    number: signal.Signals = signal.SIGKILL,
    *,
    plan: str = "bsp",
    units: int = 3000,
    workers: int = 4,
    victims: tuple[int, ...] = (2,),
    planted: str = "",
    stuck_secs: float = STUCK_SECS,
) -> None:
    """All victims at once: the others step on in a mesh of their own, lose nothing, and take the reborn in."""
    planted = until_told("the_reborn_wait_to_be_called", planted)
    others = [worker for worker in range(workers) if worker not in victims]
    soon = SOON if number == signal.SIGSTOP else ()
    with tally(workdir, *soon, plan=plan, units=units, workers=workers, unit_secs=0.05, planted=planted) as job:

        def are_together() -> bool:
            entered = job.events("phase_entered")
            return len(entered) > 1 and sorted(entered[-1]["members"]) == list(range(workers))

        def are_alone() -> bool:
            return sorted(job.events("phase_entered")[-1]["members"]) == others

        job.until_phase("bsp")
        pids = job.live_workers()
        for victim in victims:
            os.kill(pids[victim], number)
        for victim in victims:
            job.until_lost(pids[victim])
        job.until(are_alone, "the others stepped on without them")
        job.call()
        job.until(are_together, "the new processes were in the mesh")
        job.hurry()
        assert job.wait(stuck_secs=stuck_secs) == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0, "a survivor held what was rolled back"
        entered = job.events("phase_entered")
        alone = [event for event in entered if event["reason"] == "death"][-1]
        assert sorted(alone["members"]) == others
        assert [event["reason"] for event in entered].count("join") >= 1
        assert sorted(entered[-1]["members"]) == list(range(workers))
        assert workers_started(job) == sorted([*range(workers), *victims]), "another worker was restarted"
        assert job.tracebacks() == []


def a_member_of_groups_is_lost(
    workdir: Path, number: signal.Signals = signal.SIGKILL, *, plan: str = "preduce", victim: int = 2, planted: str = ""
) -> None:
    """The others go on from their last full synchronisation, whose units alone are kept, and take the reborn in."""
    more = ("--checkpoint_secs=1", *(SOON if number == signal.SIGSTOP else ()))
    planted = until_told("the_reborn_wait_to_be_called", planted)
    with tally(workdir, *more, plan=plan, units=3000, unit_secs=0.05, planted=planted) as job:
        job.until(lambda: len(job.events("checkpoint")) > 1, "a full synchronisation was committed")
        committed = job.events("checkpoint")[-1]["units"]
        job.until_units(committed + 40)
        pid = job.live_workers()[victim]
        os.kill(pid, number)
        job.until_lost(pid)
        job.until(lambda: len(job.events("phase_entered")[-1]["members"]) == 3, "the others went on without it")
        job.call()
        job.until(lambda: len(workers_started(job)) > 4, "another process took its place")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        entered = job.events("phase_entered")
        after = next(event for event in entered if event["reason"] == "death")
        assert sorted(after["members"]) == [worker for worker in range(4) if worker != victim]
        assert after["units"] >= committed, "the others held more than that"
        lost = sum(event["rolled_back"] for event in job.events("rollback"))
        assert job.summary()["units"]["rolled_back"] == lost > 0
        assert workers_started(job) == sorted([*range(4), victim]), "another worker was restarted"
        assert job.tracebacks() == []


def a_member_dies_while_the_next_mesh_connects(workdir: Path, *, units: int = 3000) -> float:
    """The others go on as they are, nobody of them restarted; returns how long it took them, seconds."""
    planted = until_told("worker_2_dies_while_a_mesh_connects")
    with tally(workdir, GLOO, plan="bsp", units=units, workers=4, unit_secs=0.05, planted=planted) as job:
        job.until_phase("bsp")
        pids = job.live_workers()
        os.kill(pids[0], signal.SIGKILL)
        lost = job.until_lost(pids[2])
        job.until(lambda: len(workers_started(job)) > 5, "both had new processes")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        started = workers_started(job)
        assert started == [0, 0, 1, 2, 2, 3], f"another worker was restarted: {started}"
        assert job.tracebacks() == []
        after = next(e for e in job.events("phase_entered") if e["t"] >= lost["t"])
        return after["t"] - lost["t"]


def more_members_are_lost_than_there_are_meshes(workdir: Path, *, deaths: int = 4, units: int = 3000) -> None:
    """Two workers of one device each have two meshes; the rest of the deaths falls into process groups that follow."""
    with tally(workdir, GLOO, plan="bsp", units=units, workers=2, unit_secs=0.02, planted="one_device_each") as job:
        job.until_phase("bsp")
        for death in range(deaths):
            pid = job.kill_worker(death % 2)
            job.until_lost(pid)

            def whole(pid: int = pid) -> bool:
                events = job.events()
                lost = max(i for i, e in enumerate(events) if e["kind"] == "role_lost" and e["pid"] == pid)
                entered = [e for e in events[lost:] if e["kind"] == "phase_entered" and len(e["members"]) == 2]
                return bool(entered) and job.units() > entered[-1]["units"]

            job.until(whole, f"both workers trained again after death {death}")
        job.send(signal.SIGTERM)
        assert job.wait() == 75, job.output + job.logs()
        lost = [event["reason"] for event in job.events("role_lost")]
        assert job.summary()["units"]["rolled_back"] == 0, f"a new process group cost units: {lost}"
        assert len(job.events("world_renewed")) == deaths // 2
        assert job.events("unit_quarantined") == []
        assert job.tracebacks() == []
    with tally(workdir, plan="bsp", units=units, workers=2, unit_secs=0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0


def the_chief_is_killed(
    workdir: Path,
    *,
    plan: str = "asp",
    units: int = 900,
    workers: int = 3,
    planted: str = "",
    stuck_secs: float = STUCK_SECS,
) -> None:
    """Asynchronous workers go on meanwhile in the same phase; nothing is rolled back in any."""
    with tally(workdir, plan=plan, units=units, workers=workers, unit_secs=0.02, planted=planted) as job:
        job.until_units(units // 10)
        before = len(job.events("phase_entered"))
        pid = newest_pid(job, "chief", 0)
        os.kill(pid, signal.SIGKILL)
        job.until_lost(pid)
        assert job.wait(stuck_secs=stuck_secs) == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        if plan == "asp":
            assert len(job.events("phase_entered")) == before, "the phase was not continued"
        assert [event["id"] for event in job.events("role_started") if event["role"] == "worker"] == [
            *dict.fromkeys(event["id"] for event in job.events("role_started") if event["role"] == "worker")
        ], "a worker was restarted"
        assert job.tracebacks() == []


def _has_started(job: Job, number: int) -> bool:
    """Return whether so many roles were started."""
    return len(job.events("role_started")) >= number


def the_sockets_are_removed(workdir: Path, sockets: Path, *, units: int = 600, workers: int = 2) -> None:
    """Every role serves on another socket; whoever is replaced then, and the next phase, find the others there.

    Args:
      workdir: of the run.
      sockets: folder in which the run makes the folder of its sockets.
      units: of the run.
      workers: of the run.
    """
    planted = until_told()
    with tally(workdir, plan="asp:50%,bsp", units=units, workers=workers, unit_secs=0.02, planted=planted) as job:
        job.until_units(units // 20)
        (folder,) = sockets.glob("hybridsync-sockets-*")
        served = [folder / name for name in ("chief", "server-0-0", "server-0-0.slabs", "worker-1-0", "group-1")]
        for victim in ("worker", "chief"):
            folder.rename(sockets / f"before {victim} is killed")
            job.until(lambda: all(path.exists() for path in served), "the sockets are made again")
            started = len(job.events("role_started"))
            pid = newest_pid(job, victim, 0)
            os.kill(pid, signal.SIGKILL)
            job.until_lost(pid)
            job.until(functools.partial(_has_started, job, started + 1), f"another {victim} took its place")
        job.hurry()
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        assert job.summary()["units"]["rolled_back"] == 0
        assert job.output.count("the sockets, are made again") == 2
        assert job.events("phase_entered")[-1]["protocol"] == "bsp"
        assert not folder.exists()


def a_server_is_killed(
    workdir: Path,
    *flags: str,
    servers: int = 1,
    victim: int = 0,
    units: int = 900,
    workers: int = 3,
    planted: str = "",
    stuck_secs: float = STUCK_SECS,
) -> None:
    """Everybody goes back to the last commit, in a new phase, and the accounting says what that cost."""
    more = (*flags, f"--servers={servers}", "--set=model.copies=4", "--checkpoint_secs=2")
    planted = until_told(planted)
    with tally(workdir, *more, plan="asp", units=units, workers=workers, unit_secs=0.05, planted=planted) as job:
        job.until(lambda: len(job.events("checkpoint")) > 1, "a checkpoint was committed")
        committed = job.events("checkpoint")[-1]["units"]
        job.until_units(committed + 40)
        at = job.units()
        pid = newest_pid(job, "server", victim)
        os.kill(pid, signal.SIGKILL)
        job.until_lost(pid)
        job.hurry()
        assert job.wait(stuck_secs=stuck_secs) == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        (rollback,) = job.events("rollback")
        lost, left = rollback["rolled_back"], rollback["to_units"]
        assert job.summary()["units"]["rolled_back"] == lost
        assert left >= committed and lost + left >= at, f"{lost} units rolled back to unit {left}, of {at} or more"
        assert [event["reason"] for event in job.events("phase_entered")] == ["start", "death"]
        assert job.tracebacks() == []


def newest_pid(job: Job, role: str, role_id: int) -> int:
    """Return the process that has this place now, by the newest event of its start."""
    started = [event for event in job.events("role_started") if (event["role"], event["id"]) == (role, role_id)]
    return started[-1]["pid"]


def faults_at_random(workdir: Path, *, plan: str, sessions: int, kills: int, seed: int) -> None:
    """Some worker kills in every session, everything killed at the end of each, and one session more that completes."""
    rng = random.Random(seed)
    units = 6000
    for session in range(sessions):
        with tally(workdir, plan=plan, units=units, unit_secs=0.02) as job:
            job.until_phase("asp")
            for _ in range(kills):
                job.pause(rng.uniform(0.2, 3.0))
                job.until_lost(job.kill_worker(rng.choice(sorted(job.live_workers()))))
            job.pause(rng.uniform(0.2, 3.0))
            assert job.process.poll() is None, f"session {session} ended by itself:\n{job.logs()}"
            job.kill_everything()
    with tally(workdir, plan=plan, units=units, unit_secs=0.0) as job:
        assert job.wait() == 0, job.output + job.logs()
        assert_exactly_once(job.summary())
        killed = [e for e in job.events("role_lost") if e["reason"] == "signal SIGKILL"]
        assert len(killed) == sessions * kills
        assert len(job.events("run_started")) == sessions + 1
        assert job.tracebacks() == []
