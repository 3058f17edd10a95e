"""PS+: time of a unit beside its blocking twin, and units and seconds to a loss by the modulation."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.figures import Spread
from benchmarks.peers.plot import Bar
from benchmarks.peers.plot import Panel as BarPanel
from benchmarks.peers.plot import draw as draw_bars
from benchmarks.reproduction.clusters import Even
from benchmarks.reproduction.definition import Cell, Claim, Experiment, Row
from benchmarks.reproduction.jobs import HURT
from benchmarks.reproduction.parameters import ASP, PSPLUS_MODULATIONS, PSPLUS_RATES
from benchmarks.reproduction.reporting import claimed, markdown, mean, mean_of_all, spread, values
from benchmarks.reproduction.training import Training
from hybridsync.simulator.cluster import Slow

SEEDS = range(400, 405)
CLUSTERS = {
    "even, half": Even(link_ratio=0.5),
    "even, one": Even(link_ratio=1.0),
    "one 5x slow, half": Even(link_ratio=0.5, slow=(Slow(7, factor=5.0),)),
}
"""What a transfer takes of a unit's compute time is in the name."""
EVEN, SLOW = list(CLUSTERS)[:2], "one 5x slow, half"
PLANS = {**PSPLUS_RATES, **{f"modulation {kind}": plan for kind, plan in PSPLUS_MODULATIONS.items()}}
TWIN = "its blocking twin"
MODULATED = ("none", "progress")


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the abstract's three figures, against the blocking twin on alike workers."""

    def less(rows: Sequence[Row]) -> tuple[str, bool]:
        saved = {}
        for cluster in EVEN:
            own, twin, asp = (mean(rows, "units_per_sec", cluster=cluster, plan=name) for name in ("psplus", TWIN, ASP))
            saved[cluster] = 1 - twin / own, 1 - asp / own
        told = [f"{cluster}: {twin:.0%} (`asp` {asp:.0%})" for cluster, (twin, asp) in saved.items()]
        return "; ".join(told), any(twin >= 0.54 for twin, _ in saved.values())

    def fewer(rows: Sequence[Row]) -> tuple[str, bool]:
        none, own = (
            mean_of_all(rows, "units_to_loss", len(SEEDS), cluster=SLOW, plan=f"modulation {kind}")
            for kind in MODULATED
        )
        return f"{1 - own / none:.0%}", 1 - own / none >= 0.37

    def altogether(rows: Sequence[Row]) -> tuple[str, bool]:
        saved = {}
        for cluster in CLUSTERS:
            own, twin = (
                mean_of_all(rows, "units_to_loss", len(SEEDS), cluster=cluster, plan=name) for name in ("psplus", TWIN)
            )
            saved[cluster] = 1 - own / twin
        told = [f"{cluster}: {less:.0%}" for cluster, less in saved.items()]
        return "; ".join(told), any(less >= 0.37 for less in saved.values())

    def whole(rows: Sequence[Row]) -> tuple[str, bool]:
        ratios = {}
        for cluster in CLUSTERS:
            where = {"cluster": cluster}
            own, twin = (mean_of_all(rows, "secs_to_loss", len(SEEDS), plan=name, **where) for name in ("psplus", TWIN))
            ratios[cluster] = twin / own
        told = [f"{cluster}: {ratio:.2f}x" for cluster, ratio in ratios.items()]
        return "; ".join(told), any(ratio >= 2.86 for ratio in ratios.values())

    where = f"{HURT.name}, a transfer takes half or all of a unit's compute time, 8 workers, {len(SEEDS)} seeds"
    return [
        claimed(rows, "less time an iteration, against the blocking twin", "54 %", where, less),
        claimed(rows, "fewer iterations to a loss, by the modulation, one worker 5x slow", "37 %", where, fewer),
        claimed(rows, "fewer iterations to a loss, against the blocking twin", "37 %", where, altogether),
        claimed(rows, "faster to a loss, against the blocking twin", "up to 2.86x", where, whole),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return time of a unit, units and seconds to the loss."""
    told = []
    for cluster in CLUSTERS:
        for name, plan in PLANS.items():
            where = {"cluster": cluster, "plan": name}
            told.append(
                (
                    cluster,
                    f"`{plan}`",
                    spread(values(rows, "units_per_sec", **where), "{:.0f}"),
                    spread(values(rows, "units_to_loss", **where), "{:.0f}"),
                    spread(values(rows, "secs_to_loss", **where), "{:.1f}"),
                    f"{len(values(rows, 'secs_to_loss', **where))} of {len(SEEDS)}",
                    spread(values(rows, "accuracy", **where), "{:.3f}"),
                )
            )
    head = ("cluster", "plan", "units/s", "units to the loss", "seconds to it", "came there", "accuracy")
    return markdown(head, told)


def plot(rows: Sequence[Row]) -> str:
    """Return the seconds to the loss of every plan, a panel a cluster."""
    panels = []
    for cluster in CLUSTERS:
        bars = [
            Bar(name.removeprefix("its ").replace("modulation ", "psplus, "), Spread.of(found), name == "psplus")
            for name in PLANS
            if (found := values(rows, "secs_to_loss", cluster=cluster, plan=name))
        ]
        panels.append(BarPanel(cluster.capitalize(), bars))
    note = f"seconds (virtual), less is better; median and range of those of {len(SEEDS)} seeds that came there"
    return draw_bars("PS+ to a training loss, 8 workers", note, [panels])


EXPERIMENT = Experiment(
    "psplus",
    "PS+",
    "The blocking twin makes the same steps and updates and waits for each transfer, so that only the overlap differs. "
    "A push, or a pull, takes half of a unit's compute time on each worker's own link, or all of it.",
    [
        Cell(
            {"cluster": cluster, "plan": name, "seed": seed},
            Training(HURT, plan, conditions, seed, evaluations=0),
        )
        for cluster, conditions in CLUSTERS.items()
        for name, plan in PLANS.items()
        for seed in SEEDS
    ],
    claims,
    table,
    plot,
)
