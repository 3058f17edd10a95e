"""Precision, recall and time-to-detect of the straggler detector: `python -m benchmarks.detector [--trials=100]`.

Eight workers whose units take a lognormal time of sd 10 %, one of a hundred three times as long. One to four of them
become 1.2 to 10 times slower, for good or for twenty windows of ten units, beginning anywhere in a window. Both rules
see the same draws:

- *draws*: windows by themselves, without a run around them;
- *bsp*, *asp*: simulated runs, judged by the run's own chief from its workers' reports, a second of run apart;
- `--processes`: real jobs of eight worker processes whose accelerators are emulated (the rest of each unit is slept),
  judged by their own chiefs, with three slow stretches each.

A slow stretch is found when its worker is flagged before it ends. Precision: flags of a worker that is slow, or was
until a window ago, among all; recall: slow stretches that are found; time-to-detect: windows of the slow worker from
the beginning of its slowness to its flag. Healthy: false alarms in 10,000 windows of eight workers.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from benchmarks.jobs import Row, report, train
from benchmarks.virtual import SIZES, quiet, simulated
from configs import tally
from hybridsync.config import PolicyConfig, RunConfig
from hybridsync.core.clock import Clock
from hybridsync.lab.simulator.arithmetic import Weightless
from hybridsync.lab.simulator.cluster import Cluster, Device, Scenario, Slow
from hybridsync.policies.straggler_detector import WINDOW, Detector, PaperRule, RobustRule, Rule
from hybridsync.telemetry.events import NullEventLog, read_events
from hybridsync.telemetry.metrics import METRICS_FILE
from hybridsync.training.run import Run

Kind = Literal["permanent", "transient"]
RuleName = Literal["robust", "paper"]
Flags = list[tuple[int, float]]
"""Who was flagged, and when."""

WORKERS = 8
SIGMA = math.sqrt(math.log1p(0.1**2))
SPIKES, SPIKE = 0.01, 3.0
FACTORS = (1.2, 1.5, 2.0, 4.0, 10.0)
COUNTS = (1, 2, 3, 4)
KINDS: tuple[Kind, ...] = ("permanent", "transient")
RULES: dict[RuleName, Rule] = {"robust": RobustRule(), "paper": PaperRule()}
BEGIN, TRANSIENT, LENGTH = 10, 20, 40
"""Windows before the slowness, of a transient one, and of a trial."""
HEALTHY = 10_000
UNIT_SECS = 0.2
"""Of a simulated unit, as in the published runs; with shorter ones a report, a second of them, is more windows."""
TARGET_FACTOR, TARGET_COUNT, TARGET_WINDOWS, TARGET_SHARE = 1.5, 3, 5.0, 0.95


def unit_secs(random: Random, factor: float = 1.0) -> float:
    """Return what a unit takes, in healthy units, on a worker that is `factor` times slower."""
    return factor * random.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) * (SPIKE if random.random() < SPIKES else 1.0)


@dataclass(frozen=True)
class Stretch:
    """A worker's slowness, by any measure of time that its flags are told in, and how long a window of it takes."""

    worker: int
    begin: float
    end: float
    window: float


@dataclass
class Score:
    """Adds up what became of slow stretches and of flags."""

    stretches: int = 0
    found: int = 0
    flags: int = 0
    right: int = 0
    windows: list[float] = field(default_factory=list)

    def add(self, stretches: Sequence[Stretch], flags: Sequence[tuple[int, float]]) -> None:
        """Add a run's stretches and its flags, (worker, when)."""
        self.stretches += len(stretches)
        self.flags += len(flags)
        for worker, at in flags:
            self.right += any(s.worker == worker and s.begin <= at <= s.end + s.window for s in stretches)
        for stretch in stretches:
            when = [at for worker, at in flags if worker == stretch.worker and stretch.begin <= at <= stretch.end]
            if when:
                self.found += 1
                self.windows.append((min(when) - stretch.begin) / stretch.window)

    def to_json(self) -> dict[str, Any]:
        """Return the figures; None where nothing was flagged or found."""
        ordered = sorted(self.windows)
        return {
            "precision": self.right / self.flags if self.flags else None,
            "recall": self.found / self.stretches if self.stretches else None,
            "windows": statistics.fmean(ordered) if ordered else None,
            "windows_p95": ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None,
            "stretches": self.stretches,
            "flags": self.flags,
        }


# --- draws ---


def drawn(rule: Rule, count: int, factor: float, kind: Kind, seed: int) -> tuple[list[Stretch], Flags]:
    """Return the slow stretches and the flags of one trial; time is counted in a worker's windows."""
    random, detector = Random(seed), Detector(rule)
    detector.begin(range(WORKERS))
    begin = BEGIN + random.random()
    end = begin + TRANSIENT if kind == "transient" else float(LENGTH)
    slow = random.sample(range(WORKERS), count)
    flags = []
    for window in range(LENGTH):
        for worker in range(WORKERS):
            at = (window + i / WINDOW for i in range(WINDOW))
            secs = [unit_secs(random, factor if worker in slow and begin <= t < end else 1.0) for t in at]
            found = detector.observe(worker, secs)
            flags += [(decision.worker, window + 1.0) for decision in found if decision.flagged]
    return [Stretch(worker, begin, end, 1.0) for worker in slow], flags


def false_alarms(rule: Rule, seed: int) -> int:
    """Return how often a healthy worker is flagged in `HEALTHY` windows of all workers."""
    random, detector, alarms = Random(seed), Detector(rule), 0
    detector.begin(range(WORKERS))
    for _ in range(HEALTHY):
        for worker in range(WORKERS):
            decisions = detector.observe(worker, [unit_secs(random) for _ in range(WINDOW)])
            alarms += sum(decision.flagged for decision in decisions)
    return alarms


# --- simulated runs ---


class Heard(NullEventLog):
    """Keeps who was flagged, and when."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.flags: list[tuple[int, float]] = []

    def write(self, kind: str, *, phase: int, wall: float | None = None, **fields: Any) -> dict[str, Any]:
        event = super().write(kind, phase=phase, wall=wall, **fields)
        if kind == "straggler_flagged":
            self.flags.append((fields["worker"], event["t"]))
        return event


def in_a_run(
    plan: str, rule: RuleName, count: int, factor: float, kind: Kind, seed: int
) -> tuple[list[Stretch], Flags]:
    """Return the slow stretches and the flags of a simulated run, in its seconds."""
    random = Random(seed)
    devices = tuple(Device(trace=tuple(UNIT_SECS * unit_secs(random) for _ in range(997))) for _ in range(WORKERS))
    slow = random.sample(range(WORKERS), count)
    healthy, slowed = WINDOW * UNIT_SECS, WINDOW * UNIT_SECS * factor
    begin = (BEGIN + random.random()) * healthy
    end = begin + TRANSIENT * slowed if kind == "transient" else math.inf
    last = begin + (LENGTH - BEGIN) * slowed
    scenario = Scenario(
        cluster=Cluster(devices=devices),
        slow=tuple(Slow(worker, factor=factor, start_secs=begin, stop_secs=end) for worker in slow),
    )
    if plan == "bsp":
        units = round(WORKERS * (begin / UNIT_SECS + (last - begin) / (UNIT_SECS * factor)))
    else:
        units = round((WORKERS - count) * last / UNIT_SECS + count * (begin + (last - begin) / factor) / UNIT_SECS)
    config = quiet(
        RunConfig(
            workload=units, unit_size=1, workers=WORKERS, plan=plan, seed=seed, policy=PolicyConfig(detector=rule)
        )
    )
    run = Run(config, tally.task(config), tally.optimizer(config), None)  # neither is looked at
    heard: list[Heard] = []

    def listen(clock: Clock) -> Heard:
        heard.append(Heard(clock))
        return heard[0]

    summary = simulated(run, scenario, Weightless(SIZES), events=listen)
    return [Stretch(worker, begin, min(end, summary.seconds), slowed) for worker in slow], heard[0].flags


# --- a real run ---

UNITS, COMPUTE_SECS = 8_000, 0.05
REAL = ((2, 1.5, 0.1, 0.4), (5, 2.0, 0.5, 0.9), (7, 4.0, 0.55, 0.8))
"""Worker, how many times slower, from and to which share of the workload."""


def in_processes(plan: str, rule: RuleName) -> Score:
    """Run a real job and return how its chief judged its workers."""
    entries = (f"worker={w},delay_ms={1000 * COMPUTE_SECS * (f - 1):g},from={a:%},to={b:%}" for w, f, a, b in REAL)
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory) / "run"
        train(
            workdir,
            f"--plan={plan}",
            f"--workers={WORKERS}",
            f"--compute_secs={COMPUTE_SECS}",
            f"--stragglers={';'.join(entries)}",
            "--checkpoint_secs=1000",
            "--set=telemetry.log_secs=0.1",
            f"--set=policy.detector={rule}",
            f"--set=workload={UNITS}",
            config="configs/tally.py",
        )
        lines = [json.loads(line) for line in (workdir / METRICS_FILE).read_text().splitlines()]
        flags = [(event["worker"], event["t"]) for event in read_events(workdir, "straggler_flagged")]
    progress = [(line["units"] / UNITS, line["t"]) for line in lines]
    score = Score()
    score.add([Stretch(w, at(a, progress), at(b, progress), WINDOW * COMPUTE_SECS * f) for w, f, a, b in REAL], flags)
    return score


def at(share: float, progress: Sequence[tuple[float, float]]) -> float:
    """Return the second at which a share of the workload was applied."""
    return next((t for done, t in progress if done >= share), progress[-1][1])


# --- the table ---


def grid(sources: Sequence[str], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return one line of figures for each source, rule, kind, number of stragglers and slowdown."""
    lines = []
    for source in sources:
        for rule in RULES:
            for kind in KINDS:
                for count in COUNTS:
                    for factor in FACTORS:
                        score = Score()
                        for trial in range(trials if source == "draws" else max(1, trials // 10)):
                            what = count, factor, kind, seed + trial
                            drew = drawn(RULES[rule], *what) if source == "draws" else in_a_run(source, rule, *what)
                            score.add(*drew)
                        where = {"source": source, "rule": rule, "kind": kind, "count": count, "factor": factor}
                        lines.append({**where, **score.to_json()})
    return lines


def show(lines: Sequence[dict[str, Any]]) -> None:
    """Print precision, recall and windows, a row for each number of stragglers and a column for each slowdown."""
    heads = {(line["source"], line["rule"], line["kind"]): None for line in lines}
    for head in heads:
        print(f"\n{', '.join(head)}: precision / recall / windows to detect")
        print("  slow of 8  " + "".join(f"{f'{factor:g} x':>20}" for factor in FACTORS))
        for count in COUNTS:
            row = [a for a in lines if (a["source"], a["rule"], a["kind"]) == head and a["count"] == count]
            cells = (f"{said(a['precision'])} / {said(a['recall'])} / {said(a['windows'], 1)}" for a in row)
            print(f"  {count:<10} " + "".join(f"{cell:>20}" for cell in cells))


def said(value: float | None, digits: int = 2) -> str:
    """Return a figure as the table shows it."""
    return "-" if value is None else f"{value:.{digits}f}"


def rows(lines: Sequence[dict[str, Any]], alarms: int) -> list[Row]:
    """Return the robust rule's figures beside their targets: the worst of 1.5x on, up to three of eight."""
    kept = [
        line
        for line in lines
        if line["rule"] == "robust" and line["factor"] >= TARGET_FACTOR and line["count"] <= TARGET_COUNT
    ]
    found = [Row("false alarms, 10,000 healthy windows of 8", float(alarms), "", "<=", 0.0)]
    for source in dict.fromkeys(line["source"] for line in kept):
        worst = [line for line in kept if line["source"] == source]
        windows = max(line["windows"] or math.inf for line in worst)
        found += [
            Row(f"precision, {source}", min(line["precision"] or 0.0 for line in worst), "", ">=", TARGET_SHARE),
            Row(f"recall, {source}", min(line["recall"] or 0.0 for line in worst), "", ">=", TARGET_SHARE),
            Row(f"time-to-detect, {source}", windows, "windows", "<=", TARGET_WINDOWS),
        ]
    return found


def main(arguments: list[str]) -> int:
    """Measure and print; the last line is JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=100, help="of each cell on draws; a tenth of them simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", action="store_true", help="judge real jobs of eight worker processes instead")
    options = parser.parse_args(arguments)
    if options.processes:
        scores = {f"{plan}, {rule}": in_processes(plan, rule) for plan in ("bsp", "asp") for rule in RULES}
        for name, score in scores.items():
            print(f"{name:<28} {json.dumps(score.to_json())}")
        real = [
            Row(f"{figure}, {name}", score.to_json()[figure] or 0.0, "", ">=", TARGET_SHARE)
            for name, score in scores.items()
            if "robust" in name
            for figure in ("precision", "recall")
        ]
        report("straggler detector, real processes", real, scores={n: s.to_json() for n, s in scores.items()})
        return 0
    lines = grid(("draws", "bsp", "asp"), options.trials, options.seed)
    show(lines)
    alarms = {name: false_alarms(rule, options.seed) for name, rule in RULES.items()}
    print(f"\nfalse alarms in {HEALTHY:,} healthy windows of {WORKERS} workers: {alarms}\n")
    report("straggler detector", rows(lines, alarms["robust"]), grid=lines, false_alarms=alarms)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
