"""What the online policies gain and cost: `python -m benchmarks.online_policies [--real=PART,...] [--seeds=3]`.

Eight workers whose units take 50 ms, in virtual time; with `--real` on processes whose accelerators are emulated (the
gradient is computed, the rest of the 50 ms is slept), on the digits job, with its accuracy. There a push and a pull
come on top, for which all processes share the machine's processors: `--unit_secs` makes units longer where those are
few.

- *permanent*: one worker k times slow for the whole run, plan `bsp:6.25%,asp` beside backup-worker BSP. The speed-up is
  over plain BSP with the same straggler, and the ideal one is (7 + 1/k) k / 8: everybody busy all the time. On
  processes plain BSP is a twentieth of the workload's steady rate, scaled.
- *pair*: two workers four times slow for the whole lock-step part, plan `bsp:25%,asp`. The time model is
  T = s T_bsp + (1 - s) T_asp: with the stragglers a step takes 4 units, without them six workers do 6 units a step,
  which makes 1.75 against 1.083, and the ratio of baseline to elastic 1.615.
- *transient*: the scenarios `syncswitch-1` and `syncswitch-2` of `--stragglers`, 10 ms more for each transfer of one
  worker once, and 30 ms for those of two workers four times, plan `bsp:25%,asp`. What a policy costs beside baseline.
- *standstill* (processes only): an eviction and a re-admission of one of four workers, each from the last update of the
  phase before to the first one of the next, less a unit.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from benchmarks.jobs import Row, load, phase_rates, report, train
from benchmarks.virtual import quiet, seconds_of
from hybridsync.config import EmulationConfig, PolicyConfig, RunConfig
from hybridsync.lab.simulator.cluster import Cluster, Costs, Device, Scenario
from hybridsync.telemetry.events import read_events

Online = Literal["baseline", "greedy", "elastic", "rebalance"]
POLICIES: tuple[Online, ...] = get_args(Online)
PARTS = ("permanent", "pair", "transient", "standstill")

WORKERS, UNIT_SECS, UNITS = 8, 0.05, 16_000
COSTS = Costs(capture_secs=0.1, reserve_secs=0.02)
"""A switch on real processes stands still for 0.05 to 0.2 s; the simulator's defaults are for a tenth of that."""
TARGETS = {5: 4.0, 8: 6.4}
MODEL, MODEL_SHARE, EXTRA, STANDSTILL_SECS, POINTS = 1.615, 0.05, 0.02, 0.5, -0.01


class Case(NamedTuple):
    """A job: its plan, its policy, and who is slow when, as in `--stragglers`."""

    plan: str
    policy: Online = "baseline"
    slow: str = ""


class Outcome(NamedTuple):
    """How long a job took, how good it was, and for how long its policy's switches kept it from training.

    Args:
      seconds: from the first unit leased.
      accuracy: at the end; None where nothing is computed.
      stalls: of each change of members.
    """

    seconds: float
    accuracy: float | None = None
    stalls: tuple[float, ...] = ()


Carry = Callable[[Case, int], Outcome]
"""Carries a case out, with a seed."""


def slow(worker: int, times: float, start: float = 0.0, stop: float = 1.0) -> str:
    """Return the entry of a worker that is so many times slow between two shares of the workload."""
    return f"worker={worker},factor={times:g},from={100 * start:g}%,to={100 * stop:g}%"


PAIR = ";".join(slow(worker, 4.0, stop=0.25) for worker in (2, 5))
TRANSIENTS = ("syncswitch-1", "syncswitch-2")


def ideal(times: int) -> float:
    """Return the speed-up over lock-step with one worker so many times slow, were everybody busy all the time.

    >>> ideal(5), ideal(8)
    (4.5, 7.125)
    """
    return (WORKERS - 1 + 1 / times) * times / WORKERS


# --- two ways to carry a case out ---


def simulated(case: Case, seed: int) -> Outcome:
    """Simulate a case; nothing but time is computed."""
    emulation = EmulationConfig(compute_secs=UNIT_SECS, stragglers=case.slow)
    config = RunConfig(UNITS, 1, WORKERS, plan=case.plan, seed=seed, emulation=emulation)
    config = quiet(dataclasses.replace(config, policy=PolicyConfig(online=case.policy)))
    return Outcome(seconds_of(config, Scenario(cluster=Cluster(devices=(Device(UNIT_SECS),), costs=COSTS))))


def on_processes(
    case: Case, seed: int, *, units: int = UNITS, workers: int = WORKERS, unit_secs: float = UNIT_SECS
) -> Outcome:
    """Run a case as a job of its own."""
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory) / "run"
        summary = train(workdir, *flags(case, seed, units, workers, unit_secs), "--set=telemetry.timeline=false")
        changes = [each for each in read_events(workdir, "switch") if each["reason"] == "policy"]
    stalls = tuple(each["stall_secs"] for each in changes if each["from"] == each["to"])
    return Outcome(summary["seconds"], summary["final"]["accuracy"], stalls)


def plain_on_processes(entry: str, units: int, unit_secs: float = UNIT_SECS) -> float:
    """Return the seconds of plain BSP by the steady rate of a twentieth of its units, which leaves its start out."""
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory) / "run"
        train(workdir, *flags(Case("bsp", "baseline", entry), 0, units // 20, WORKERS, unit_secs))
        return units / phase_rates(workdir)[0].steady


def flags(case: Case, seed: int, units: int, workers: int, unit_secs: float) -> list[str]:
    """Return what `hybridsync train` is given for a case."""
    return [
        f"--plan={case.plan}",
        f"--policy={case.policy}",
        f"--workers={workers}",
        f"--seed={seed}",
        f"--compute_secs={unit_secs}",
        f"--stragglers={case.slow}",
        f"--set=workload={units}",
    ]


# --- what is shown ---


class Table:
    """Prints a line as soon as a case is through, and collects the figures.

    Args:
      carry: carries cases out.
      seeds: each case is carried out with.
      policies: to show, baseline first.
    """

    def __init__(self, carry: Carry, seeds: Sequence[int], policies: Sequence[Online] = POLICIES) -> None:
        self._carry, self._seeds, self.policies = carry, seeds, policies
        self.rows: list[Row] = []
        self.lines: list[dict[str, Any]] = []

    def run(self, part: str, case: Case) -> list[Outcome]:
        """Carry a case out with every seed."""
        found = [self._carry(case, seed) for seed in self._seeds]
        accuracy = [each.accuracy for each in found if each.accuracy is not None]
        said = f"  accuracy {statistics.fmean(accuracy):.4f}" if accuracy else ""
        print(f"  {part:<14} {case.plan:<14} {case.policy:<9} {mean_secs(found):9.2f} s{said}", flush=True)
        line = {"part": part, **case._asdict(), "outcomes": [each._asdict() for each in found], "load": load()}
        self.lines.append(line)
        return found

    def row(self, name: str, figure: float, unit: str = "", bound: str = "", target: float = 0.0) -> None:
        """Note a figure."""
        self.rows.append(Row(name, figure, unit, bound, target, load()))


def mean_secs(found: Sequence[Outcome]) -> float:
    """Return the mean seconds."""
    return statistics.fmean(each.seconds for each in found)


def permanent(table: Table, plain: Callable[[str], float], factors: Sequence[int] = tuple(TARGETS)) -> None:
    """Show one worker that is so many times slow for the whole run; `plain` tells what plain BSP takes with it."""
    for times in factors:
        target = TARGETS[times]
        where, entry = f"1 of 8, {times}x", slow(WORKERS - 1, times)
        bsp = plain(entry)
        print(f"  {where:<14} {'bsp':<14} {'baseline':<9} {bsp:9.2f} s")
        cases = {
            **{f"bsp:6.25%,asp, {policy}": Case("bsp:6.25%,asp", policy, entry) for policy in table.policies},
            "backup workers": Case("backup", "baseline", entry),
        }
        for name, case in cases.items():
            speed_up = bsp / mean_secs(table.run(where, case))
            bounds = (">=", target) if case.policy == "elastic" else ("", 0.0)
            table.row(f"{where}: {name}, times plain BSP", speed_up, "", *bounds)
            share = (">=", 0.9) if case.policy == "elastic" else ("", 0.0)
            table.row(f"{where}: {name}, share of ideal {ideal(times):g}", speed_up / ideal(times), "", *share)


def pair(table: Table) -> None:
    """Show two workers that are slow in lock-step."""
    found = {policy: table.run("2 of 8, 4x", Case("bsp:25%,asp", policy, PAIR)) for policy in table.policies}
    base = found["baseline"]
    for policy in table.policies[1:]:
        ratio = mean_secs(base) / mean_secs(found[policy])
        bounds = (">=", MODEL * (1 - MODEL_SHARE)) if policy == "elastic" else ("", 0.0)
        table.row(f"2 of 8, 4x: baseline / {policy}", ratio, "times", *bounds)
        compare(table, "2 of 8, 4x", policy, base, found[policy])


def transient(table: Table) -> None:
    """Show stragglers that come and go."""
    for name in TRANSIENTS:
        found = {policy: table.run(name, Case("bsp:25%,asp", policy, name)) for policy in table.policies}
        base = found["baseline"]
        for policy in table.policies[1:]:
            more = mean_secs(found[policy]) / mean_secs(base) - 1
            table.row(f"{name}: {policy}, more than baseline", more, "", "<=", EXTRA)
            compare(table, name, policy, base, found[policy])


def compare(table: Table, where: str, policy: str, base: Sequence[Outcome], found: Sequence[Outcome]) -> None:
    """Note the mean difference of accuracy over paired seeds, where there is one."""
    pairs = [(ours.accuracy, theirs.accuracy) for ours, theirs in zip(found, base, strict=True)]
    known = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if known:
        table.row(f"{where}: {policy}, accuracy less baseline's", statistics.fmean(known), "", ">=", POINTS)


def standstill(table: Table) -> None:
    """Show what an eviction and a re-admission cost."""
    case = Case("bsp:60%,asp", "elastic", slow(3, 4.0, 0.08, 0.25))
    found = on_processes(case, 0, units=3_000, workers=4)
    for name, secs in zip(("eviction", "re-admission"), found.stalls, strict=True):
        table.row(f"1 of 4: {name}, standstill", secs, "s", "<=", STANDSTILL_SECS)


def main(arguments: list[str]) -> int:
    """Measure and print; the last line is JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--real", nargs="?", const=",".join(PARTS), default="", help=f"of {','.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=3, help="of each job on processes")
    parser.add_argument("--units", type=int, default=UNITS, help="of each job on processes")
    parser.add_argument("--unit_secs", type=float, default=UNIT_SECS, help="of computation, on processes")
    factors = {"type": int, "nargs": "+", "default": list(TARGETS), "choices": list(TARGETS)}
    parser.add_argument("--factors", **factors, help="how many times slow one worker is for the whole run")
    parser.add_argument("--policies", default=",".join(POLICIES[1:]), help="beside baseline")
    options = parser.parse_args(arguments)
    parts = options.real.split(",") if options.real else PARTS[:-1]
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"unknown parts {unknown}; choose among {PARTS}")
    policies: list[Online] = ["baseline", *(each for each in POLICIES[1:] if each in options.policies.split(","))]
    units, unit_secs = options.units, options.unit_secs if options.real else UNIT_SECS

    def really(case: Case, seed: int) -> Outcome:
        return on_processes(case, seed, units=units, unit_secs=unit_secs)

    def plain(entry: str) -> float:
        if options.real:
            return plain_on_processes(entry, units, unit_secs)
        return simulated(Case("bsp", "baseline", entry), 0).seconds

    where = "processes, emulated accelerators" if options.real else "virtual time"
    print(f"{WORKERS} workers, {1000 * unit_secs:g} ms a unit, {units if options.real else UNITS:,} units, {where}")
    carry, seeds = (really, range(options.seeds)) if options.real else (simulated, range(1))
    table = Table(carry, seeds, policies)
    shows = {
        "permanent": lambda: permanent(table, plain, options.factors),
        "pair": lambda: pair(table),
        "transient": lambda: transient(table),
        "standstill": lambda: standstill(table),
    }
    for part in parts:
        shows[part]()
    report(f"online policies, {where}", table.rows, lines=table.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
