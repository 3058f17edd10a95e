"""HSP on jobs that bear staleness: at which rate a job does, by a rule, and what HSP gains there."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Experiment, Row
from benchmarks.reproduction.jobs import CONV, DECODER, RECIPE_RATE, Job
from benchmarks.reproduction.parameters import ASP, HSP
from benchmarks.reproduction.reporting import markdown, mean_of_all, spread, values
from benchmarks.reproduction.training import Training

JOBS: dict[str, Job] = {"MLP": RECIPE_RATE, "conv net": CONV, "decoder": DECODER}
BARRIER = HSP["bsp_server"]
PARTS, SEEDS = (2, 4, 8), range(600, 602)
MOST = 1.1
"""Units of asynchrony over the barrier's, to the same loss, at which a job bears staleness."""


def rate_of(job: Job, part: int) -> str:
    """Return the value of the configuration for a part of the job's own rate."""
    return f"optimizer.learning_rate={job.config().optimizer.learning_rate / part:g}"


def more_units(rows: Sequence[Row], job: str, part: int) -> float:
    """Return asynchrony's units to the loss over the barrier's; nan where a run was never there."""
    own, barrier = (
        mean_of_all(rows, "units_to_loss", len(SEEDS), job=job, part=part, protocol=name) for name in (ASP, BARRIER)
    )
    return own / barrier


def chosen(rows: Sequence[Row], job: str) -> int | None:
    """Return the smallest part of the ladder, so the largest rate, at which a job bears staleness; None at none."""
    return next((part for part in PARTS if more_units(rows, job, part) <= MOST), None)


def table(rows: Sequence[Row]) -> str:
    """Return the ladder of each job, and what was chosen."""
    told = []
    for name, job in JOBS.items():
        for part in PARTS:
            where = {"job": name, "part": part}
            ratio = more_units(rows, name, part)
            units = {plan: values(rows, "units_to_loss", protocol=plan, **where) for plan in (BARRIER, ASP)}
            told.append(
                (
                    job.name,
                    f"1/{part}",
                    *(spread(found, "{:.0f}") for found in units.values()),
                    f"{ratio:.2f}x" if ratio == ratio else "never in a run",
                    "chosen" if chosen(rows, name) == part else "",
                )
            )
    return markdown(("job", "of its rate", f"`{BARRIER}`, units to the loss", f"`{ASP}`", "beside it", ""), told)


RATES = Experiment(
    "hsp_rates",
    "HSP",
    "A job bears staleness where asynchrony, whose gradients are seven updates old, needs at most a tenth more units "
    "to the loss than the barrier does. Of the halvings of the job's own rate the largest at which it does is taken. "
    "HSP was not run for this choice, and the seeds are others than those of the measurement.",
    [
        Cell(
            {"job": name, "part": part, "protocol": plan, "seed": seed},
            Training(job, plan, Even(ratio=1), seed, sets=(rate_of(job, part),), evaluations=0),
        )
        for name, job in JOBS.items()
        for part in PARTS
        for plan in (BARRIER, ASP)
        for seed in SEEDS
    ],
    lambda rows: [],
    table,
)
