"""The share of lock-step that each job needs beside its length: a table over the frontiers that are measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduction.experiments import syncswitch_frontier, syncswitch_resnet
from benchmarks.reproduction.experiments.syncswitch_frontier import smallest
from benchmarks.reproduction.record import FOLDER, told
from benchmarks.reproduction.reporting import markdown, mean
from benchmarks.reproduction.training import Training

FRONTIERS = (
    syncswitch_frontier.IMAGES,
    syncswitch_frontier.SHORT,
    syncswitch_resnet.EXPERIMENT,
    syncswitch_frontier.LONGER,
    syncswitch_frontier.LONG,
    syncswitch_frontier.DIGITS,
    syncswitch_frontier.WHOLE,
)
IMAGES, DIGITS = 50_000, 1_437
"""Training examples of a pass."""
PUBLISHED = ("ResNet-32 on CIFAR-10, published", "164", "82", "5 %", "-2.7", "3 to 8")
HEAD = (
    "job",
    "passes",
    "of them after the rate first falls",
    "smallest share within a point of `bsp`",
    "`asp` less `bsp`, points",
    "seeds",
)


def table(folder: Path = FOLDER) -> str:
    """Return the lengths of the jobs, and what share each needs."""
    lines = []
    for experiment in FRONTIERS:
        if not (rows := told(experiment, folder)):
            continue
        measure = experiment.cells[0].measure
        assert isinstance(measure, Training)
        job, config = measure.job, measure.job.config()
        passes = config.workload * config.unit_size / (IMAGES if job.images else DIGITS)
        less = 100 * (mean(rows, "accuracy", share=0) - mean(rows, "accuracy", share=100))
        seeds = len({row["seed"] for row in rows})
        after = passes * (1 - config.optimizer.schedule.boundaries[0])
        share = f"{smallest(rows):g} %"
        lines.append((job.name, f"{passes:.0f}", f"{after:.1f}", share, f"{less:+.1f}", str(seeds)))
    return markdown(HEAD, [*lines, PUBLISHED])
