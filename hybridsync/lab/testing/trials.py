"""Trials of the protocol code by drawn schedules; what must hold is checked all the way (see `checks.py`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from hybridsync.config import CheckpointConfig, HangConfig, TelemetryConfig
from hybridsync.core.errors import CheckpointError, Diverged, HybridSyncError, StoppedShort
from hybridsync.lab.simulator.arithmetic import Counting
from hybridsync.lab.simulator.event_loop import Loop, VirtualClock
from hybridsync.lab.simulator.fake_io import Workdir
from hybridsync.lab.simulator.simulated_cluster import SimulatedCluster
from hybridsync.lab.testing.checks import SIZES, Checks, Violation
from hybridsync.lab.testing.schedules import Restless, Schedule
from hybridsync.telemetry.recorder import Recorder
from hybridsync.telemetry.summary import Summary
from hybridsync.training.run import Run

END_SECS = 900.0
"""A run that has not ended by then never will: the longest wait of the chief is 600 s."""
TICK_SECS = 0.25
"""How often the controller looks after what nobody tells it of: nothing but its time depends on it."""
MAX_SESSIONS = 12
QUICK = HangConfig(compute_secs=2.0, silent_secs=3.0)
"""Limits that the hangs, stops and partitions of a schedule exceed, which last some seconds."""


@dataclass(frozen=True)
class Outcome:
    """Holds the result of a schedule.

    Args:
      exit: "completed", or "diverged" where so many contributions in a row were unfit that the run ended by design.
      units: number of units applied.
      dropped: units left out for good.
      num_phases: number of phases entered.
      sessions: number of starts of the whole run.
      rolled_back: units that were applied again.
      seconds: virtual duration, in seconds.
      calls: events carried out.
    """

    exit: str
    units: int
    dropped: int
    num_phases: int
    sessions: int
    rolled_back: int
    seconds: float
    calls: int


RecorderOf = Callable[[VirtualClock], Recorder]


def try_schedule(
    schedule: Schedule, run_of: Callable[[Schedule], Run], recorder_of: RecorderOf = Recorder.null
) -> Outcome:
    """Run a schedule and check it.

    A run that is preempted or stopped by a callback, or ends because its last save fails or lacks units, is started
    again, as its user would.

    Args:
      schedule: schedule to try.
      run_of: the schedule -> the run, of any task: only its configuration counts.
      recorder_of: the clock of a session -> where the record goes.

    Raises:
      Violation: something that must hold did not.
    """
    run, checks, workdir = run_of(schedule), Checks(), Workdir()
    seconds, calls = 0.0, 0
    scenario = schedule.scenario
    for restart_count in range(1, MAX_SESSIONS):
        checks.begin_session()
        loop = Loop()
        simulated = SimulatedCluster(
            run,
            scenario,
            Counting(SIZES, schedule.unfit),
            recorder_of(VirtualClock(loop)),
            loop,
            seed=schedule.seed + restart_count - 1,
            logs_updates=True,
            watch=checks,
            tick_secs=TICK_SECS,
            workdir=workdir,
            policy=Restless(schedule.seed) if schedule.online else None,
        )
        loop.at(END_SECS, _never_ends, simulated, checks)
        how = _live(simulated, checks)
        seconds, calls = seconds + loop.now, calls + loop.num_calls
        if how in ("completed", "diverged"):
            if how == "completed":
                checks.check_end(schedule.units, schedule.unfit, restart_count)
            elif not schedule.unfit:
                raise checks.fail("the run has diverged, though every contribution is finite")
            units = simulated.chief.state.ledger.counts()
            return Outcome(
                how,
                units.applied,
                units.dropped,
                num_phases=len(checks.phases),
                sessions=restart_count,
                rolled_back=units.rolled_back,
                seconds=seconds,
                calls=calls,
            )
        if how in ("preempted", "stopped"):
            checks.check_saved()
        scenario = dataclasses.replace(scenario, preempt_secs=math.inf, switches=())
    raise checks.fail(f"the run has not ended after {MAX_SESSIONS} starts")


def _live(simulated: SimulatedCluster, checks: Checks) -> str:
    """Run one session of a run; returns how it ended."""
    try:
        summary: Summary = simulated.run()
    except CheckpointError as error:
        if not simulated.scenario.save_fails:
            raise checks.fail(f"the run failed: {error}") from error
        return "unsaved"
    except Diverged:
        return "diverged"
    except StoppedShort as error:
        if simulated.scenario.preempt_secs == math.inf:
            raise checks.fail(f"the run failed: {error}") from error
        return "stopped short"
    except HybridSyncError as error:
        raise checks.fail(f"the run failed: {type(error).__name__}: {error}") from error
    except Violation:
        raise checks.found or Violation("?") from None
    if summary.exit != "completed" and simulated.scenario.preempt_secs == math.inf:
        raise checks.fail(f"the run was {summary.exit}, though nobody asked it to stop")
    return summary.exit


def _never_ends(simulated: SimulatedCluster, checks: Checks) -> None:
    applied = simulated.chief.state.ledger.num_applied
    raise checks.fail(
        f"the run has not ended after {END_SECS:g} s: {applied} of {simulated.run_.config.workload} units"
    )


def run_of(base: Run) -> Callable[[Schedule], Run]:
    """Return what makes the run of a schedule out of `base`, whose task is not used."""

    def make(schedule: Schedule) -> Run:
        config = dataclasses.replace(
            base.config,
            workload=schedule.units,
            workers=schedule.workers,
            servers=schedule.servers,
            plan=schedule.plan,
            seed=0,
            checkpoint=CheckpointConfig(secs=1.0),
            telemetry=TelemetryConfig(log_secs=1e9, timeline=False),
            drain_secs=2.0,
            hang=QUICK,
        )
        return dataclasses.replace(base, config=config)

    return make
