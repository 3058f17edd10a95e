"""Sync-Switch: what becomes of the momentum, and of the rate, at the switch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.reproduction.clusters import Fitted
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.reporting import claimed, markdown, mean, spread, values
from benchmarks.reproduction.training import Training

PLAN, SEEDS = "bsp:12.5%,asp", range(400, 410)
WORKERS = 8
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kept": (".914", ()),
    "zeroed": (".861 to .877", ("policy.momentum=zero",)),
    "scaled": (".882 to .902", ("policy.momentum=scaled",)),
    "ramped, linear": (".897 to .912", ("policy.momentum=ramp_linear",)),
    "ramped, 8 stages": (".897 to .912", ("policy.momentum=ramp_stages",)),
    "ramped, doubled": (".897 to .912", ("policy.momentum=ramp_steps", "policy.ramp=0.3")),
    "kept, rate not scaled down": (
        "NaN",
        ("optimizer.schedule.boundaries=0.125,0.3,0.6", f"optimizer.schedule.factors={WORKERS},{WORKERS / 10},0.08"),
    ),
}
"""Variant -> published accuracy, values of the configuration. In the last, asynchronous units keep lock-step's rate."""
RAMPED = [name for name in VARIANTS if name.startswith("ramped")]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims of the configuration policy."""
    where = f"{HURT.name}, `{PLAN}`, {len(SEEDS)} seeds"

    def order(rows: Sequence[Row]) -> tuple[str, bool]:
        kept = mean(rows, "accuracy", variant="kept")
        others = {name: mean(rows, "accuracy", variant=name) for name in ("zeroed", "scaled", *RAMPED)}
        best = max(others, key=lambda name: others[name])
        return f"kept {kept:.3f}; best other: {best} {others[best]:.3f}", kept >= others[best]

    def fails(rows: Sequence[Row]) -> tuple[str, bool]:
        found = values(rows, "accuracy", variant="kept, rate not scaled down")
        diverged = int(sum(values(rows, "diverged", variant="kept, rate not scaled down")))
        said = f"accuracy {statistics.fmean(found):.3f}, {diverged} of {len(found)} without numbers"
        return said, max(found) < 0.5

    return [
        claimed(rows, "the momentum is best kept", ".914 against .861 to .912", where, order),
        claimed(rows, "a rate that is not scaled down fails", "NaN", where, fails),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the accuracies of every variant beside the published ones."""
    told = [
        (name, published, spread(values(rows, "accuracy", variant=name), "{:.4f}"), _against(rows, name))
        for name, (published, _) in VARIANTS.items()
    ]
    return markdown(("momentum", "published", "here", "less kept, points, paired"), told)


def _against(rows: Sequence[Row], variant: str) -> str:
    kept = {row["seed"]: float(row["accuracy"] or 0) for row in rows if row["variant"] == "kept"}
    own = {row["seed"]: float(row["accuracy"] or 0) for row in rows if row["variant"] == variant}
    return spread([100 * (own[seed] - kept[seed]) for seed in own], "{:.1f}") if variant != "kept" else ""


EXPERIMENT = Experiment(
    "syncswitch_momentum",
    "Sync-Switch",
    "The switch comes before the first fall of the rate, as in the published trials, so that what follows still moves "
    "the model. Batch that is not scaled is left out: a run has one unit size.",
    [
        Cell({"variant": name, "seed": seed}, Training(HURT, PLAN, Fitted(), seed, WORKERS, sets, 0))
        for name, (_, sets) in VARIANTS.items()
        for seed in SEEDS
    ],
    claims,
    table,
)
