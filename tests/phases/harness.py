"""A harness of a reporter: a clock that a test moves, and a chief that has heard what a test says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hybridsync import TelemetryConfig
from hybridsync.chief.ledger import Counts
from hybridsync.chief.report_buffer import ReportBuffer
from hybridsync.chief.run_state import RunControl
from hybridsync.chief.user_commands import Orders
from hybridsync.config import RunConfig
from hybridsync.interfaces.messages import Snapshot
from hybridsync.phases.reporter import Hook, Reporter, StageTimes
from hybridsync.telemetry.recorder import Recorder
from hybridsync.training.run import Run
from tests.phases.contexts import ChiefDouble
from tests.roles import Start, phase_of
from tests.tasks import plain_sgd, tally_task
from tests.telemetry.clocks import ManualClock
from tests.trainers import lines_of

UNIT_SIZE, WORKLOAD, LOG_SECS = 8, 100, 1.0
RATE = 0.5
TIMES = StageTimes({"drain": 0.1, "capture": 0.2, "reserve": 0.3, "enter": 0.4})


@dataclass
class Members:
    """Who takes no part any more."""

    quarantined: dict[int, str] = field(default_factory=dict)


@dataclass
class Told(ChiefDouble):
    """A chief that has heard what a test says."""

    num_applied: int = 0
    first_leased: float = 100.0
    reports: ReportBuffer = field(default_factory=ReportBuffer)
    stamps: tuple[float, float] = (0.0, 0.0)
    rates: dict[int, float] = field(default_factory=dict)
    members: Members = field(default_factory=Members)
    orders: Orders = field(default_factory=Orders)
    preempted: bool = False
    over: bool = False
    stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        self.stop_reason, self.preempted = reason, True

    def finish(self) -> None:
        self.over = True

    def preempt(self) -> None:
        self.preempted = True

    def take_reports(self) -> ReportBuffer:
        taken, self.reports = self.reports, ReportBuffer()
        return taken

    def first_and_last(self) -> tuple[float, float]:
        return self.stamps

    def worker_rates(self) -> dict[int, float]:
        return self.rates

    def counts(self) -> Counts:
        return Counts(WORKLOAD, self.num_applied, self.num_applied, 0, 0, 0)


class Harness:
    """A reporter whose clock stands at 100 s, where a unit was leased, in its first phase from unit `applied`."""

    def __init__(
        self,
        workdir: Path,
        hooks: list[tuple[Hook, int]] | None = None,
        applied: int = 0,
        enter: bool = True,
        restarted: bool = False,
        run: Run | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.workdir, self.clock, self.chief = workdir, clock or ManualClock(), Told(applied)
        telemetry = TelemetryConfig(log_secs=LOG_SECS)
        config = RunConfig(workload=WORKLOAD, unit_size=UNIT_SIZE, workers=4, plan="bsp:50%,asp", telemetry=telemetry)
        self.config = config
        run = run or Run(config, tally_task(WORKLOAD), plain_sgd(RATE), workdir)
        self.recorder = Recorder.open(workdir, self.clock, restarted=restarted)
        self.switches: list[dict[str, Any]] = []
        self.reporter = Reporter(
            run,
            cast("RunControl", self.chief),  # what a reporter asks of it is all in Told
            self.recorder,
            self.clock,
            hooks=hooks or [],
            switches=self.switches,
        )
        self.bsp, after = phase_of(1, "bsp", end=50), phase_of(2, "asp", end=WORKLOAD)
        self.asp = replace(after, applied=((0, 50),), fingerprint=snapshot_of().held.fingerprint, reason="planned")
        if enter:
            self.reporter.entered(self.bsp, applied)

    def switch(self, last_applied: float, unit_secs: float = 0.5) -> None:
        """Go from bsp to asp at what bsp applied last."""
        self.reporter.ended(snapshot_of(last_applied=last_applied))
        self.chief.stamps = (0.0, 0.0)
        self.reporter.entered(self.asp, 50)
        self.reporter.switching(self.bsp, self.asp, snapshot_of(last_applied=last_applied), TIMES, unit_secs)

    def metrics(self) -> list[dict[str, Any]]:
        return lines_of(self.workdir / "metrics.jsonl")

    def after(self, secs: float, **told: Any) -> None:
        """Let the time pass, the chief hear of something, and the controller tick."""
        self.clock.advance(secs)
        for name, value in told.items():
            setattr(self.chief, name, value)
        self.reporter.tick()


def snapshot_of(first_applied: float = 0.0, last_applied: float = 0.0) -> Snapshot:
    return Start().snapshot_buffer.finalize(
        phase_of(1).id,
        sequence=13,
        applied=[(0, 50)],
        first_applied=first_applied,
        last_applied=last_applied,
    )
