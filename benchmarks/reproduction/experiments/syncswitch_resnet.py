"""Sync-Switch on its own kind of model: ResNet-8 on real CIFAR-10, at the size that this machine bears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.experiments.syncswitch_frontier import MAIN, cells, claims, plot, table
from benchmarks.reproduction.jobs import RESNET
from benchmarks.reproduction.parameters import hybrid
from benchmarks.reproduction.reporting import markdown
from benchmarks.reproduction.training import Training

SEEDS = range(400, 403)
SMOKE_UNITS, SMOKE_SHARE = 1200, 12.5
"""About 5 minutes of one core that has nothing else to do."""
SMOKE_JOB = replace(RESNET, sets=(*RESNET.sets, f"workload={SMOKE_UNITS}"))


def smoke_table(rows: Sequence[Row]) -> str:
    """Return the one run."""
    told = [(f"`{hybrid(SMOKE_SHARE)}`", f"{SMOKE_UNITS:,}", str(row["accuracy"]), str(row["seconds"])) for row in rows]
    return markdown(("plan", "units", "accuracy", "seconds, virtual"), told)


def no_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return nothing: one run claims nothing."""
    return []


SMOKE = Experiment(
    "syncswitch_resnet_smoke",
    "Sync-Switch",
    "One share with 1,200 units, to see that the experiment below can be run as it is defined.",
    [Cell({"share": SMOKE_SHARE, "seed": 400}, Training(SMOKE_JOB, hybrid(SMOKE_SHARE), Fitted(), 400, evaluations=4))],
    no_claims,
    smoke_table,
)
EXPERIMENT = Experiment(
    "syncswitch_resnet",
    "Sync-Switch",
    "The published rate, momentum, weight decay and schedule, units of 64 images instead of 128, 3,900 of them instead "
    "of 64,000, and ResNet-8 instead of ResNet-32: 18 runs of about 8 minutes of two cores each.",
    cells(RESNET, MAIN, SEEDS),
    lambda rows: claims(rows, RESNET, SEEDS),
    table,
    lambda rows: plot(rows, RESNET),
    by_seed=True,
)
