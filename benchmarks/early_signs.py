"""Does anything early in lock-step say how much of it a job needs? `python -m benchmarks.early_signs --cifar=FOLDER`.

Follows pure lock-step of each job up to where its rate first falls, in virtual time with real gradients: the norm of
the weights, the gradient noise scale (McCandlish et al., 2018, B_simple) and the loss, from the gradients of four
steps' units at a state, as the workers of lock-step have them anyway. Schedules fall at shares of the workload, so a
short and a long run of a job are the same run up to the first fall: one trace stands for all lengths.

The share that each job and length needs is that of the frontiers of `benchmarks.reproduction`, and of runs made here.
A rule ends lock-step where a sign passes a bound, at the latest where the rate falls. Its bound is fitted on the jobs
of other families: the cheapest with which most of them stay within a point of lock-step. Runs that are there are
not made again (`docs/tune/early_signs.csv`).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.jobs import ROOT
from benchmarks.reproduction.__main__ import run as measure_missing
from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Cell, Experiment, Given, Row
from benchmarks.reproduction.experiments import syncswitch_frontier as frontier
from benchmarks.reproduction.jobs import HURT, NORMED, NORMED_SHORT, NORMED_WHOLE, Job
from benchmarks.reproduction.parameters import BSP
from benchmarks.reproduction.record import told
from benchmarks.reproduction.reporting import mean
from benchmarks.reproduction.training import Training
from benchmarks.virtual import simulated
from hybridsync.lab.simulator.deferred import DeferredArithmetic
from hybridsync.policies.knee import WINDOWS, Knee
from hybridsync.training.compiled_programs import Parameters

POINT, PAPERS, SPEED = 0.01, 0.0625, 6.7
"""Accuracy that may be lost; the paper's share; asynchrony's throughput over lock-step's on the published times."""
RESULTS, EARLY = ROOT / "docs" / "tune", 100
"""Folder of the results; units at which the printed norm and noise are taken, in lock-step of every share."""
FIRST_STEPS, FIRST_SHARE = 301, 0.04
"""Of published runs: the steps in which the norm is looked at, and the least share whose lock-step has them all."""
GROWTH, GRADIENTS, MOST_UNITS = 1.06, 32, 8000
"""From one point of a trace to the next; units whose gradients are taken at a point; units that a trace follows."""


class Point(NamedTuple):
    """What lock-step shows after so many units.

    Args:
      units: applied.
      norm: of all parameters.
      noise: noise scale in examples; inf where the mean gradient drowns in it.
      loss: mean of the units whose gradients were taken.
    """

    units: int
    norm: float
    noise: float
    loss: float


Trace = Sequence[Point]


def noise_scale(squares: Sequence[float], square_of_mean: float, unit_size: int) -> float:
    """Return B_simple, the gradient's variance over examples by the square of its mean.

    Args:
      squares: squared norm of each unit's gradient.
      square_of_mean: squared norm of their mean.
      unit_size: examples of a unit.

    >>> noise_scale([3.0, 3.0], 2.0, 10)  # 1 for the mean gradient, 2 for each unit's noise
    20.0
    """
    number, square = len(squares), statistics.fmean(squares)
    variance = (square - square_of_mean) * unit_size * number / (number - 1)
    signal = (number * square_of_mean - square) / (number - 1)
    return variance / signal if signal > 0 else math.inf


@dataclass(frozen=True)
class Signs:
    """Traces lock-step of a job at its full rate.

    Args:
      job: with the units to trace as its workload.
      seed: of the run.
    """

    job: Job
    seed: int

    def definition(self) -> Any:
        return [self.job.config(), self.seed, GROWTH, GRADIENTS]

    def needs(self, given: Given) -> str:
        return "--cifar" if self.job.images and given.cifar is None else ""

    def measure(self, given: Given) -> Row:
        run = self.job.run(self.job.config(), given)
        every = max(run.config.workers, run.config.workload // 800)
        telemetry = replace(run.config.telemetry, evaluate_units=every)
        run = replace(run, config=replace(run.config, plan=BSP, seed=self.seed, telemetry=telemetry))
        programs = run.programs(donate_parameters=False, donate_rest=False)
        arithmetic, trace = DeferredArithmetic(run, programs), [_point(run, programs, run.initial_state(), 0)]

        def evaluate(state: Any, snapshot: Any) -> dict[str, Any]:
            units = sum(stop - start for start, stop in snapshot.applied)
            if units >= GROWTH * trace[-1].units:
                trace.append(_point(run, programs, state, units))
            return {"accuracy": 0.0, "loss": trace[-1].loss}

        simulated(run, Fitted().scenario(run.config.workers, arithmetic.sizes), arithmetic, evaluate)
        return {"trace": " ".join(f"{p.units}:{p.norm:.5g}:{p.noise:.5g}:{p.loss:.5g}" for p in trace)}


def _point(run: Any, programs: Any, state: Any, units: int) -> Point:
    parameters, squares, total, losses = Parameters(state.params, state.model_state), [], None, []
    for unit in range(units, units + GRADIENTS):
        found = programs.gradient(parameters, unit)["floats"]
        squares.append(_square(found["grads"]))
        losses.append(float(found["loss"]))
        total = found["grads"] if total is None else _plus(total, found["grads"])
    square_of_mean = float(_square(total)) / GRADIENTS**2
    noise = noise_scale([float(square) for square in squares], square_of_mean, run.config.unit_size)
    return Point(units, math.sqrt(float(_square(state.params))), noise, statistics.fmean(losses))


@jax.jit
def _square(tree: Any) -> Any:
    return sum((leaf.astype("float32") ** 2).sum() for leaf in jax.tree.leaves(tree))


@jax.jit
def _plus(one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: a + b, one, other)


def read_trace(text: str) -> Trace:
    """Return a trace as it stands in a row.

    >>> read_trace("0:1.5:20:2.3")
    [Point(units=0, norm=1.5, noise=20.0, loss=2.3)]
    """
    fields = (point.split(":") for point in text.split())
    return [Point(int(units), float(norm), float(noise), float(loss)) for units, norm, noise, loss in fields]


QUIET = replace(HURT, loss=None)
SHARES = (0, 3.125, 6.25, 12.5, 25, 50, 100)
NEW = {
    "MLP with BatchNorm, 5 passes": (replace(NORMED_SHORT, sets=(*NORMED.sets, "workload=4000")), range(4, 7)),
    "digits, 18 passes": (replace(QUIET, sets=("workload=800",)), range(400, 405)),
    "digits, 71 passes": (replace(QUIET, sets=("workload=3200",)), range(400, 403)),
}
"""Frontiers that the reproduction does not have: job and seeds."""


def _gentler(experiment: Experiment) -> Job:
    measure = experiment.cells[0].measure
    assert isinstance(measure, Training)
    return measure.job


class Case(NamedTuple):
    """A job of one length.

    Args:
      name: of the job and length.
      family: of jobs; a bound is never fitted on the family that it is tested on.
      traced: name of the trace, which all lengths of one job and rate share.
      job: with its workload.
      experiment: whose rows say what each share comes to; None for NEW.
    """

    name: str
    family: str
    traced: str
    job: Job
    experiment: Experiment | None = None


CASES = (
    Case("MLP with BatchNorm, 2 passes", "MLP", "MLP", NORMED_SHORT, frontier.SHORT),
    Case("MLP with BatchNorm, 5 passes", "MLP", "MLP", NEW["MLP with BatchNorm, 5 passes"][0]),
    Case("MLP with BatchNorm, 20 passes", "MLP", "MLP", NORMED, frontier.LONG),
    Case("MLP with BatchNorm, 82 passes", "MLP", "MLP", NORMED_WHOLE, frontier.WHOLE),
    Case("conv net, 1/2 rate, 2 passes", "conv", "conv, 1/2", _gentler(frontier.HALF_RATE), frontier.HALF_RATE),
    Case("conv net, 1/4 rate, 2 passes", "conv", "conv, 1/4", _gentler(frontier.QUARTER_RATE), frontier.QUARTER_RATE),
    Case("conv net, 1/4 rate, 8 passes", "conv", "conv, 1/4", _gentler(frontier.LONGER), frontier.LONGER),
    Case("digits, 18 passes", "digits", "digits", NEW["digits, 18 passes"][0]),
    Case("digits, 36 passes", "digits", "digits", QUIET, frontier.DIGITS),
    Case("digits, 71 passes", "digits", "digits", NEW["digits, 71 passes"][0]),
)


def falls(job: Job) -> float:
    """Return the share of the workload at which a job's rate first falls."""
    return job.config().optimizer.schedule.boundaries[0]


def _traced(name: str) -> Job:
    """Return the longest job of a trace up to where its rate first falls, without the fall."""
    job = max((case.job for case in CASES if case.traced == name), key=lambda job: job.config().workload)
    units = min(MOST_UNITS, round(falls(job) * job.config().workload))
    constant = ("optimizer.schedule.kind=constant", "optimizer.schedule.boundaries=", "optimizer.schedule.factors=")
    return replace(job, sets=(*job.sets, *constant, f"workload={units}"), loss=None)


def _seeds(family: str) -> Sequence[int]:
    return {"MLP": range(4, 7), "conv": range(400, 403), "digits": range(400, 405)}[family]


def _cells() -> list[Cell]:
    traces = [
        Cell({"name": case.traced, "share": "", "seed": seed}, Signs(_traced(case.traced), seed))
        for case in {case.traced: case for case in reversed(CASES)}.values()
        for seed in _seeds(case.family)
    ]
    runs = [
        Cell({"name": name, "share": share, "seed": seed}, training)
        for name, (job, seeds) in NEW.items()
        for seed in seeds
        for share in SHARES
        for training in [Training(job, frontier.hybrid(share), Fitted(), seed, evaluations=0, gradients="compiled")]
    ]
    return traces + runs


EXPERIMENT = Experiment("early_signs", "", __doc__ or "", _cells(), lambda found: [], lambda found: "", by_seed=True)


def _smooth_noise(trace: Trace, at: int) -> float:
    return statistics.median(point.noise for point in trace[max(0, at - 2) : at + 1])


def _growth(trace: Trace, at: int) -> float:
    """Return the norm over that of half the units, negative, so that a rule ends where it comes up to its bound."""
    half = max((point for point in trace[: at + 1] if 2 * point.units <= trace[at].units), key=lambda p: p.units)
    return -trace[at].norm / half.norm if trace[at].units else -math.inf


SIGNS: dict[str, Callable[[Trace, int], float]] = {
    "norm over its start": lambda trace, at: trace[at].norm / trace[0].norm,
    "norm's growth since half the units": _growth,
    "noise scale": _smooth_noise,
    "units alone": lambda trace, at: float(trace[at].units),
}


def passes(sign: Callable[[Trace, int], float], bound: float, trace: Trace) -> float:
    """Return the units at which a sign comes up to its bound; inf where it does not.

    >>> passes(SIGNS["norm over its start"], 2.0, read_trace("0:1:9:2 8:1.5:9:1 16:2.5:9:1"))
    16.0
    """
    return next((float(point.units) for at, point in enumerate(trace) if sign(trace, at) >= bound), math.inf)


def knee(trace: Trace, workload: int) -> float:
    """Return the units at which `policy.trigger=knee` would end lock-step; inf where it would not."""
    found = Knee(max(1, workload // WINDOWS))
    for last, point in itertools.pairwise(trace):
        units = point.units - last.units
        if found.observe(point.units, units * point.loss, units):
            return float(point.units)
    return math.inf


class Measured(NamedTuple):
    """A case with what was measured.

    Args:
      case: the job and its length.
      traces: one a seed.
      lost: accuracy below lock-step's at each share, of the means over seeds; ascending shares.
      seeds: of the runs.
    """

    case: Case
    traces: Sequence[Trace]
    lost: dict[float, float]
    seeds: int

    def share(self, units: Callable[[Trace], float]) -> float:
        """Return the mean share, at most where the rate falls, at which a rule ends lock-step."""
        workload, most = self.case.job.config().workload, falls(self.case.job)
        return statistics.fmean(min(units(trace) / workload, most) for trace in self.traces)

    def loss(self, share: float) -> float:
        """Return the accuracy that a share loses, on the line through the nearest two that were run."""
        return float(np.interp(share, list(self.lost), list(self.lost.values())))

    def needed(self) -> float:
        """Return the smallest share that was run and stays within a point of lock-step."""
        return min(share for share, lost in self.lost.items() if lost <= POINT)


def measured(folder: Path) -> list[Measured]:
    """Return the cases that are measured, by the seeds of which every run is there."""
    own, found = told(EXPERIMENT, folder), []
    for case in CASES:
        traces = [read_trace(str(row["trace"])) for row in own if row["name"] == case.traced and row["trace"]]
        runs = told(case.experiment) if case.experiment else [row for row in own if row["name"] == case.name]
        if traces and mean(runs, "accuracy", share=100) > 0:
            best = mean(runs, "accuracy", share=100)
            lost = {share / 100: best - mean(runs, "accuracy", share=share) for share in frontier.shares_of(runs)}
            found.append(Measured(case, traces, lost, len({row["seed"] for row in runs})))
    return found


class Verdict(NamedTuple):
    """What shares come to: how many cases stay within a point, the worst loss, and the time over lock-step's."""

    enough: int
    worst: float
    time: float


def judged(cases: Sequence[Measured], shares: Sequence[float]) -> Verdict:
    """Return what a share for each case comes to."""
    losses = [case.loss(share) for case, share in zip(cases, shares, strict=True)]
    times = [share + (1 - share) / SPEED for share in shares]
    return Verdict(sum(lost <= POINT for lost in losses), max(losses), statistics.fmean(times))


def fitted(cases: Sequence[Measured], sign: Callable[[Trace, int], float]) -> float:
    """Return the bound with which most cases stay within a point, and of those the one that takes least time."""
    seen = sorted({sign(trace, at) for case in cases for trace in case.traces for at in range(1, len(trace))})
    bounds = [*seen[:: max(1, len(seen) // 200)], math.inf]

    def worth(bound: float) -> tuple[int, float]:
        verdict = judged(cases, [case.share(lambda trace: passes(sign, bound, trace)) for case in cases])
        return verdict.enough, -verdict.time

    return max(bounds, key=worth)


def held_out(cases: Sequence[Measured], sign: Callable[[Trace, int], float]) -> list[float]:
    """Return each case's share by the bound that the other families give."""
    bounds = {
        family: fitted([case for case in cases if case.case.family != family], sign)
        for family in {case.case.family for case in cases}
    }
    return [case.share(lambda trace, case=case: passes(sign, bounds[case.case.family], trace)) for case in cases]


def new_seeds(cases: Sequence[Measured], sign: Callable[[Trace, int], float]) -> list[float]:
    """Return each case's share on its other seeds, by the bound that all cases give on their first one."""
    bound = fitted([case._replace(traces=case.traces[:1]) for case in cases], sign)
    return [case._replace(traces=case.traces[1:]).share(lambda trace: passes(sign, bound, trace)) for case in cases]


def hindsight(cases: Sequence[Measured], sign: Callable[[Trace, int], float]) -> list[float]:
    """Return each case's share by the bound that suits the cases themselves best."""
    bound = fitted(cases, sign)
    return [case.share(lambda trace: passes(sign, bound, trace)) for case in cases]


def tell(cases: Sequence[Measured]) -> None:
    """Print what each case needs, and what each rule comes to."""
    cases = [case for case in cases if len(case.traces) > 1]  # one seed is held out
    print(f"{'case':<30} seeds runs  needs  that is   norm  noise  share by " + " / ".join(SIGNS) + " / knee")
    apart = {name: held_out(cases, sign) for name, sign in SIGNS.items()}
    knees = [case.share(lambda trace, case=case: knee(trace, case.case.job.config().workload)) for case in cases]
    for number, case in enumerate(cases):
        share, workload, early = case.needed(), case.case.job.config().workload, []
        for trace in case.traces:
            at = max(at for at, point in enumerate(trace) if point.units <= EARLY)
            early.append((trace[at].norm / trace[0].norm, _smooth_noise(trace, at)))
        norm, noise = (statistics.fmean(column) for column in zip(*early, strict=True))
        chosen = " / ".join(f"{shares[number]:.1%}" for shares in (*apart.values(), knees))
        print(
            f"{case.case.name:<30} {len(case.traces):>5} {case.seeds:>4} {share:>6.2%} {share * workload:>8,.0f} "
            f"{norm:>6.3f} {noise:>6.0f}  {chosen}"
        )
    rules = {
        "always 6.25 %": [PAPERS] * len(cases),
        "knee": knees,
        "where the rate falls": [falls(case.case.job) for case in cases],
        "what is needed": [case.needed() for case in cases],
        **{f"{name}, other families": shares for name, shares in apart.items()},
        **{f"{name}, other seeds": new_seeds(cases, sign) for name, sign in SIGNS.items()},
        **{f"{name}, in hindsight": hindsight(cases, sign) for name, sign in SIGNS.items()},
    }
    for name, shares in rules.items():
        found = judged(cases, shares)
        print(
            f"  {name:<52} within a point {found.enough} of {len(cases)}, worst -{100 * found.worst:.1f} points, "
            f"{1 / found.time:.2f}x as fast as lock-step"
        )


def tell_published(table: Path, folder: Path) -> None:
    """Print how the weights' early norm goes with accuracy in the published runs, within shares and between them.

    Args:
      table: of the runs (see `benchmarks.published_runs`), with the column `source_run`.
      folder: `data` of the authors' repository, whose runs have the file `weight_decay.csv`: half the decay times the
        squared norm of the weights.
    """
    jumps: dict[str, list[tuple[float, float]]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            path, accuracy = folder / row["source_run"] / "weight_decay.csv", row["converged_accuracy"]
            if path.exists() and row["excluded_by_authors"] == "0" and accuracy not in ("", "nan"):
                jumps.setdefault(row["bsp_share"], []).append((_jump(path), float(accuracy)))
    for share, runs in sorted(jumps.items(), key=lambda held: float(held[0])):
        told = f", r with accuracy {_correlation(runs):+.2f}" if len(runs) > 3 else ""
        print(f"  share {share:<7} {len(runs)} runs, early norm {statistics.fmean(jump for jump, _ in runs):.3f}{told}")
    groups = [runs for share, runs in jumps.items() if float(share) >= FIRST_SHARE and len(runs) > 2]
    means = [[statistics.fmean(column) for column in zip(*runs, strict=True)] for runs in groups]
    centred = [(a - b[0], c - b[1]) for runs, b in zip(groups, means, strict=True) for a, c in runs]
    everything = [run for runs in groups for run in runs]
    whole = statistics.pvariance([jump for jump, _ in everything]) * len(everything)
    between = 1 - sum(jump**2 for jump, _ in centred) / whole
    chance = (len(groups) - 1) / (len(everything) - 1)
    print(
        f"  {len(everything)} runs of {len(groups)} shares: r within shares {_correlation(centred):+.2f}; the share "
        f"accounts for {between:.0%} of the early norm's variance, {chance:.0%} is to be expected of chance"
    )


def _jump(path: Path) -> float:
    """Return the largest norm of the first steps over that of the first."""
    with path.open(newline="") as file:
        decays = [float(row["Value"]) for row in csv.DictReader(file) if float(row["Step"]) <= FIRST_STEPS]
    return math.sqrt(max(decays) / decays[0])


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.correlation(*zip(*pairs, strict=True))


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10's binary version; without it nothing is run")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results")
    parser.add_argument("--published", type=Path, nargs=2, help="table of published runs, and `data` of their authors")
    options = parser.parse_args(arguments)
    code = measure_missing([EXPERIMENT], Given(options.cifar, folder=options.folder)) if options.cifar else 0
    tell(measured(options.folder))
    if options.published:
        tell_published(*options.published)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
